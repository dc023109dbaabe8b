"""Configuration: which file, which key, who wins, and what is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from hypothesis import given
from hypothesis import strategies as st

from sessionrun.agents.table import BUILTIN, check_agent
from sessionrun.input.config import Config, load_config, load_results_dir
from sessionrun.input.rows import SETTINGS
from sessionrun.model.errors import InputError
from sessionrun.model.spec import AgentSpec


@dataclass(frozen=True)
class Places:
    """A home directory, and a repository with a directory deep inside it."""

    home: Path
    top: Path
    deep: Path

    def environ(self, **variables: str) -> dict[str, str]:
        return {"HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home / ".config"), **variables}

    def user(self, text: str) -> None:
        file = self.home / ".config" / "sessionrun" / "config.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def project(self, text: str) -> Path:
        file = self.top / "sessionrun.toml"
        file.write_text(text)
        return file

    def here(self, text: str) -> None:
        (self.deep / "sessionrun.toml").write_text(text)

    def load(self, **variables: str) -> Config:
        return load_config(self.deep, self.environ(**variables))


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    made = Places(tmp_path / "home", tmp_path / "repo", tmp_path / "repo" / "a" / "b")
    made.home.mkdir(exist_ok=True)
    made.deep.mkdir(parents=True)
    (made.top / ".git").mkdir()
    for name, value in made.environ().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("platformdirs.user_config_path", lambda name: made.home / ".config" / name)
    return made


def test_nothing_said(places: Places) -> None:
    config = places.load()
    assert config._replace(origins={}, tables={}) == Config(agents=BUILTIN)
    assert load_results_dir(places.deep, places.environ()) == (None, None)


def test_current_directory_before_the_repositorys_top(places: Places) -> None:
    places.project('agent = "top"\nmodel = "m"')
    places.here('agent = "here"')
    config = places.load()
    assert config.values == {"agent": "here"}


def test_outside_a_repository_no_parent_is_searched(places: Places) -> None:
    """Its top has a directory of git's, or that of a worktree a file."""
    places.project("max_parallel = 3")
    (places.top / ".git").rmdir()
    assert places.load().values == {}
    (places.top / ".git").write_text("gitdir: elsewhere\n")
    assert places.load().values == {"max_parallel": 3}


def test_every_variable(places: Places) -> None:
    said = {"AGENT": "codex", "MODEL": "m", "MAX_PARALLEL": "0", "TIMEOUT": "2h", "YOLO": "Yes"}
    values = places.load(**{f"SESSIONRUN_{name}": value for name, value in said.items()}).values
    assert values == {"agent": "codex", "model": "m", "max_parallel": 0, "timeout_s": 7200.0, "approve": True}
    assert places.load(SESSIONRUN_RESULTS_DIR="runs").values == {"results_dir": places.deep / "runs"}
    empty = dict.fromkeys((variable for row in SETTINGS for variable in row.variables), "")
    assert places.load(**empty) == Config(agents=BUILTIN), "an empty one says nothing"


def test_a_model_goes_with_the_agent_beside_it(places: Places) -> None:
    places.user('agent = "claude"\nmodel = "opus"')
    assert places.load().values["model"] == "opus"
    assert places.load(SESSIONRUN_AGENT="claude").values["model"] == "opus"
    assert "model" not in places.load(SESSIONRUN_AGENT="codex").values
    assert places.load(SESSIONRUN_MODEL="haiku").values["model"] == "haiku"


def test_agents_own_changed_and_laid_over_each_other(places: Places) -> None:
    places.user(
        """
        [agents.claude]
        env = {A = "1"}
        model_args = ["--model", "{model}"]
        [agents.mine]
        argv = ["mine", "{model_args}", "--quiet"]
        stop_grace_s = 10
        edits = false
        """
    )
    places.project(
        '[agents.mine]\noutput = "codex"\nready = ["mine", "--check"]\n[agents.claude]\nenv = {B = "2"}'
    )
    agents = places.load().agents
    assert list(agents) == [*BUILTIN, "mine"]
    claude = agents["claude"]
    assert (claude.argv, claude.output, claude.env) == (BUILTIN["claude"].argv, "claude", {"A": "1", "B": "2"})
    assert claude.model_args == ("--model", "{model}")
    assert agents["shell"] is BUILTIN["shell"]
    assert agents["mine"] == AgentSpec(
        name="mine",
        argv=("mine", "{model_args}", "--quiet"),
        output="codex",
        edits=False,
        ready=("mine", "--check"),
        stop_grace_s=10.0,
    )


def test_the_manuals_example(places: Places) -> None:
    page = (Path(__file__).parents[2] / "man" / "sessionrun-input.5").read_text()
    places.project(
        page.partition(".SH CONFIGURATION\n")[2].split(".EX\n")[1].partition(".EE")[0].replace("\\-", "-")
    )
    agents = places.load().agents
    assert agents.keys() == {*BUILTIN, "mine"} and agents["claude"].stop_grace_s == 10.0
    check_agent(agents["mine"])
    assert agents["mine"].argv == ("my-agent", "{model_args}", "--file", "{prompt_file}")


def test_results_dir_alone(places: Places) -> None:
    places.user('results_dir = "~/runs"\ntypo = 1')
    assert load_results_dir(places.deep, places.environ()) == (places.home / "runs", None)
    project = places.project('results_dir = "/runs"\nno_matter = 1')
    assert load_results_dir(places.deep, places.environ()) == (Path("/runs"), None)
    project.write_text("max_parallel = 3")
    assert load_results_dir(places.deep, places.environ()) == (places.home / "runs", None)
    variables = places.environ(SESSIONRUN_RESULTS_DIR="x")
    assert load_results_dir(places.deep, variables) == (places.deep / "x", None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("results_dir = 3", "results_dir: must be text, not the number 3"), ("results_dir = [", "not valid TOML: ")],
)
def test_what_readers_make_of_a_broken_file(places: Places, text: str, problem: str) -> None:
    file = places.project(text)
    directory, why = load_results_dir(places.deep, places.environ())
    assert directory is None and (why or "").startswith(f"{file}: {problem}")
    places.user('results_dir = "/runs"')
    assert load_results_dir(places.deep, places.environ()) == (Path("/runs"), why)


def test_a_broken_file_stops_launches_and_nothing_else(sessionrun: Command) -> None:
    session_id = sessionrun.finished(["false"])
    file = sessionrun.cwd / "sessionrun.toml"
    for text in ("max_parallel = = 3", 'agnet = "shell"'):
        file.write_text(text)
        done = sessionrun("--agent", "shell", stdin='["true"]')
        assert (done.returncode, done.stdout) == (2, "")
        assert str(file) in done.stderr.splitlines()[-1]
        found = json.loads(sessionrun("doctor", "--json").stdout)["findings"]
        assert [one["check"] for one in found] == ["configuration"]
        assert str(file) in found[0]["what"]
        for words in (["status"], ["list"], ["cancel", session_id], ["doctor", "agents"]):
            done = sessionrun(*words)
            assert done.returncode == (words[0] == "doctor"), words
            told = [line for line in done.stderr.splitlines() if str(file) in line]
            assert len(told) == ("= =" in text or words[0] == "doctor"), words
    assert sessionrun("merge", session_id).stderr.count(str(file)) == 0, "a key that nobody knows does not stop it"
    assert len(sessionrun.load("list")["sessions"]) == 1


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("budget_usd", "not the number of very many digits"),
        ("max_parallel", "must be a whole number of at most 15 digits"),
    ],
)
def test_a_number_of_very_many_digits_is_refused(places: Places, key: str, why: str) -> None:
    places.here(f"{key} = 0x{'f' * 4000}")
    with pytest.raises(InputError, match=f"{why}$"):
        places.load()


def test_a_poll_imports_nothing_for_a_file_that_has_other_settings(places: Places) -> None:
    places.here('agent = "shell"')
    heavy = "platformdirs yaml difflib msgspec sessionrun.input.rows sessionrun.model.spec"
    code = (
        "import os, sys; from pathlib import Path; before = set(sys.modules)\n"
        "from sessionrun.input.config import load_results_dir\n"
        "assert load_results_dir(Path.cwd(), os.environ)[0] is None\n"
        f"print(sorted({{*{heavy.split()!r}}} & (sys.modules.keys() - before)))"
    )
    environ = {**os.environ, **places.environ()}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=places.deep, env=environ, capture_output=True, text=True
    )
    expected = "[]" if sys.platform.startswith("linux") else "['platformdirs']"
    assert (done.stdout.strip(), done.stderr) == (expected, "")


TOML_KEYS = st.sampled_from(
    ["agent", "max_parallel", "timeout", "results_dir", "approve", "agents", "argv", "env"]
)
TOML_VALUES = st.sampled_from(
    ["1", "-1", "true", '"x"', "[]", '["x"]', "{}", "{a=1}", "nan", "1e9", "12:00:00", "["]
)


@given(st.lists(st.tuples(TOML_KEYS, TOML_VALUES), max_size=4), st.booleans())
def test_any_file_gives_a_config_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, Any]], table: bool
) -> None:
    place = tmp_path_factory.mktemp("any")
    text = ("[agents.shell]\n" if table else "") + "\n".join(f"{key} = {value}" for key, value in lines)
    (place / "sessionrun.toml").write_text(text)
    try:
        load_config(place, {"XDG_CONFIG_HOME": str(place)})
    except InputError as error:
        assert str(error).isprintable()


def test_where_each_setting_is_written(
    sessionrun: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    user = tmp_path / "config" / "sessionrun" / "config.toml"
    user.parent.mkdir(parents=True)
    mine = '[agents.mine]\nargv = ["my", "{prompt_file}"]\nstdin = "none"\n'
    user.write_text(f'agent = "claude"\nmodel = "opus"\nmax_parallel = 7\n{mine}')
    project = sessionrun.cwd / "sessionrun.toml"
    more = 'halt = "now"\nmin_free_memory = "4G"\ntimeout = "15m"\n[sandbox]\npolicy = "project"\nread = ["/x"]\n'
    project.write_text(f'agent = "shell"\nnotify = "true"\nresults_dir = "out"\n{more}')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("SESSIONRUN_MAX_PARALLEL", "3")
    monkeypatch.setenv("SESSIONRUN_YOLO", "0")
    told = {one["name"]: one for one in sessionrun.load("config", "--origin")["settings"]}
    assert (told["agent"]["value"], told["agent"]["origin"]) == ("shell", str(project))
    assert (told["model"]["value"], told["model"]["origin"]) == (None, "default")  # it belonged to another agent
    assert (told["max_parallel"]["value"], told["max_parallel"]["origin"]) == (3, "SESSIONRUN_MAX_PARALLEL")
    assert (told["approve"]["value"], told["approve"]["origin"]) == (False, "SESSIONRUN_YOLO")
    assert told["results_dir"]["value"] == str(sessionrun.cwd / "out") and told["notify"]["value"] == ["true"]
    kinds = {name: told[name]["value"] for name in ("halt", "min_free_memory", "timeout_s")}
    assert kinds == {"halt": "now", "min_free_memory": 4 << 30, "timeout_s": 900.0}
    assert told["sandbox"]["value"] == {"policy": "project", "network": "allow", "read": ["/x"]}
    assert told["agents.mine"]["origin"] == str(user) and told["budget_usd"]["origin"] == "default"
    table = sessionrun("config", "--origin").stdout.splitlines()
    assert re.fullmatch(
        r"max_parallel +3 +SESSIONRUN_MAX_PARALLEL", next(line for line in table if "max_par" in line)
    )
    assert "budget_usd" not in sessionrun("config").stdout
    project.write_text("agnt = 3")
    done = sessionrun("config")
    assert done.returncode == 2 and 'did you mean "agent"?' in done.stderr

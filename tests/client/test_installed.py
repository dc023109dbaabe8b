"""Which agents are installed, signed in and ready: `doctor agents`, and what is asked before a session is created.

All programs are fakes, on a PATH of their own; the home directory is the test's.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from conftest import Command
from shown import check_golden
from stages import make_program
from test_documents import part

from sessionrun.agents import table
from sessionrun.agents.installed import Examined, Use, find_sign_in, find_unready, is_known_version
from sessionrun.agents.installed import examine as examine_agents
from sessionrun.agents.programs import CALLERS, PROGRAMS, find_file
from sessionrun.model.spec import AgentSpec

KNOWN = {name: program for name, program in PROGRAMS.items() if program.version}
"""Those of which it is known how they sign in."""

VERSIONS = {
    "claude": "2.1.329 (Claude Code)",
    "codex": "codex-cli 0.169.1",
    "qwen": "0.24.4",
    "gemini": "0.62.0",
    "opencode": "1.180.2",
    "aider": "aider 0.86.2",
}


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with nothing in it but what a test puts there."""
    folder = tmp_path / "programs"
    folder.mkdir()
    return folder


def examine(folder: Path, *own: AgentSpec, euid: int = 1000, **environ: str) -> dict[str, Examined]:
    known = {**table.BUILTIN, **{agent.name: agent for agent in own}}
    here = {"PATH": str(folder), "HOME": os.environ["HOME"], **environ}
    with (
        patch.dict(os.environ, here, clear=True),
        patch("os.geteuid", lambda: euid),
        patch("sys.platform", "linux"),
    ):
        return {one.name: one for one in examine_agents(known, approve=True)}


@pytest.mark.parametrize(("name", "known"), KNOWN.items())
def test_the_known_version_is_the_one_that_its_reader_was_written_for(name: str, known: Any) -> None:
    reader = import_module(f"sessionrun.agents.{'claude' if name == 'qwen' else name}")
    assert known.version in (reader.__doc__ or "").partition("(")[2].partition(")")[0].split(", ")


@pytest.mark.parametrize(("said", "answer"), [("v2.1", True), ("12.1.0", False), ("2.10", False), ("dev", None)])
def test_what_a_program_says_of_its_version(said: str, answer: bool | None) -> None:
    assert is_known_version(PROGRAMS["claude"], said) is answer


def test_programs_that_misbehave_are_told_all_the_same(programs: Path) -> None:
    make_program(programs / "claude", "exit 1")
    make_program(programs / "codex", "echo >&2 broken; kill -9 $$")
    (programs / "qwen").write_text("not executable")
    bad = make_program(programs / "gemini", "")
    bad.write_bytes(b"#!/no/such/interpreter\n")
    make_program(programs / "sh", "echo 5.2")
    found = examine(programs)
    assert found["shell"].version is None, "a shell is not asked: it may take the word for a script"
    assert [found[name].version for name in ("claude", "codex", "qwen", "gemini")] == [None] * 4
    assert (found["claude"].known, found["qwen"].path) == (None, None)
    assert found["qwen"].hint == "not found; to install it: npm install -g @qwen-code/qwen-code"
    assert not found["qwen"].startable


# --- signed in ---


@pytest.mark.parametrize(("name", "known"), KNOWN.items())
def test_a_file_or_a_variable_shows_who_is_signed_in(name: str, known: Any, tmp_path: Path) -> None:
    agent, environ = table.BUILTIN[name], {"HOME": str(tmp_path)}
    nothing = ("cannot tell" if known.free else "no", None)
    assert find_sign_in(agent, environ, "linux") == nothing
    assert find_sign_in(agent, environ, "darwin") == ("cannot tell", None), "there may be a keychain"
    for variable in known.keys:
        assert find_sign_in(agent, {**environ, variable: "secret"}, "darwin") == ("yes", variable)
        assert find_sign_in(agent, {**environ, variable: ""}, "linux") == nothing
    for place in known.may_hold_key:
        path = Path(find_file(known, place, environ))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        assert find_sign_in(agent, environ, "linux") == ("cannot tell", str(path))
        path.unlink()
    path = Path(find_file(known, known.login, environ))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    assert find_sign_in(agent, environ, "linux") == ("yes", str(path))


@pytest.mark.parametrize(
    ("name", "variable", "file"),
    [("qwen", "QWEN_HOME", "oauth_creds.json"), ("gemini", "GEMINI_CLI_HOME", ".gemini/oauth_creds.json")],
)
def test_a_log_in_is_looked_for_where_a_variable_says(name: str, variable: str, file: str, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere" / file
    place.parent.mkdir(parents=True)
    place.touch()
    environ = {"HOME": str(tmp_path), variable: str(tmp_path / "elsewhere")}
    assert find_sign_in(table.BUILTIN[name], environ, "linux") == ("yes", str(place))


def test_credentials_are_not_opened(tmp_path: Path) -> None:
    """A FIFO in their place would hold up whoever opened it."""
    (tmp_path / "codex").mkdir()
    os.mkfifo(tmp_path / "codex" / "auth.json", 0)
    environ = {"HOME": "/nowhere", "CODEX_HOME": str(tmp_path / "codex")}
    assert find_sign_in(table.BUILTIN["codex"], environ, "linux")[0] == "yes"
    assert stat.S_ISFIFO((tmp_path / "codex" / "auth.json").stat().st_mode)


def test_the_environment_of_an_agent_is_its_own(programs: Path) -> None:
    make_program(programs / "codex", 'echo "codex-cli 0.169.$PATCH"')
    own = replace(table.BUILTIN["codex"], name="mine", env={"CODEX_API_KEY": "k", "PATCH": "7"}, provider="work")
    found = examine(programs, own)
    mine = found["mine"]
    assert (mine.signed_in, mine.signed_in_by, mine.provider) == ("yes", "CODEX_API_KEY", "work")
    assert (mine.version, mine.builtin, mine.hint) == ("codex-cli 0.169.7", False, None)
    assert found["codex"].signed_in == "no"
    assert found["codex"].hint == "not signed in, as far as can be seen: codex login, or set OPENAI_API_KEY"


# --- who could start ---


def test_root_is_refused_by_some(programs: Path) -> None:
    make_program(programs / "claude", "echo 2.1.1")
    refused = examine(programs, euid=0, ANTHROPIC_API_KEY="k")["claude"]
    assert not refused.startable
    assert refused.hint is not None
    assert "refuses --dangerously-skip-permissions as root" in refused.hint
    allowed = examine(programs, euid=0, ANTHROPIC_API_KEY="k", IS_SANDBOX="1")["claude"]
    assert allowed.startable
    assert allowed.hint is None


def test_ready_is_asked_of_those_that_are_there(programs: Path) -> None:
    ready = make_program(programs / "ready", 'echo "no quota" >&2; exit $1')
    make_program(programs / "program", "echo 1.0")
    one = AgentSpec("one", (str(programs / "program"),), ready=(str(ready), "0"))
    two = replace(one, name="two", ready=(str(ready), "5"))
    gone = replace(two, name="gone", argv=("no-such-agent",))
    found = examine(programs, one, two, gone)
    assert [found[name].ready for name in ("one", "two", "gone")] == [True, False, None]
    assert found["two"].hint == f"not ready: {ready} 5: exit code 5: no quota"
    assert [found[name].startable for name in ("one", "two", "gone")] == [True, False, False]


# --- the command ---


def own_path(programs: Path) -> Mapping[str, str]:
    """What is needed to run us, and no agent CLI that happens to be installed."""
    for name in ("env", "git", "sh"):
        (programs / name).symlink_to(f"/bin/{name}" if Path(f"/bin/{name}").exists() else f"/usr/bin/{name}")
    keys = {name for known in PROGRAMS.values() for name in known.keys}
    return {"PATH": str(programs), **dict.fromkeys(keys, "")}


def test_the_table(sessionrun: Command, programs: Path) -> None:
    env = {**own_path(programs), "GROQ_API_KEY": "top-secret", "GEMINI_API_KEY": "k", "IS_SANDBOX": "1"}
    nobody = sessionrun("doctor", "agents", env=env)
    assert (nobody.returncode, "claude: not found; to install it: npm " in nobody.stdout) == (1, True)
    for name, said in VERSIONS.items():
        make_program(programs / name, f"echo; echo '{said}'; cat")
    done = sessionrun("doctor", "agents", env=env)
    assert (done.returncode, done.stderr, "top-secret" in done.stdout) == (0, "", False)
    printed = json.loads(sessionrun("doctor", "agents", "--json", env=env).stdout)
    records = {one["name"]: one for one in printed["agents"]}
    assert set(records) == set(table.BUILTIN)
    text = done.stdout + "".join(f"{key}: {json.dumps(value)}\n" for key, value in records["codex"].items())
    shell = shutil.which("sh", path=str(programs)) or ""
    for path, word in ((os.path.realpath(shell), "SHELL"), (shell, "SHELL"), (str(programs), "/programs")):
        text = text.replace(path, word)
    check_golden("agents", re.sub(" +", " ", text))
    env |= {"CLAUDECODE": "1", "CLAUDE_CODE_SESSION_KIND": "bg"}
    assert "not passed on: CLAUDECODE, CLAUDE_CODE_SESSION_KIND:" in sessionrun("doctor", "agents", env=env).stdout
    shown = json.loads(sessionrun("doctor", "agents", "--json", env=env).stdout)
    assert shown["not_passed_on"] == ["CLAUDECODE", "CLAUDE_CODE_SESSION_KIND"]
    assert all(name in part("sessionrun.1", "ENVIRONMENT").text for name in CALLERS)


# --- the caller's variables ---


def test_the_state_of_the_caller_s_agent_is_passed_on_to_no_job(sessionrun: Command) -> None:
    """Not to a setup or a check either, which may start an agent; what a plan sets counts."""
    dropped = {name.replace("*", "X"): "caller" for name in CALLERS}
    kept = dict.fromkeys(("CODEX_HOME", "CLAUDE_CODE_MAX_OUTPUT_TOKENS", "CLAUDE_CODE_OAUTH_TOKEN"), "caller")
    task = {"prompt": "env >work", "setup": "env >setup", "check": "env >check"}
    plan = json.dumps([{**task, "env": {"CLAUDE_CODE_SIMPLE": "own"}}])
    done = sessionrun("--sync", "--agent", "shell", "-", stdin=plan, env={**dropped, **kept})
    assert done.returncode == 0, done.stderr
    for name in ("work", "setup", "check"):
        found = dict(line.partition("=")[::2] for line in (sessionrun.cwd / name).read_text().splitlines())
        assert found.items() >= {**kept, "CLAUDE_CODE_SIMPLE": "own"}.items()
        assert not [one for one in dropped if found.get(one) == "caller"]


# --- before a session is created ---

OLLAMA = """echo "$@" >>asked
case "$1 $2" in
"show llama"|"run llama") ;;
show*) echo "Error: model '$2' not found" >&2; exit 1 ;;
*) exit 1 ;;
esac
"""
"""Its model `llama` was pulled, and no other."""


@pytest.fixture
def bare(sessionrun: Command, own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """A machine on which nothing but fakes of this test is installed, and no key is set."""
    programs = own_place / "bin"
    programs.mkdir()
    for name, value in own_path(programs).items():
        monkeypatch.setenv(name, value)
    return sessionrun


def task(agent: str, **fields: Any) -> dict[str, Any]:
    return {"prompt": "x", "agent": agent, **fields}


def run(command: Command, *tasks: dict[str, Any], words: tuple[str, ...] = ()) -> tuple[int, str]:
    done = command("-q", "--no-yolo", *words, stdin=json.dumps(tasks))
    return done.returncode, done.stderr.strip()


def test_nothing_is_started_with_an_agent_that_is_not_signed_in(bare: Command) -> None:
    make_program(bare.cwd / "bin" / "codex", f"#!{sys.executable}\nopen('called', 'w')")
    code, told = run(bare, task("codex"))
    how = "codex login, or set OPENAI_API_KEY (--no-ready starts all the same)"
    assert (code, told) == (2, f"sessionrun: error: agent 'codex' is not signed in: {how}")
    assert not bare.results.exists()
    assert not (bare.cwd / "called").exists(), "a program was run to find out"
    warned = "sessionrun: warning: agent 'codex' is not signed in: codex login, or set OPENAI_API_KEY"
    assert run(bare, task("codex"), words=("--dry-run",)) == (0, warned)
    assert run(bare, task("codex"), words=("--no-ready",))[0] == 0
    assert run(bare, task("codex", env={"OPENAI_API_KEY": "k"}))[0] == 0
    (bare.cwd / ".env").touch()  # it may hold a key
    assert run(bare, task("codex"))[0] == 0


@pytest.mark.parametrize("name", ["claude", "codex", "gemini"])
def test_a_wrapper_that_may_have_a_key_is_asked_and_not_refused(bare: Command, name: str) -> None:
    make_program(bare.cwd / "bin" / name, "echo $* >>called; read code <code; exit $code")
    (bare.cwd / "code").write_text("0\n")
    assert run(bare, task(name))[0] == 0
    (bare.cwd / "code").write_text("1\n")
    question = " ".join(PROGRAMS[name].status)
    assert run(bare, task(name))[0] == (2 if question else 0)
    assert not question or (bare.cwd / "called").read_text().splitlines()[0] == question


def test_who_takes_over_is_signed_in_too(bare: Command) -> None:
    for name in ("claude", "codex"):
        make_program(bare.cwd / "bin" / name, f"#!{sys.executable}")
    mixed = task("claude", fallback="codex", env={"ANTHROPIC_API_KEY": "k"}, args=["--only-for-the-first"])
    code, told = run(bare, mixed)
    assert (code, "agent 'codex' is not signed in" in told, "'claude'" in told) == (2, True, False)


PLAIN = {"HOME": "/nowhere"}
AIDER, CODEX = table.BUILTIN["aider"], table.BUILTIN["codex"]


@pytest.mark.parametrize(
    ("agent", "environ", "use"),
    [
        (AIDER, {}, Use(models=("ollama/llama",))),
        (AIDER, {"MISTRALAI_API_KEY": "k"}, None),
        (AIDER, {"OLLAMA_API_BASE": "http://127.0.0.1"}, None),
        (CODEX, {}, Use(args=("--oss",))),
        (AgentSpec("mine", ("codex", "exec", "--oss", "-")), {}, None),
        (table.BUILTIN["opencode"], {}, None),
        (AgentSpec("mine", ("/opt/my-agent",)), {"OPENAI_API_KEY": "k"}, None),
    ],
)
def test_what_may_work_without_a_sign_in_cannot_be_told(
    agent: AgentSpec, environ: dict[str, str], use: Use | None
) -> None:
    assert find_sign_in(agent, {**PLAIN, **environ}, "linux", use)[0] == "cannot tell"
    assert find_sign_in(table.BUILTIN["shell"], {}, "linux") == ("not needed", None)
    assert find_sign_in(AIDER, PLAIN, "linux", Use(models=(None,)))[0] == "no"
    assert find_sign_in(CODEX, {**PLAIN, "MISTRAL_API_KEY": "k"}, "linux", Use(models=("m",)))[0] == "no"


@pytest.mark.parametrize("name", KNOWN)
def test_settings_of_a_project_above_may_hold_a_key(name: str, tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    for setting in (".env", *PROGRAMS[name].project):
        file = tmp_path / setting
        file.parent.mkdir(exist_ok=True)
        file.touch()
        use = Use(directories=(str(deep),))
        assert find_sign_in(table.BUILTIN[name], PLAIN, "linux", use) == ("cannot tell", str(file))
        file.unlink()


def test_each_model_that_tasks_name_must_be_pulled(bare: Command) -> None:
    make_program(bare.cwd / "bin" / "ollama", OLLAMA)
    tasks = [task("ollama", model=model) for model in ("llama", "lama", "llama")]
    code, told = run(bare, *tasks)
    assert code == 2
    assert "agent 'ollama' is not ready: ollama show lama: exit code 1: Error: model 'lama' not found" in told
    assert "'ollama pull MODEL' fetches a model" in told
    assert sorted((bare.cwd / "asked").read_text().splitlines()) == ["show lama", "show llama"]
    code, told = run(bare, task("ollama"))
    assert (code, "ollama show: a task names no model: add --model" in told) == (2, True)
    assert not bare.results.exists()
    assert run(bare, task("ollama", model="llama"))[0] == 0


def test_a_question_about_a_model_needs_one() -> None:
    asking = AgentSpec("a", ("true",), ready=("sh", "-c", "exit 1", "{model}"))
    assert find_unready([asking]) == {}
    (line,) = find_unready([replace(asking, ready=("sh", "-c", "\n", "{model}"))], {"a": (None,)}).values()
    assert "\n" not in line
    assert find_unready([asking], {"a": ("m",)}) == {"a": "sh -c 'exit 1' m: exit code 1"}


def test_a_dry_run_needs_nothing_installed_and_a_launch_says_how(bare: Command) -> None:
    tasks = json.dumps([task("qwen"), task("ollama", model="m")])
    done = bare("--dry-run", stdin=tasks)
    assert done.returncode == 0
    warnings = [line for line in done.stderr.splitlines() if "warning" in line]
    assert [name in line for name, line in zip(("ollama", "qwen"), warnings, strict=True)] == [True, True]
    assert f"'qwen' is not on PATH (to install it: {PROGRAMS['qwen'].install})" in warnings[1]
    done = bare(stdin=tasks)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"to install it: {PROGRAMS['ollama'].install}" in done.stderr

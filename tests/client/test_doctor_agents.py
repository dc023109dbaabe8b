"""`doctor agents`, with fake programs on a PATH of their own and a home directory of the test's."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from test_documents import part

from sessionrun.agents import table
from sessionrun.agents.callers import CALLERS
from sessionrun.agents.installed import PROGRAMS, find_known, find_sign_in, is_known_version
from sessionrun.client.installed import Examined, Host
from sessionrun.client.installed import examine as examine_agents
from sessionrun.model.spec import AgentSpec

VERSIONS = {
    "claude": "2.1.329 (Claude Code)",
    "codex": "codex-cli 0.169.0",
    "qwen": "0.24.4",
    "gemini": "0.62.0",
    "opencode": "1.180.2",
    "aider": "aider 0.86.2",
}
PAIRS = [(name, known) for name, known in PROGRAMS.items()]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with nothing in it but what a test puts there."""
    folder = tmp_path / "programs"
    folder.mkdir()
    return folder


def install(folder: Path, name: str, script: str) -> Path:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def examine(folder: Path, *own: AgentSpec, euid: int = 1000, **environ: str) -> dict[str, Examined]:
    host = Host(True, euid, {"PATH": str(folder), "HOME": os.environ["HOME"], **environ}, "linux")
    known = {**table.BUILTIN, **{agent.name: agent for agent in own}}
    return {one.name: one for one in examine_agents(known, host)}


def test_versions_that_we_know_and_others(programs: Path) -> None:
    for name, said in VERSIONS.items():
        install(programs, name, f"echo '{said}'")
    found = examine(programs)
    assert {name: found[name].known for name in VERSIONS} == {
        "claude": True,
        "codex": True,
        "qwen": True,
        "gemini": False,
        "opencode": False,
        "aider": True,
    }
    assert found["codex"].version == "codex-cli 0.169.0"
    assert found["codex"].path == str(programs / "codex")
    signed_in = examine(programs, GEMINI_API_KEY="k")["gemini"]
    assert signed_in.hint == "not tested with this version, but with 0.61: its output may be misread"


@pytest.mark.parametrize(("name", "known"), PAIRS)
def test_the_known_version_is_the_one_that_its_reader_was_written_for(name: str, known: Any) -> None:
    assert f"({known.version})" in (import_module(f"sessionrun.agents.{name}").__doc__ or "")


@pytest.mark.parametrize(("said", "answer"), [("v2.1", True), ("12.1.0", False), ("2.10", False), ("dev", None)])
def test_what_a_program_says_of_its_version(said: str, answer: bool | None) -> None:
    assert is_known_version(PROGRAMS["claude"], said) is answer


def test_programs_that_misbehave_are_told_all_the_same(programs: Path) -> None:
    install(programs, "claude", "exit 1")
    install(programs, "codex", "echo >&2 broken; kill -9 $$")
    (programs / "qwen").write_text("not executable")
    bad = install(programs, "gemini", "")
    bad.write_bytes(b"#!/no/such/interpreter\n")
    found = examine(programs)
    assert [found[name].version for name in ("claude", "codex", "qwen", "gemini")] == [None] * 4
    assert (found["claude"].known, found["qwen"].path) == (None, None)
    assert found["qwen"].hint == "not found; to install it: npm install -g @qwen-code/qwen-code"
    assert not found["qwen"].startable


# --- signed in ---


@pytest.mark.parametrize(("name", "known"), PAIRS)
def test_a_file_or_a_variable_shows_who_is_signed_in(name: str, known: Any, tmp_path: Path) -> None:
    agent, environ = table.BUILTIN[name], {"HOME": str(tmp_path)}
    nothing = ("cannot tell" if known.free else "no", None)
    assert find_sign_in(agent, environ, "linux") == nothing
    assert find_sign_in(agent, environ, "darwin") == ("cannot tell", None), "there may be a keychain"
    for variable in known.variables:
        assert find_sign_in(agent, {**environ, variable: "secret"}, "darwin") == ("yes", variable)
        assert find_sign_in(agent, {**environ, variable: ""}, "linux") == nothing
    for place in known.settings:
        path = Path(place.path(environ))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        assert find_sign_in(agent, environ, "linux") == ("cannot tell", str(path))
        path.unlink()
    path = Path(known.credentials.path(environ))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    assert find_sign_in(agent, environ, "linux") == ("yes", str(path))


def test_credentials_are_not_opened(tmp_path: Path) -> None:
    """A FIFO in their place would hold up whoever opened it."""
    (tmp_path / "codex").mkdir()
    os.mkfifo(tmp_path / "codex" / "auth.json", 0)
    environ = {"HOME": "/nowhere", "CODEX_HOME": str(tmp_path / "codex")}
    assert find_sign_in(table.BUILTIN["codex"], environ, "linux")[0] == "yes"
    assert stat.S_ISFIFO((tmp_path / "codex" / "auth.json").stat().st_mode)


def test_what_is_not_known_is_not_guessed() -> None:
    assert find_sign_in(table.BUILTIN["shell"], {}, "linux") == ("not needed", None)
    own = AgentSpec("mine", ("/opt/my-agent",))
    assert find_sign_in(own, {"OPENAI_API_KEY": "k"}, "linux") == ("cannot tell", None)
    assert find_known(own) is None
    assert find_known(AgentSpec("mine", ("/opt/codex",))) == PROGRAMS["codex"]


def test_the_environment_of_an_agent_is_its_own(programs: Path) -> None:
    install(programs, "codex", 'echo "codex-cli 0.169.$PATCH"')
    own = replace(table.BUILTIN["codex"], name="mine", env={"CODEX_API_KEY": "k", "PATCH": "7"}, provider="work")
    found = examine(programs, own)
    mine = found["mine"]
    assert (mine.signed_in, mine.signed_in_by, mine.provider) == ("yes", "CODEX_API_KEY", "work")
    assert (mine.version, mine.builtin, mine.hint) == ("codex-cli 0.169.7", False, None)
    assert found["codex"].signed_in == "no"
    assert found["codex"].hint == "not signed in, as far as can be seen: codex login, or set OPENAI_API_KEY"


# --- who could start ---


def test_root_is_refused_by_some(programs: Path) -> None:
    install(programs, "claude", "echo 2.1.1")
    refused = examine(programs, euid=0, ANTHROPIC_API_KEY="k")["claude"]
    assert not refused.startable
    assert refused.hint is not None
    assert "refuses --dangerously-skip-permissions as root" in refused.hint
    allowed = examine(programs, euid=0, ANTHROPIC_API_KEY="k", IS_SANDBOX="1")["claude"]
    assert allowed.startable
    assert allowed.hint is None


def test_ready_is_asked_of_those_that_are_there(programs: Path) -> None:
    ready = install(programs, "ready", 'echo "no quota" >&2; exit $1')
    install(programs, "program", "echo 1.0")
    one = AgentSpec("one", (str(programs / "program"),), ready=(str(ready), "0"))
    two = replace(one, name="two", ready=(str(ready), "5"))
    gone = replace(two, name="gone", argv=("no-such-agent",))
    found = examine(programs, one, two, gone)
    assert {name: found[name].ready for name in ("one", "two", "gone")} == {
        "one": True,
        "two": False,
        "gone": None,
    }
    assert found["two"].hint == f"not ready: {ready} 5: exit code 5: no quota"
    assert [found[name].startable for name in ("one", "two", "gone")] == [True, False, False]


# --- the command ---


def own_path(programs: Path) -> Mapping[str, str]:
    """What is needed to run us, and no agent CLI that happens to be installed."""
    for name in ("env", "git", "sh"):
        (programs / name).symlink_to(f"/bin/{name}" if Path(f"/bin/{name}").exists() else f"/usr/bin/{name}")
    keys = {name for known in PROGRAMS.values() for name in known.variables}
    return {"PATH": str(programs), **dict.fromkeys(keys, "")}


def test_nobody_could_start(sessionrun: Command, programs: Path) -> None:
    done = sessionrun("doctor", "agents", env=own_path(programs))
    assert (done.returncode, done.stderr) == (1, "")
    assert "claude: not found; to install it: npm install -g @anthropic-ai/claude-code\n" in done.stdout
    assert "shell" in done.stdout


def test_the_table(sessionrun: Command, programs: Path) -> None:
    install(programs, "aider", "echo aider 0.86.2")
    done = sessionrun("doctor", "agents", env={**own_path(programs), "GROQ_API_KEY": "top-secret"})
    assert (done.returncode, done.stderr) == (0, "")
    heads, aider, shell, empty, *hints = done.stdout.splitlines()
    assert heads.split() == ["AGENT", "PROVIDER", "VERSION", "KNOWN", "SIGNED", "IN", "READY", "PROGRAM"]
    assert aider.split() == ["aider", "aider", "aider", "0.86.2", "yes", "yes", "-", str(programs / "aider")]
    assert shell.split()[:1] == ["shell"]
    assert empty == ""
    assert [hint.partition(":")[0] for hint in hints] == [
        "claude",
        "codex",
        "qwen",
        "gemini",
        "opencode",
        "ollama",
        "walls",
    ]
    assert hints[-1] == "walls: bubblewrap (bwrap) is not installed; install it or leave the sandbox off"
    assert "top-secret" not in done.stdout


def test_as_json(sessionrun: Command, programs: Path) -> None:
    install(programs, "codex", "echo; echo codex-cli 0.169.1; cat")
    done = sessionrun("doctor", "agents", "--json", env=own_path(programs))
    assert done.returncode == 0
    records = {record["name"]: record for record in json.loads(done.stdout)["agents"]}
    assert set(records) == set(table.BUILTIN)
    assert records["codex"] == {
        "name": "codex",
        "builtin": True,
        "provider": "codex",
        "path": str(programs / "codex"),
        "version": "codex-cli 0.169.1",
        "known": True,
        "known_version": "0.169",
        "signed_in": False,
        "needs_sign_in": True,
        "signed_in_by": None,
        "refusal": None,
        "ready": None,
        "unready": None,
        "hint": "not signed in, as far as can be seen: codex login, or set OPENAI_API_KEY",
        "startable": True,
    }


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


def test_what_is_not_passed_on_is_shown(sessionrun: Command, programs: Path) -> None:
    env = {**own_path(programs), "CLAUDECODE": "1", "CLAUDE_CODE_SESSION_KIND": "bg", "OPENAI_API_KEY": "k"}
    assert "not passed on: CLAUDECODE, CLAUDE_CODE_SESSION_KIND:" in sessionrun("doctor", "agents", env=env).stdout
    shown = json.loads(sessionrun("doctor", "agents", "--json", env=env).stdout)
    assert shown["not_passed_on"] == ["CLAUDECODE", "CLAUDE_CODE_SESSION_KIND"]
    page = part("sessionrun.1", "ENVIRONMENT").text
    assert all(name in page for name in CALLERS)

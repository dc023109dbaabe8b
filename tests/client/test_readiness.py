"""What is asked before a session is created: who is signed in, whose model is there.  All programs are fakes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from test_doctor_agents import install, own_path

from sessionrun.agents import table
from sessionrun.agents.installed import PROGRAMS, Use, find_sign_in
from sessionrun.agents.probing import find_unready
from sessionrun.agents.table import INSTALL
from sessionrun.model.spec import AgentSpec

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
    codex = bare.cwd / "bin" / "codex"
    codex.write_text(f"#!{sys.executable}\nopen('called', 'w')")
    codex.chmod(0o755)
    code, told = run(bare, task("codex"))
    how = "codex login, or set OPENAI_API_KEY (--no-ready starts all the same)"
    assert (code, told) == (2, f"sessionrun: error: agent 'codex' is not signed in: {how}")
    assert not bare.results.exists()
    assert not (bare.cwd / "called").exists(), "a program was run to find out"
    assert run(bare, task("codex"), words=("--dry-run",)) == (
        0,
        "sessionrun: warning: agent 'codex' is not signed in: codex login, or set OPENAI_API_KEY",
    )
    assert run(bare, task("codex"), words=("--no-ready",))[0] == 0
    assert run(bare, task("codex", env={"OPENAI_API_KEY": "k"}))[0] == 0
    (bare.cwd / ".env").touch()  # it may hold a key
    assert run(bare, task("codex"))[0] == 0


@pytest.mark.parametrize("name", ["claude", "codex", "gemini"])
def test_a_wrapper_that_may_have_a_key_is_asked_and_not_refused(bare: Command, name: str) -> None:
    install(bare.cwd / "bin", name, "echo $* >>called; read code <code; exit $code")
    (bare.cwd / "code").write_text("0\n")
    assert run(bare, task(name))[0] == 0
    (bare.cwd / "code").write_text("1\n")
    question = " ".join(PROGRAMS[name].status)
    assert run(bare, task(name))[0] == (2 if question else 0)
    assert not question or (bare.cwd / "called").read_text().splitlines()[0] == question


def test_who_takes_over_is_signed_in_too(bare: Command) -> None:
    for name in ("claude", "codex"):
        install(bare.cwd / "bin", name, "exit 1")
    mixed = task("claude", fallback="codex", env={"ANTHROPIC_API_KEY": "k"})
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
    ],
)
def test_what_may_work_without_a_sign_in_cannot_be_told(
    agent: AgentSpec, environ: dict[str, str], use: Use | None
) -> None:
    assert find_sign_in(agent, {**PLAIN, **environ}, "linux", use)[0] == "cannot tell"
    assert find_sign_in(AIDER, PLAIN, "linux", Use(models=(None,)))[0] == "no"
    assert find_sign_in(CODEX, {**PLAIN, "MISTRAL_API_KEY": "k"}, "linux", Use(models=("m",)))[0] == "no"


@pytest.mark.parametrize("name", PROGRAMS)
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
    install(bare.cwd / "bin", "ollama", OLLAMA)
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
    assert find_unready([asking], {"a": ("m",)}) == {"a": "sh -c 'exit 1' m: exit code 1"}


def test_a_dry_run_needs_nothing_installed_and_a_launch_says_how(bare: Command) -> None:
    tasks = json.dumps([task("qwen"), task("ollama", model="m")])
    done = bare("--dry-run", stdin=tasks)
    assert done.returncode == 0
    warnings = [line for line in done.stderr.splitlines() if "warning" in line]
    assert [name in line for name, line in zip(("ollama", "qwen"), warnings, strict=True)] == [True, True]
    assert f"'qwen' is not on PATH (to install it: {INSTALL['qwen']})" in warnings[1]
    done = bare(stdin=tasks)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"to install it: {INSTALL['ollama']}" in done.stderr
    done = bare("--dry-run", stdin='["x"]')
    assert (done.returncode, "Agent: claude (" in done.stdout) == (0, True)
    assert "is not on PATH" in done.stderr
    done = bare(stdin='["x"]')
    assert (done.returncode, "no agent CLI found on PATH" in done.stderr) == (2, True)

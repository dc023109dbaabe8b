"""Starting the agents: argument lists, what is refused before anything starts, and whether an agent is ready."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest
from conftest import Command, eventually, is_gone
from stages import make_program

from sessionrun.agents import table
from sessionrun.agents.installed import find_unready
from sessionrun.model.errors import InputError
from sessionrun.model.spec import AgentSpec

ARGV = {
    "claude": "claude -p --output-format stream-json --verbose --model=M --dangerously-skip-permissions",
    "codex": "codex exec --json --skip-git-repo-check --model=M --dangerously-bypass-approvals-and-sandbox -",
    "qwen": "qwen --output-format stream-json --model=M --yolo",
    "gemini": "gemini --output-format stream-json --skip-trust --model=M --yolo",
    "opencode": "opencode run --format json --model=M --auto",
    "aider": "aider --message-file=/p/1 --no-pretty --no-fancy-input --no-analytics --no-check-update "
    "--no-show-release-notes --no-show-model-warnings --no-gitignore --no-suggest-shell-commands --no-detect-urls "
    "--model=M --yes-always",
    "ollama": "ollama run M",
    "shell": "sh /p/1",
}


@pytest.mark.parametrize("name", table.BUILTIN)
def test_builtin_agents(name: str) -> None:
    agent = table.BUILTIN[name]
    table.check_agent(agent)
    assert (agent.name, agent.env) == (name, {}), "the user's environment holds"
    argv = table.build_argv(agent, model="M", approve=True, prompt_file="/p/1")
    assert argv == tuple(ARGV[name].split())
    assert ("/p/1" in " ".join(argv)) is (agent.stdin == "none"), "the prompt reaches the agent in exactly one way"
    plain = table.build_argv(agent, model=None, approve=False, prompt_file="/p/1")
    model = tuple(element.replace("{model}", "M") for element in agent.model_args)
    assert plain == tuple(element for element in argv if element not in (*model, *agent.approve_args))


def test_lists_are_appended_where_their_token_is_missing() -> None:
    agent = AgentSpec(name="a", argv=("a", "x"), model_args=("-m", "{model}"), approve_args=("-y",))
    assert table.build_argv(agent, model="M", approve=True, prompt_file="/p") == ("a", "x", "-m", "M", "-y")
    agent = AgentSpec(name="a", argv=("a", "{approve_args}", "x"), model_args=("-m",), approve_args=("-y",))
    assert table.build_argv(agent, model="M", approve=True, prompt_file="/p") == ("a", "-y", "x", "-m")
    assert table.build_argv(agent, model=None, approve=False, prompt_file="/p") == ("a", "x")


def test_tokens_are_replaced_once_and_as_text() -> None:
    agent = AgentSpec(
        name="a",
        argv=("a", "--in={prompt_file}", '{"k": {"x": 1}}', "{0}", "%s", "{other} {prompt_file}"),
        model_args=("{model}:{prompt_file}", "{model_args}"),
    )
    argv = table.build_argv(agent, model="{prompt_file}{model}", approve=False, prompt_file="/{model}/{x}")
    assert argv == (
        "a",
        "--in=/{model}/{x}",
        '{"k": {"x": 1}}',
        "{0}",
        "%s",
        "{other} /{model}/{x}",
        "{prompt_file}{model}:/{model}/{x}",
        "{model_args}",
    )


@pytest.mark.parametrize(
    "argv",
    [
        ("tool", '{"json": true}', "-c", '{"nested": {"a": {}}}'),
        ("tool", "--format={name}", "a{b}c", "{}", "{0}", "{ word }", "{a-b}", "${HOME}"),
        ("tool", "{prompt_file}", "{model_args}", "{approve_args}", "--at={prompt_file}!"),
    ],
)
def test_check_agent_lets_foreign_braces_pass(argv: tuple[str, ...]) -> None:
    table.check_agent(AgentSpec(name="mine", argv=argv, model_args=("--m={model}",)))


def test_find_program_takes_the_first_executable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claude = table.BUILTIN["claude"]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "claude").mkdir()
    plain = make_program(tmp_path / "b" / "claude", "")
    plain.chmod(0o644)
    good = make_program(tmp_path / "c" / "claude", "")
    monkeypatch.chdir(tmp_path / "c")
    path = os.pathsep.join(["", ".", str(tmp_path / "a"), str(plain.parent), str(good.parent)])
    assert table.find_program(claude, path) == str(good)
    assert table.find_program(claude, os.pathsep.join(["", ".", "c"])) is None, "relative entries do not count"
    assert table.find_program(table.BUILTIN["shell"], None) in ("/bin/sh", "/usr/bin/sh")
    assert table.find_program(AgentSpec(name="m", argv=("./claude",)), "") == str(good), "PATH does not matter"
    assert table.find_program(AgentSpec(name="m", argv=("./other",)), str(tmp_path / "c")) is None


CLAUDE, QWEN = table.BUILTIN["claude"], table.BUILTIN["qwen"]
MINE = AgentSpec("mine", ("claude",), approve_args=("--dangerously-skip-permissions",), env={"IS_SANDBOX": "1"})


@pytest.mark.parametrize(
    ("agent", "approve", "euid", "extra", "may"),
    [
        (CLAUDE, True, 0, {}, False),
        (CLAUDE, True, 0, {"IS_SANDBOX": "0"}, False),
        (CLAUDE, True, 0, {"IS_SANDBOX": "true"}, False),  # claude 2.1 takes nothing but 1
        (CLAUDE, True, 0, {"IS_SANDBOX": "1"}, True),
        (CLAUDE, True, 0, {"CLAUDE_CODE_BUBBLEWRAP": "1"}, True),
        (CLAUDE, False, 0, {}, True),
        (CLAUDE, True, 1000, {}, True),
        (MINE, True, 0, {}, True),
        (QWEN, True, 0, {}, True),
    ],
)
def test_which_agents_may_be_root(
    tmp_path: Path, *, agent: AgentSpec, approve: bool, euid: int, extra: dict[str, str], may: bool
) -> None:
    program = make_program(tmp_path / agent.argv[0], "")
    with nullcontext() if may else pytest.raises(InputError, match="IS_SANDBOX=1"):
        environ = {"PATH": str(tmp_path), **extra}
        assert table.check_startable(agent, approve=approve, euid=euid, environ=environ) == str(program)


# --- `ready`: asked before a session starts, all at once ---

OWN = '[agents.{}]\nargv = ["/bin/sh", "{{prompt_file}}"]\nstdin = "none"\nprompt_kind = "script"\nready = {}\n'


def configure(sessionrun: Command, **ready: str) -> None:
    """Agents of these names with these scripts as their ready commands."""
    words = {name: f'["/bin/sh", "-c", {script!r}]' for name, script in ready.items()}
    (sessionrun.cwd / "sessionrun.toml").write_text("".join(OWN.format(name, ask) for name, ask in words.items()))


def test_who_is_ready_starts(sessionrun: Command) -> None:
    configure(sessionrun, mine="echo noise; echo asked >>log; ! read line", other="exit 3")
    session = sessionrun.start([{"prompt": "true", "agent": "mine"}, {"prompt": "true", "agent": "mine"}])
    assert sessionrun.wait(session)["outcome"] == "succeeded"
    assert (sessionrun.cwd / "log").read_text() == "asked\n", "once, and only of agents that are used"


def test_who_is_not_ready_starts_nothing(sessionrun: Command) -> None:
    configure(sessionrun, mine="echo first >&2; printf 'not \\033[1msigned in\\n\\n' >&2; exit 3", other="exit 0")
    plan = '[{"prompt": "touch made", "agent": "mine"}, {"prompt": "touch made", "agent": "other"}]'
    done = sessionrun(stdin=plan)
    assert (done.returncode, done.stdout) == (2, "")
    error = done.stderr.splitlines()[-1]
    assert error.startswith("sessionrun: error: agent 'mine' is not ready: /bin/sh -c 'echo first")
    assert "exit code 3: not " in error
    assert error.endswith("signed in (--no-ready starts all the same)")
    assert "\033" not in done.stderr
    assert sorted(path.name for path in sessionrun.cwd.iterdir()) == ["sessionrun.toml"]
    assert sessionrun("--dry-run", stdin=plan).returncode == 0, "a dry run asks nobody"
    done = sessionrun("-q", "--no-ready", stdin=plan)
    assert done.returncode == 0
    sessionrun.sessions.append(done.stdout.strip())
    assert sessionrun.wait(sessionrun.sessions[-1])["outcome"] == "succeeded"


def test_several_are_asked_at_once_and_nobody_is_waited_for_longer_than_allowed(tmp_path: Path) -> None:
    stays = tmp_path / "pid"
    slow = {
        "hangs": f"trap '' TERM; sleep 600 & echo $! >{stays}; echo waiting >&2; wait",
        "says": "test $WORD = own || exit 9; sleep 0.5",
        "loud": "yes | head -c 1000000; yes | head -c 1000000 >&2; exit 4",
        "killed": "kill -9 $$",
    }
    begun = time.monotonic()
    not_there = AgentSpec("mine", ("sh",), ready=("no such program", "--check"))
    ready = {name: ("/bin/sh", "-c", script) for name, script in slow.items()}
    asked = [AgentSpec(name, ("sh",), ready=words, env={"WORD": "own"}) for name, words in ready.items()]
    unready = find_unready([*asked, not_there, AgentSpec("other", ("sh",))], timeout_s=2.0)
    assert time.monotonic() - begun < 300, "the one that hangs was waited for"
    assert unready.pop("mine") == "'no such program' --check: cannot be started: No such file or directory"
    assert set(unready) == {"hangs", "loud", "killed"}
    assert unready["hangs"].endswith("no answer after 2 s: waiting")
    assert unready["killed"].endswith("killed by signal 9")
    assert "exit code 4" in unready["loud"]
    pid = int(stays.read_text())
    eventually(lambda: not psutil.pid_exists(pid) or is_gone(psutil.Process(pid)))

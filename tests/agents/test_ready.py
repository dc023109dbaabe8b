"""`ready` of agents: asked before a session starts, all at once; who is not ready keeps it from starting."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
from conftest import Command, eventually, is_gone

from sessionrun.agents.installed import find_unready
from sessionrun.model.spec import AgentSpec

OWN = '[agents.{}]\nargv = ["/bin/sh", "{{prompt_file}}"]\nstdin = "none"\nprompt_kind = "script"\nready = {}\n'


def agent(name: str, script: str) -> AgentSpec:
    return AgentSpec(name, ("sh",), ready=("/bin/sh", "-c", script), env={"WORD": "own"})


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
    unready = find_unready([agent(name, script) for name, script in slow.items()], timeout_s=2.0)
    assert time.monotonic() - begun < 300, "the one that hangs was waited for"
    assert set(unready) == {"hangs", "loud", "killed"}
    assert unready["hangs"].endswith("no answer after 2 s: waiting")
    assert unready["killed"].endswith("killed by signal 9")
    assert "exit code 4" in unready["loud"]
    pid = int(stays.read_text())
    eventually(lambda: not psutil.pid_exists(pid) or is_gone(psutil.Process(pid)))


def test_a_command_that_is_not_there() -> None:
    asked = AgentSpec("mine", ("sh",), ready=("no such program", "--check"))
    assert find_unready([asked, AgentSpec("other", ("sh",))]) == {
        "mine": "'no such program' --check: cannot be started: No such file or directory"
    }

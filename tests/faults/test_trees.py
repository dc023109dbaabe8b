"""Agents that do not want to end, whoever of the chain dies meanwhile, and many tasks at once.

No process is left, no other is touched, and nothing runs twice.
"""

from __future__ import annotations

import os
import random
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from conftest import eventually, is_gone, slow

from sessionrun.store import locks
from sessionrun.store.logs import fold_ledger, read_log
from sessionrun.store.processes import JOB_MARKER, environment, identify, is_alive
from sessionrun.store.session import SessionDir

from .chain import ROLES, Role, find_chain, find_left, kill_role, kill_surely
from .oracle import CODES, count_executed, examine, has_ended, kill_all, load_outcome, make_plan
from .place import Place

AGENT = """
[agents.own]
argv = ["sh", "{{prompt_file}}"]
stdin = "none"
prompt_kind = "script"
stop_grace_s = {grace_s}
"""
CHAIN_MB = 64
"""For root, keeper and supervisor together, resident, shared pages counted for each."""

_TELL = "echo $$ >> pids"
_SLEEPER = f"setsid sh -c '{_TELL}; exec sleep 600'"
_DAEMON = """\
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(os.open("pids", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), b"%d\\n" % os.getpid())
        time.sleep(600)
    os._exit(0)
os.wait()
"""
_MAKE_DAEMON = f"{shlex.quote(sys.executable)} -c {shlex.quote(_DAEMON)}"

STUBBORN = {
    "ignores TERM": f"trap '' TERM; {_TELL}; while :; do sleep 0.1; done",
    "daemon": f"{_MAKE_DAEMON}; {_TELL}; sleep 600",
    "forks on TERM": f'trap "{_SLEEPER} & exit 1" TERM; {_TELL}; while :; do sleep 0.05; done',
    "stopped": f"{_TELL}; kill -STOP $$; sleep 600",
    "tool ignores TERM": f"(trap '' TERM; exec {_SLEEPER}) & {_TELL}; wait",
}
LEAVES = {
    "holds its output": f"{_SLEEPER} &\n while ! [ -s pids ]; do sleep 0.01; done; sleep 0.3; exit 3",
    "daemon": f"{_MAKE_DAEMON}; while ! [ -s pids ]; do sleep 0.01; done; sleep 0.3; exit 3",
}


def pids_of(folder: Path) -> list[int]:
    """The pids that were told in a folder."""
    file = folder / "pids"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def start(place: Place, scripts: dict[str, str], grace_s: float = 0.5) -> SessionDir:
    """A session with a task for each script, each in a folder of its own; all of them are running."""
    (place.path / "sessionrun.toml").write_text(AGENT.format(grace_s=grace_s))
    prompts = []
    for number, script in enumerate(scripts.values()):
        folder = place.path / f"t{number}"
        folder.mkdir()
        prompts.append({"id": folder.name, "prompt": script, "cwd": str(folder)})
    session = place.start({"prompts": prompts}, "--max-parallel", "16", "--agent", "own")
    folders = [place.path / prompt["id"] for prompt in prompts]
    eventually(lambda: all(pids_of(folder) for folder in folders))
    return session


def assert_nothing_left(place: Place, session: SessionDir) -> None:
    eventually(lambda: has_ended(session) and not session.is_alive())
    pids = [pid for folder in place.path.glob("t*") for pid in pids_of(folder)]
    assert [pid for pid in pids if identify(pid) is not None] == []
    assert find_left(session.path) == []


@pytest.mark.parametrize(
    ("victim", "meanwhile"),
    [
        ("keeper", False),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in ((None, False), ("supervisor", False), ("keeper", True))
        ),
    ],
)
def test_agents_that_do_not_want_to_end(place: Place, victim: Role | None, meanwhile: bool) -> None:
    """Whoever dies before they are asked to, or while they are stopped."""
    session = start(place, STUBBORN, grace_s=3.0 if meanwhile else 0.5)  # by then the keeper has to be found
    eventually(lambda: len(pids_of(place.path / "t1")) == 2)
    if victim is not None and not meanwhile:
        kill_surely(session, victim)
    cancelling = place.start_verb("cancel", session.session_id)
    if meanwhile:
        eventually(lambda: len(pids_of(place.path / "t2")) > 1)  # TERM has come
        kill_surely(session, "keeper")
    _, said = cancelling.communicate(timeout=120)
    assert not said, said
    assert_nothing_left(place, session)
    assert {task["outcome"] for task in load_outcome(session)["tasks"]} == {"cancelled"}


@pytest.mark.slow
def test_what_they_leave_behind_is_stopped_by_the_next_keeper(place: Place) -> None:
    """Whoever holds on to a job's output, or has become a daemon; the job's code is kept."""
    session = start(place, LEAVES)
    kill_surely(session, "keeper")
    assert_nothing_left(place, session)
    assert [task["exit_code"] for task in load_outcome(session)["tasks"]] == [3, 3]


@pytest.mark.parametrize("victim", [None, *slow("keeper")])
def test_what_hides_is_ended_with_the_session(place: Place, victim: Role | None) -> None:
    """Whoever left the job's session, its tree and its environment, or only calls itself a session's."""
    hide = f"(setsid env -i NESTED sh -c '{_TELL}; exec sleep 600' &); "
    both = hide.replace("NESTED", "") + hide.replace("NESTED", "SESSIONRUN_PARENT=junk")
    session = start(place, {"hides": f"{both} while ! [ -e go ]; do sleep 0.05; done"})
    eventually(lambda: len(pids_of(place.path / "t0")) == 2)
    if victim is not None:
        kill_surely(session, victim)
        eventually(lambda: len(find_chain(session.path)["keeper"]) == 1)
    (place.path / "t0" / "go").touch()
    assert_nothing_left(place, session)


@pytest.mark.parametrize("end", ["cancel", *slow("by itself", "keeper", "root")])
def test_a_session_that_a_job_starts(place: Place, end: str) -> None:
    """It is nobody's tree but its own: the end of that job, of its keeper and of its session leave it alone."""
    (place.path / "inner").mkdir()
    inner = Place(place.path / "inner", place.environ)
    gate = f"echo $$ >> '{inner.path}/pids'; while ! [ -e '{inner.path}/go' ]; do sleep 0.05; done; exit 5"
    command = shlex.join(inner.run_argv({"prompts": [gate]}))
    stays = "; exec sleep 600" if end == "cancel" else ""
    outer = place.start({"prompts": [{"id": "o", "prompt": f"SESSIONRUN_FEEDBACK=/x {command}{stays}"}]})
    eventually(lambda: pids_of(inner.path))
    if end == "cancel":
        place.run_verb("cancel", outer.session_id)
    for role in ROLES:
        if role == end:
            kill_role(outer.path, role)
    eventually(lambda: has_ended(outer) and not outer.is_alive())
    session = next(SessionDir(path) for path in inner.results.glob("session-*"))
    job = identify(pids_of(inner.path)[0])
    assert job is not None
    chain = find_chain(session.path)
    assert all(len(chain[role]) == 1 for role in ROLES)
    (supervisor,) = chain["supervisor"]
    assert JOB_MARKER not in environment(supervisor.pid)
    assert environment(job.pid)[JOB_MARKER].startswith(f"{session.session_id}/")
    assert "SESSIONRUN_FEEDBACK" not in environment(job.pid)
    for pid in (supervisor.pid, job.pid):
        assert environment(pid)["SESSIONRUN_PARENT"] == f"{outer.session_id}/o/1/1/work/1"
    assert not find_left(outer.path)
    (inner.path / "go").touch()
    eventually(lambda: has_ended(session) and not session.is_alive())
    assert not is_alive(job)
    assert load_outcome(session)["tasks"][0]["exit_code"] == 5


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [200, 1000])
def test_a_line_without_an_end_costs_no_memory(place: Place, megabytes: int) -> None:
    size = megabytes * 1_000_000
    place.real = True
    script = f"{_TELL}; head -c {size} /dev/zero | tr '\\0' x; while ! [ -e go ]; do sleep 0.05; done"
    session = start(place, {"long": script})
    output = session.output_path("t0")
    eventually(lambda: output.stat().st_size == size)
    chain = find_chain(session.path)
    said = {role: Path(f"/proc/{one.pid}/status").read_text() for role in ROLES for one in chain[role]}
    peaks = {role: int(text.partition("VmHWM:")[2].split()[0]) / 1024 for role, text in said.items()}
    (place.path / "t0" / "go").touch()
    assert_nothing_left(place, session)
    assert set(peaks) == set(ROLES)
    assert sum(peaks.values()) < CHAIN_MB, peaks


# --- root or supervisor is stopped while the keeper is killed: the session goes on, and nothing runs twice ---

GATED_FROM = 8
"""Jobs that begin when so many have begun wait for the gate: none ends before its test disturbs it."""


@pytest.fixture
def gate(place: Place) -> Path:
    """The file for which jobs wait."""
    return place.path / "gate"


@pytest.fixture
def session(place: Place, gate: Path) -> SessionDir:
    """One of which a part has run; the rest waits for the gate."""
    waits = f"[ $(wc -l < '{place.executed}') -lt {GATED_FROM} ] || while ! [ -e '{gate}' ]; do sleep 0.05; done;"
    begun = place.start(make_plan(place.executed, 24, random.Random(7), more=waits), "--max-parallel", "2")
    eventually(place.executed.exists)
    return begun


@contextmanager
def stopped(session: SessionDir, role: Role) -> Iterator[psutil.Process]:
    """Who plays this role, stopped; it goes on afterwards, if it is still there."""
    (process,) = eventually(lambda: len(found := find_chain(session.path)[role]) == 1 and found)
    process.suspend()
    try:
        yield process
    finally:
        with suppress(psutil.NoSuchProcess):
            process.resume()


def assert_sound(place: Place, session: SessionDir) -> None:
    """It has ended as it should; no job was lost, and none ran twice."""
    eventually(lambda: has_ended(session))
    figures = examine(session, place.executed)
    assert figures.is_good, figures.wrong
    assert figures.lost == 0


def has_no_job(session: SessionDir) -> bool:
    """Whether every job that was started is gone, with its tree."""
    jobs = fold_ledger(read_log(session.ledger_path).payloads).jobs.values()
    return all(job.gone or job.lost for job in jobs if job.tried)


@pytest.mark.slow
def test_a_stopped_root(place: Place, session: SessionDir, gate: Path) -> None:
    with stopped(session, "root"):
        kill_surely(session, "keeper")
        eventually(lambda: not find_chain(session.path)["keeper"])
        assert session.held_locks()[-1] == "root.lock"
    gate.touch()
    assert_sound(place, session)


@pytest.mark.slow
def test_a_supervisor_that_goes_on(place: Place, session: SessionDir, gate: Path) -> None:
    with stopped(session, "supervisor") as first:
        old = find_chain(session.path)["keeper"]
        kill_surely(session, "keeper")
        eventually(lambda: find_chain(session.path)["keeper"] not in ([], old))
    eventually(lambda: is_gone(first))
    gate.touch()
    assert_sound(place, session)


def test_the_root_tells_how_jobs_of_a_dead_keeper_ended(place: Place, gate: Path) -> None:
    """The next keeper is not their parent, so only the root can see their codes; none of them is lost."""
    plan = make_plan(place.executed, 4, random.Random(7), more=f"while ! [ -e '{gate}' ]; do sleep 0.05; done;")
    session = place.start(plan, "--max-parallel", "4")
    eventually(lambda: sum(count_executed(session, place.executed).values()) == 4)
    old = find_chain(session.path)["keeper"]
    kill_surely(session, "keeper")
    eventually(lambda: find_chain(session.path)["keeper"] not in ([], old))
    gate.touch()
    assert_sound(place, session)


@pytest.mark.slow
def test_a_lock_that_another_process_holds_for_a_while(place: Place, session: SessionDir, gate: Path) -> None:
    """As a reader that was stopped while it looked: it is waited for."""
    held = list[int]()

    def seize() -> bool:  # the next supervisor may be faster
        kill_surely(session, "supervisor")
        held.extend(filter(None, [locks.hold(session.path / "lock", timeout_s=1.0)]))
        return bool(held)

    eventually(seize)
    gate.touch()
    eventually(lambda: has_no_job(session))
    waiting = eventually(lambda: find_chain(session.path)["supervisor"])
    eventually(lambda: is_gone(waiting[0]))
    os.close(*held)
    assert_sound(place, session)


# --- many short tasks at once ---

MANY = 10_000
LONG_S = 3600.0  # the limit of a hang; a busy machine may be slow


@pytest.mark.slow
def test_many_short_tasks_and_kills_on_the_way(place: Place) -> None:
    """Its first task ends last, so that there is always somebody to kill; at last nobody is left who could go on.

    Its supervisor shows where it stands after so much time on a processor, however busy the machine is.
    """
    gate = place.path / "gate"
    told = f"echo \"$SESSIONRUN_JOB $$\" >> '{place.executed}'"
    prompts = [{"id": f"t{number}", "prompt": f"{told}; exit {number % CODES}"} for number in range(MANY)]
    prompts[0]["prompt"] = f"{told}; while ! [ -e '{gate}' ]; do sleep 0.1; done"
    session = place.start({"prompts": prompts}, "--max-parallel", "16")
    kills: tuple[list[Role], ...] = (["supervisor"], ["keeper"], ["supervisor", "keeper"], [])
    for part, victims in enumerate(kills, 1):
        goal = MANY * part / 5

        def is_far(goal: float = goal) -> bool:
            summary = session.load_summary()
            return summary is not None and summary["completed"] > goal

        eventually(is_far, timeout_s=LONG_S)
        for role in victims:  # who has just forked a job is not told from it, and is spared at that moment
            eventually(lambda role=role: kill_role(session.path, role), timeout_s=LONG_S)  # type: ignore[misc]
    kill_all(session)
    before = session.load_status()
    place.resume(session)
    eventually(lambda: (status := session.load_status()) and status["seq"] > (before or {})["seq"])
    (supervisor,) = find_chain(session.path)["supervisor"]
    used = supervisor.cpu_times()
    assert used.user + used.system < 5.0
    gate.touch()
    eventually(lambda: has_ended(session), timeout_s=LONG_S)
    figures = examine(session, place.executed, may_lose=True)
    assert figures.is_good, figures.wrong[:5]
    assert (figures.tasks, figures.lost <= 16) == (MANY, True)

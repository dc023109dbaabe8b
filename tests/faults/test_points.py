"""Each process dies at each of its steps, or is refused what it asks for: nothing lost, nothing twice.

Points are rules of `tests/calls.py`, joined by a comma.  A sweep of a role goes on, one session for each call,
until its process comes to its end without having made so many.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from calls import Calls, needs_calls
from conftest import slow, wait_until

from sessionrun.store.session import SessionDir

from .oracle import HUNG_S, MOST_RESUMES, Figures, examine, examine_start, finish, kill_all, make_plan
from .place import Place, make_place

pytestmark = needs_calls

TASKS: Final = 4
_PARALLEL_WORDS: Final = ("--max-parallel", "2")
AT_ONCE: Final = 3
SWEPT: Final = ("launcher", "daemon", "root", "keeper", "supervisor")
LAST: Final = 400
"""More calls than any of the roles makes in such a session."""


def crash_at_start(place: Place, calls: Calls, figures: Figures) -> None:
    """A session that is started with the points."""
    plan = make_plan(place.executed, TASKS, random.Random(0))
    process = place.popen(place.run_argv(plan, *_PARALLEL_WORDS), env=calls.environ())
    out, said = process.communicate(timeout=120)
    if "Traceback" in said:
        figures.wrong.append(f"run said {said}")
    several = len(calls.rules) > 1  # a root that dies takes nobody with it; more than one death may leave nobody
    may_lose = several and any(rule.startswith("root") for rule in calls.rules)
    examine_start(place, out.strip(), figures, env=calls.environ(), may_stop=several, may_lose=may_lose)


def crash_at_resume(place: Place, calls: Calls, figures: Figures) -> None:
    """A session that lost all of its chain before any task could end, and is resumed with the points."""
    session, gate = _start_gated(place)
    kill_all(session)
    gate.touch()
    finish(place, session, figures, calls.environ())
    figures.add(examine(session, place.executed, may_lose=True))


def crash_at_ask(place: Place, calls: Calls, figures: Figures) -> None:
    """A session that is asked to hold its tasks, and to release them; who asks and is killed asks again."""
    session, gate = _start_gated(place, calls.environ())
    for verb in ("hold", "release"):
        for _ in range(MOST_RESUMES):
            code, _, said = place.run_verb(verb, session.session_id, env=calls.environ())
            if code == 0:
                break
            if code > 0:
                figures.wrong.append(f"{verb} said {said}")
    gate.touch()
    if finish(place, session, figures, calls.environ()):
        figures.wrong.append("did not end by itself")
    figures.add(examine(session, place.executed))


def _start_gated(place: Place, env: Mapping[str, str] | None = None) -> tuple[SessionDir, Path]:
    """A session of which no task ends before there is a file, and that file."""
    gate = place.path / "gate"
    waits = f"while ! [ -e '{gate}' ]; do sleep 0.05; done;"
    plan = make_plan(place.executed, TASKS, random.Random(0), more=waits)
    session = place.start(plan, *_PARALLEL_WORDS, env=env)
    wait_until(place.executed.exists, HUNG_S)
    return session, gate


CASES: Final = {"start": crash_at_start, "resume": crash_at_resume, "ask": crash_at_ask}


def run_points(case: str, points: Sequence[str]) -> Iterator[Figures]:
    """Run a session for each of the points, some at once, and give what was seen in their order."""

    def run_one(number: int, points: str) -> Figures:
        figures = Figures()
        with outer.nest(number) as place:
            calls = Calls(place.path / "calls", *points.split(","))
            CASES[case](place, calls, figures)
        hits = zip(calls.rules, calls.has_hit(), strict=True)
        figures.kills.update(rule.split(":")[0] for rule, hit in hits if hit)
        figures.wrong = [f"{points}: {one}" for one in figures.wrong]
        return figures

    with make_place() as outer, ThreadPoolExecutor(AT_ONCE) as pool:
        waiting = [pool.submit(run_one, number, one) for number, one in enumerate(points)]
        try:
            for future in waiting:
                yield future.result()
        finally:
            for future in waiting:
                future.cancel()


def add_up(case: str, points: Sequence[str]) -> Figures:
    """What was seen in the sessions of these points."""
    total = Figures()
    for figures in run_points(case, points):
        total.add(figures)
    return total


def sweep(case: str, role: str, *, kind: str = "any", do: str = "kill") -> Figures:
    """All calls of a role, of a kind, and what is done there; it ends at the first that goes wrong."""
    total, missed = Figures(), 0
    for figures in run_points(case, [f"{role}:{kind}:{number}:{do}" for number in range(1, LAST + 1)]):
        missed = 0 if figures.kills else missed + 1  # on a busy machine a session makes fewer calls
        total.add(figures)
        if missed == AT_ONCE or not total.is_good:
            break
    return total


# --- the table of writes ---

ROWS = {
    "run": ("launcher:write:1:half:*spec.json*", "launcher:rename:1:kill:*/spec.json", "launcher:sync:3:kill"),
    "the daemon": ("daemon:write:1:half:*/journal", "daemon:sync:1:kill:*/journal"),
    "it executes the root": ("root:spawn:1:after", "keeper:lock:1:after:*/keeper.lock", "launcher:wait:1:kill"),
    "JobClaimed": ("supervisor:write:1:after:*/journal:JobClaimed",),
    "C records": ("keeper:write:1:after:*/ledger: C ", "keeper:sync:1:after:*/ledger"),
    "T record": ("keeper:write:1:after:*/ledger: T ", "keeper:spawn:2:kill", "keeper:spawn:2:after"),
    "S record": ("keeper:write:1:after:*/ledger: S ", "keeper:write:2:half:*/ledger: S "),
    "the job ends": ("keeper:write:1:kill:*/ledger: X ", "keeper:write:1:after:*/ledger: X ", "root:wait:2:kill"),
    "its tree": ("keeper:write:1:kill:*/ledger: Z ", "keeper:write:1:after:*/ledger: Z "),
    "JobFinished": (
        "supervisor:write:1:after:*/journal:JobFinished",
        "supervisor:write:1:after:*/journal:TaskEnded",
        "supervisor:write:1:half:*.status.json*:succeeded",
    ),
    "the supervisor closes": ("supervisor:write:1:kill:*/journal:SessionEnded",),
    "SessionEnded": ("supervisor:write:1:after:*/journal:SessionEnded", "supervisor:rename:1:kill:*/summary"),
}
"""By the row of the table of writes in ARCHITECTURE.md: deaths between what it says, in a session of tasks."""

ASKED = {
    "request": (
        "hold:rename:1:after",
        "hold:send:1:kill",
        "supervisor:write:1:after:*/journal:RequestReceived",
        "supervisor:unlink:1:kill:*/requests/*",
        "supervisor:unlink:1:after:*/requests/*",
    ),
}
"""The same, in a session that is asked for something."""

ELSEWHERE = {
    "prepare": ("test_workspaces_killed.py::test_prepare",),
    "release": ("test_workspaces_killed.py::test_release",),
    "a worktree that stays": (
        "test_workspaces_killed.py::test_prepare_of_a_worktree_that_stays",
        "test_workspaces_killed.py::test_release_of_a_worktree_that_stays",
    ),
    "git directory of a walled task": (
        "test_walls_view.py::test_prepare_is_killed",
        "test_walls_view.py::test_release_is_killed",
    ),
    "in the cache": (
        "test_mirrors.py::test_a_mirror_that_is_killed_at_any_point_is_made_anew_and_nothing_half_made_is_trusted",
        "test_mirrors.py::test_a_fetch_that_is_killed_at_any_point_leaves_a_mirror_that_goes_on",
        "test_environments.py::test_killed_at_each_step_of_a_build_and_of_a_copy",
    ),
    "queue": ("test_feeding.py::test_a_crash_at_each_step",),
    "follow-ups": ("test_ingest.py::test_killed_before_each_call_that_changes_a_file",),
    "prove": ("test_prove.py::test_a_proof_that_is_killed",),
    "at Slurm": (
        "test_slurm.py::test_the_supervisor_is_killed_while_it_submits",
        "test_slurm.py::test_what_became_of_a_job",
    ),
    "landing": ("test_landing_crash.py::test_a_kill_at_every_call_that_changes_a_file",),
}
"""The rows of a business, and the tests that kill it at each of its calls."""


def check(figures: Figures, kills: int) -> None:
    assert figures.is_good, "\n".join(figures.wrong)
    assert figures.kills.total() >= kills


def test_each_row_of_the_table_of_writes_has_its_deaths() -> None:
    """Those of a business have a sweep of its own; all of them assert that they reach what they name."""
    swept = {step: names for steps in (ROWS, ASKED, ELSEWHERE) for step, names in steps.items()}
    assert len(swept) == len(ROWS) + len(ASKED) + len(ELSEWHERE)
    text = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text()
    table = text.partition("| step | durable before the next |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1].strip().replace("`", "") for line in table.splitlines()[2:]]
    assert [row for row in rows if sum(row.startswith(step) for step in swept) != 1] == []
    assert [step for step in swept if not any(row.startswith(step) for row in rows)] == []
    for names in ELSEWHERE.values():
        for name in names:
            file, _, test = name.partition("::")
            (place,) = Path(__file__).parents[1].rglob(file)
            assert f"def {test}(" in place.read_text(), name


FAST = ("run", "JobClaimed", "T record", "the job ends", "JobFinished")


@pytest.mark.parametrize("step", [*FAST, *slow(*[step for step in (*ROWS, *ASKED) if step not in FAST])])
def test_a_death_at_each_step_of_the_table(step: str) -> None:
    case, points = ("ask", ASKED[step]) if step in ASKED else ("start", ROWS[step])
    figures = add_up(case, points)
    check(figures, len(points))
    assert figures.lost == 0


@pytest.mark.slow
@pytest.mark.parametrize("do", ["kill", "after"])
@pytest.mark.parametrize(
    ("case", "role"),
    [(case, role) for case in ("start", "resume") for role in SWEPT] + [("ask", "hold"), ("ask", "supervisor")],
)
def test_all_points(case: str, role: str, do: str) -> None:
    check(sweep(case, role, do=do), 1)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["daemon", "keeper", "supervisor"])
def test_all_writes_in_the_middle(role: str) -> None:
    check(sweep("start", role, kind="write", do="half"), 1)


REFUSED = (
    "daemon:sync:1:EIO",
    "root:spawn:1:EAGAIN",
    "keeper:create:1:EIO:*/keeper.lock",
    "keeper:write:2:ENOSPC",
    "keeper:spawn:2:EAGAIN",
    "supervisor:write:3:EDQUOT",
    "supervisor:sync:1:EIO:*/journal",
    "keeper:write:4:short",
)


FRAMES = tuple(
    f"{role}:send:{at}:{error}:socket*"
    for role in ("keeper", "supervisor")
    for at in range(1, 5)
    for error in ("EIO", "ENOBUFS")
)


@pytest.mark.parametrize(
    "points", [("supervisor:send:2:EIO:socket*",), *slow(FRAMES, REFUSED)], ids=["a frame", "frames", "calls"]
)
def test_what_is_refused_once(points: Sequence[str]) -> None:
    """The session goes on by itself and ends; a frame that could not be sent is not waited for."""
    check(add_up("start", points), len(points))


@pytest.mark.slow
@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EDQUOT", "EMFILE", "EINTR", "EROFS", "EAGAIN"])
def test_all_refused_calls(error: str) -> None:
    for kind in ("write", "sync", "spawn", "rename"):
        for role in ("root", "keeper", "supervisor"):
            check(sweep("start", role, kind=kind, do=error), 0)


@pytest.mark.slow
def test_pairs_of_points() -> None:
    """Two deaths in one session, anywhere."""
    rng = random.Random(20)
    chosen = partial(rng.choice, ("root", "keeper", "keeper", "supervisor", "supervisor"))
    pairs = [
        f"{chosen()}:any:{rng.randint(1, 120)}:kill,{chosen()}:any:{rng.randint(1, 80)}:kill" for _ in range(100)
    ]
    check(add_up("start", pairs), 100)

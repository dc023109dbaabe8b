"""Each process dies at each of its steps, or is refused what it asks for: nothing lost, nothing twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from calls import needs_calls
from conftest import slow

from .oracle import Figures
from .points import SWEPT, random_pairs, run_points, sweep

pytestmark = needs_calls

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
        "test_slurm.py::test_a_claim_is_taken_once",
    ),
    "landing": ("test_landing_crash.py::test_a_kill_at_every_call_that_changes_a_file",),
}
"""The rows of a business, and the tests that kill it at each of its calls."""


def add_up(case: str, points: Sequence[str]) -> Figures:
    """What was seen in the sessions of these points."""
    total = Figures()
    for figures in run_points(case, points):
        total.add(figures or Figures())
    return total


def check(figures: Figures, kills: int) -> None:
    assert figures.is_good, "\n".join(figures.wrong)
    assert figures.kills.total() >= kills


def find_rows() -> list[str]:
    """The steps of ARCHITECTURE's table of writes."""
    text = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text()
    table = text.partition("| step | durable before the next |")[2].partition("\n\n")[0]
    return [line.split("|")[1].strip().replace("`", "") for line in table.splitlines()[2:]]


def test_each_row_of_the_table_of_writes_has_its_deaths() -> None:
    """Those of a business have a sweep of its own; all of them assert that they reach what they name."""
    swept = {step: names for steps in (ROWS, ASKED, ELSEWHERE) for step, names in steps.items()}
    assert len(swept) == len(ROWS) + len(ASKED) + len(ELSEWHERE)
    rows = find_rows()
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


@pytest.mark.slow
def test_a_sample_of_refused_calls() -> None:
    """Whatever the system refuses once: the session goes on by itself and ends."""
    check(add_up("start", REFUSED), len(REFUSED))


FRAMES = [
    f"{role}:send:{at}:{error}:socket*"
    for role in ("keeper", "supervisor")
    for at in range(1, 5)
    for error in ("EIO", "ENOBUFS")
]


@pytest.mark.parametrize("points", [["supervisor:send:2:EIO:socket*"], *slow(FRAMES)], ids=len)
def test_a_frame_that_cannot_be_sent_is_not_waited_for(points: list[str]) -> None:
    check(add_up("start", points), len(points))


@pytest.mark.slow
@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EDQUOT", "EMFILE", "EINTR", "EROFS", "EAGAIN"])
def test_all_refused_calls(error: str) -> None:
    for kind in ("write", "sync", "spawn", "rename"):
        for role in ("root", "keeper", "supervisor"):
            check(sweep("start", role, kind=kind, do=error), 0)


@pytest.mark.slow
def test_pairs_of_points() -> None:
    check(add_up("start", random_pairs(100, seed=20)), 100)

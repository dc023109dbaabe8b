"""The table of the house: each business, and what it adds to the core.

Plain names of modules, so that reading the table imports nothing.  A core room knows no business: at seven places,
the seams, it reads this table and loads what the rows name when it is used.  Which modules may read it stands in
`tests/house/test_rooms.py`.  A business that is taken out of the table, with its folder, leaves a program that
does everything else.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, NamedTuple


class Phase(NamedTuple):
    """A phase: how its jobs are made and judged, and what their process does.

    Attributes:
        name: of the phase; `engine.transitions` says when it comes.
        maker: the supervisor's side, a module with `build` (site, state, key, whole), which makes the process for
            a key, and `judge` (site, state, ended, problem), which says what its end means.  `whole` is the state
            of the session, and `problem` what can be seen of any process.
        request: the process's side: the type of what it is asked.
        work: the function that does it: it takes the request and the job's folder, and returns the answer.
        in_turn: whether its jobs, which may be many at once, take turns.
        damaged: the class of a job whose answer cannot be used; "": `judge` raises nothing.
    """

    name: str
    maker: str
    request: str
    work: str
    in_turn: bool = False
    damaged: str = ""


class Wrap(NamedTuple):
    """What the supervisor does around the jobs of any phase; all but `of` are functions.

    Attributes:
        of: the field of a `TaskSpec` or `SessionSpec` that is set where this is done: ``task.X`` or ``spec.X``.
        variables: (site, task, key, place): variables that a job gets.
        build: (site, state, job): a job that was built, as it is to be.
        ended: (site, state, ended): the end of a job as it was, and the problem with what was around it, or None.
        problem: (site, state, key, problem): the problem of a job that has ended, by its right name.
        judged: (site, state, ended, judged): what comes of a job that was judged and has no problem.
        lost: (site, state, lost): what is made of an end that was not seen; None: nothing.
    """

    of: str
    variables: str = ""
    build: str = ""
    ended: str = ""
    problem: str = ""
    judged: str = ""
    lost: str = ""


class Mark(NamedTuple):
    """What a job's process does beside its work, if a file lies in its folder.

    Attributes:
        phase: of the job.
        file: the constant with the file's name.
        before: before the work: takes the request and the folder.
        after: after the work: takes the request, the answer and the folder.
        end: the same when the answer is there.
    """

    phase: str
    file: str
    before: str = ""
    after: str = ""
    end: str = ""


class Business(NamedTuple):
    """What a business adds; names of modules stand below `sessionrun`, of functions as ``MODULE:FUNCTION``.

    Attributes:
        name: of the business, and of its room.
        phases: whose jobs it makes; WORK is the session's own.
        programs: of jobs, beside those of phases, by their first word: functions that take the job's folder.
        wraps: around jobs, from the inside to the outside: a job is built in the order of HOUSE, and judged in the
            opposite one.
        marks: beside the work of jobs, in the order of HOUSE before it, and in the opposite one after it.
        placed: constants with the names of files in a job's folder that name places, beside its request: on a
            node they name those of the node.
    """

    name: str
    phases: tuple[Phase, ...] = ()
    programs: tuple[tuple[str, str], ...] = ()
    wraps: tuple[Wrap, ...] = ()
    marks: tuple[Mark, ...] = ()
    placed: tuple[str, ...] = ()


_WORKSPACE: Final = "workspaces.request:WorkspaceRequest"

HOUSE: Final[tuple[Business, ...]] = (
    Business(
        "walls",
        programs=(("inside", "runtime.jobs.inside:go_inside"),),
        wraps=(
            Wrap(
                "task.sandbox",
                build="runtime.jobs.enclosing:enclose_job",
                ended="runtime.jobs.walled_end:take_report",
                problem="runtime.jobs.walled_end:name_full",
                lost="runtime.jobs.walled_end:settle_lost",
            ),
        ),
        placed=("walls.wish:INSIDE",),
    ),
    Business(
        "worktrees",
        phases=(
            Phase("prepare", "runtime.jobs.workspace", _WORKSPACE, "workspaces.worktree:prepare", in_turn=True),
            Phase("setup", "runtime.jobs.setup", _WORKSPACE, "workspaces.release:settle"),
            Phase("park", "runtime.jobs.workspace", _WORKSPACE, "workspaces.release:park_work", in_turn=True),
            Phase("release", "runtime.jobs.workspace", _WORKSPACE, "workspaces.release:release", in_turn=True),
        ),
        programs=(
            ("environment", "runtime.jobs.begin:make_environment"),
            ("begin", "runtime.jobs.begin:begin_work"),
        ),
        wraps=(
            Wrap("task.environment", variables="runtime.jobs.surroundings:name_environment"),
            Wrap("task.links", variables="runtime.jobs.surroundings:hide_links"),
            Wrap(
                "task.check",
                build="runtime.jobs.workspace_request:take_back_first",
                problem="runtime.jobs.workspace_request:name_not_begun",
            ),
        ),
        placed=("workspaces.environments.request:WISH",),
    ),
    Business(
        "checks",
        phases=(
            Phase(
                "check",
                "runtime.jobs.check.build",
                "runtime.jobs.check.request:CheckRequest",
                "runtime.jobs.check.check:check",
                damaged="check_failed",
            ),
            Phase(
                "prove",
                "runtime.jobs.prove.build",
                "runtime.jobs.prove.request:ProveRequest",
                "runtime.jobs.prove.prove:prove",
                damaged="unproved",
            ),
        ),
        wraps=(Wrap("task.prove", build="runtime.jobs.check.baseline:ask_baseline"),),
        marks=(Mark("setup", "store.jobfiles:KNOWN", before="runtime.jobs.check.baseline:run_first"),),
        placed=("store.jobfiles:KNOWN",),
    ),
    Business(
        "landing",
        phases=(
            Phase(
                "land",
                "runtime.jobs.land.build",
                "runtime.jobs.land.request:LandOrder",
                "runtime.jobs.land.land:land",
                damaged="land_failed",
            ),
        ),
    ),
    Business("queue", wraps=(Wrap("spec.feed", judged="runtime.feeding.shelving:shelve_follow_ups"),)),
    Business(
        "cluster",
        wraps=(
            Wrap(
                "spec.cluster",
                build="runtime.jobs.homecoming:name_commits_first",
                judged="runtime.jobs.homecoming:take_home",
                lost="runtime.jobs.homecoming:judge_left_behind",
            ),
        ),
        marks=(
            Mark("prepare", "store.jobfiles:REPLICA", before="workspaces.replica:receive"),
            Mark("park", "store.jobfiles:REPLICA", after="workspaces.replica:send"),
            Mark(
                "release",
                "store.jobfiles:REPLICA",
                before="workspaces.replica:open_release",
                after="workspaces.replica:send",
                end="workspaces.replica:close_replica",
            ),
        ),
    ),
)


def load(name: str) -> Any:
    """Import what a row names: ``MODULE``, or ``MODULE:FUNCTION``."""
    module, _, attribute = name.partition(":")
    found = import_module(f"sessionrun.{module}")
    return getattr(found, attribute) if attribute else found

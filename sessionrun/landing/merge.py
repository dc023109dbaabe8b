"""Lands the work of a session's tasks on a branch, for `merge`: finds what may land, and hands it to a turn."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sessionrun.client.graph import measure_depths
from sessionrun.client.reading.comparison import find_place, rank_attempts
from sessionrun.client.reading.view import choose_tasks, load_history
from sessionrun.landing.records import HEADS, Fate, LandRequest, Report
from sessionrun.landing.records import Take as Take
from sessionrun.landing.target import find_target
from sessionrun.model.errors import InputError, StoreError
from sessionrun.model.keys import JobKey, is_node_id
from sessionrun.model.spec import Landing, SessionSpec
from sessionrun.store.session import SessionDir
from sessionrun.worktrees.diff import Task, is_unchanged

if TYPE_CHECKING:
    from sessionrun.model.asked import Policy, Sandbox


Choice = Literal["best"]


class AskedLanding(NamedTuple):
    """How to land.

    Attributes:
        into: the branch; None: the one from which the session's worktrees began.
        gates: shell commands that must pass before anything lands, each in its time (seconds).
        batch: how many tasks are merged and gated together at most; None: 8, without gates all.
        trailers: whether the merge of a task says whose work it is.
        dry_run: only forecast what would land; nothing changes, and no gate runs.
        choose: which of several attempts at the same task lands; None: each of them.
        sandbox: the walls around the gates; None: those of the session.
        take: what lands of a task whose branch was amended or reset; None: it is held.
    """

    into: str | None = None
    gates: tuple[str, ...] = ()
    gate_timeout_s: float | None = None
    batch: int | None = None
    trailers: bool = True
    dry_run: bool = False
    choose: Choice | None = None
    sandbox: Policy | None = None
    take: Take | None = None


def merge(
    session: SessionDir,
    wanted: Sequence[str] = (),
    asked: AskedLanding | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Land the work of tasks that succeeded; the object of ``merge --json``.

    `wanted` are their ids or numbers; none: all.  `tell` is given a line when something takes long.

    Raises:
        InputError: the session has no worktrees, there is no such branch or task.
        StoreError: its journal has lost what became of its tasks.
        SessionrunError, OSError: git failed, or the disk; nothing is half done that the next call does not mend.
    """
    from sessionrun.landing.mends import holds_work  # these import all that git needs, and `--help` needs none
    from sessionrun.landing.phases import make_request
    from sessionrun.landing.queue import forecast
    from sessionrun.landing.turn import land

    asked, known = asked or AskedLanding(), session.load_status()
    view, evidence = load_history(session)
    state = evidence.require()
    if known is not None and known["seq"] > state.seq:  # that was written before we read the journal
        lost = f"{session.journal_path} has lost records: it does not say how all tasks ended"
        raise StoreError(f"{lost}; their branches stay (sessionrun status --json): git merge BRANCH")
    spec, works = state.spec, state.tasks
    if spec.repository is None:
        raise InputError(f"session {view['session_id']} has no worktrees of this repository: nothing can land")
    chosen = {task["id"] for task in choose_tasks(view, wanted)}
    reasons = {task["id"]: _find_obstacle(task) for task in view["tasks"]}
    ready = [task for task in view["tasks"] if reasons[task["id"]] is None]
    groups, depths = rank_attempts(ready), measure_depths({task["id"]: task["needs"] for task in view["tasks"]})
    _examine_choice(view, chosen, groups, asked.choose, tell)
    request = make_request(
        session,
        state,
        Landing(find_target(spec.repository, asked.into), asked.gates, asked.gate_timeout_s, asked.batch),
        [works[task["id"]] for task in sorted(ready, key=lambda task: (depths[task["id"]], task["num"]))],
        is_wanted=lambda task: task.spec.id in chosen,
        is_to_land=lambda task: task.outcome is None or holds_work(task),
        trailers=asked.trailers,
    )
    attempts = () if asked.choose is None else tuple(map(tuple, groups.values()))
    request = replace(request, groups=attempts, take=asked.take)
    sandbox = choose_sandbox(spec, asked.sandbox) if asked.gates and not asked.dry_run else None
    with enclose_request(session, spec, request, sandbox) as request:
        report = forecast(request) if asked.dry_run else land(request, tell)
    fates = {fate.task: fate for fate in report.fates}
    fates |= {task: fate for task, fate in reasons.items() if fate is not None}
    tasks = [_describe(task, fates[task["id"]], asked.choose) for task in view["tasks"] if task["id"] in chosen]
    return _describe_report(request, report, tasks, asked)


def _examine_choice(
    view: Mapping[str, Any],
    chosen: Collection[str],
    groups: Mapping[str, Sequence[str]],
    choose: str | None,
    tell: Callable[[str], None],
) -> None:
    """Refuse a choice where there is none, and tell of one that was not asked for.

    Raises:
        InputError: no two tasks of the session are attempts at the same thing.
    """
    if choose is not None:
        names = [find_place(task, "task") for task in view["tasks"]]
        if len(set(names)) == len(names):
            raise InputError(f"session {view['session_id']} has one attempt at each task: leave out --choose")
        return
    several = sum(sum(one in chosen for one in attempts) > 1 for attempts in groups.values())
    if several:
        what = "1 task has" if several == 1 else f"{several} tasks have"
        tell(f"{what} several attempts that succeeded: --choose best lands one of each")


def _find_obstacle(task: Task) -> Fate | None:
    if task["status"] != "completed":
        return Fate(task["id"], "waiting", "not_ended", "it has not ended")
    if task["outcome"] != "succeeded":
        return Fate(task["id"], "none", "not_succeeded", f"it is {task['outcome']}")
    if task["repo"] is not None:
        return Fate(task["id"], "none", "other_repository", f"its work is in {task['repo']}")
    if task["base_commit"] is None:
        return Fate(task["id"], "none", "no_worktree", "it had no worktree")
    if is_unchanged(task):
        if kept := task.get("worktree_kept"):
            where = f", on node {task['node']}," if is_node_id(task.get("node")) else ""
            why = f"nothing of it is committed, and its worktree {task['worktree']}{where} was kept: {kept}"
            return Fate(task["id"], "none", "rescued", why)
        return Fate(task["id"], "none", "no_change", "it changed nothing")
    if task["rescue_branch"] or task["commit"] is None:
        where = task["rescue_branch"] or task["worktree"] or task["branch"]
        return Fate(task["id"], "none", "rescued", f"a part of its work is in {where}: look at it first")
    return None


def _describe(task: Task, fate: Fate, choose: Choice | None) -> dict[str, Any]:
    """A task of ``merge --json``: `chosen` says whether the attempt was tried; null: nothing was to be chosen."""
    is_left = fate.status == "none" or fate.reason_class == "not_ended"
    chosen = None if choose is None else not is_left
    return {
        **{name: task[name] for name in ("id", "num", "title", "branch")},
        **{name: getattr(fate, name) for name in ("status", "reason_class", "commit")},
        "reason": fate.reason or None,
        "files": list(fate.files),
        "against": list(fate.against),
        "output": fate.output or None,
        "group": None if choose is None else find_place(task, "task"),
        "chosen": chosen,
        "not_chosen": fate.reason or None if chosen is False else None,
    }


def _describe_report(
    request: LandRequest, report: Report, tasks: list[dict[str, Any]], asked: AskedLanding
) -> dict[str, Any]:
    return {
        "session_id": request.session_id,
        "target": request.target.removeprefix(HEADS),
        "old": report.old,
        "new": report.new,
        "dry_run": asked.dry_run,
        "choose": asked.choose,
        "gate_runs": report.gate_runs,
        "hold": report.hold and asdict(report.hold),
        "remarks": list(report.remarks),
        "tasks": tasks,
    }


def choose_sandbox(spec: SessionSpec, policy: Policy | None) -> Sandbox | None:
    """The sandbox of the gates: by the command's policy, as the session lands, or that of its tasks; None: none.

    Raises:
        InputError: its tasks have different ones.
    """
    if policy is not None:
        from sessionrun.input.fields import make_sandbox

        return None if policy == "none" else make_sandbox(policy)
    if spec.landing is not None:
        return spec.landing.sandbox
    wanted = {task.sandbox for task in spec.tasks if task.upstream is None and task.sandbox is not None}
    if len(wanted) > 1:
        raise InputError("the tasks of this session have different sandboxes: say --sandbox, for the gates")
    return next(iter(wanted), None)


@contextmanager
def enclose_request(
    session: SessionDir, spec: SessionSpec, request: LandRequest, sandbox: Sandbox | None
) -> Iterator[LandRequest]:
    """The request with walls around its gates, for as long as it is carried out.

    Raises:
        InputError: the walls cannot be built here; nothing may be tried.
        SessionrunError, OSError: the session directory cannot be written.
    """
    if sandbox is None:
        yield request
        return
    from sessionrun.landing.phases import enclose_gates
    from sessionrun.session.shared import Site
    from sessionrun.store.trees import remove_tree
    from sessionrun.walls.enclosing import settle
    from sessionrun.walls.trial import check_spec

    check_spec(replace(spec, tasks=(), template=None, landing=Landing(request.target, sandbox=sandbox)))
    key = JobKey(f".merge-{os.getpid()}", 1, 1, "land", 1)  # no task has such a name
    site = Site(session, lambda: spec)
    try:
        yield replace(request, gates=enclose_gates(site, request.gates, request.target, sandbox, key))
    finally:
        settle(session.job_path(key))
        remove_tree(session.job_path(key).parent)

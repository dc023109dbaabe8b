"""What the verb `dispatch` does before a session starts: find the queue, fill an empty one, settle the session."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from sessionrun.client.dispatching.configuration import FRAME
from sessionrun.client.dispatching.preflight import Preflight, look
from sessionrun.client.dispatching.settings import Settings, check_branch
from sessionrun.client.launching.readiness import check_ready, tell_signed_out
from sessionrun.client.notices import notify
from sessionrun.client.planning.plan import Planned, plan
from sessionrun.client.queue.feeds import import_list, open_queue, read_text, take_back
from sessionrun.model.errors import InputError
from sessionrun.model.spec import SLOT, SessionSpec
from sessionrun.queue.feed import Feed, open_feed
from sessionrun.queue.file import NAME as FILE
from sessionrun.queue.graph import by_id, choose_group, choose_ready
from sessionrun.queue.lists import parse_list
from sessionrun.queue.place import QueuePlace
from sessionrun.queue.suggestions import NAME as SUGGESTIONS
from sessionrun.queue.task import QueueTask
from sessionrun.runtime.feeding.tasks import SCRIPT, choose_id, make_task
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.ignoring import hide_name
from sessionrun.workspaces.repository import locate

_DIALECT: Final = "queue"
LIST: Final = "BEADS_FOR_ANALYSIS.md"
"""The list in the top of a repository from which an empty queue is filled."""


class Prepared(NamedTuple):
    """A dispatch that can be started.

    Attributes:
        planned: its session; None: no task is ready, and none is waited for.
        feed: the queue.
        ready: the tasks of the queue that it can claim at once, the first first.
        left: how many tasks of the queue, of those that it is for, are not closed.
        findings: what was looked at.
    """

    planned: Planned | None
    feed: Feed
    ready: list[QueueTask]
    left: int
    findings: list[Preflight]


def prepare_dispatch(
    settings: Settings,
    listed: Path | None = None,
    *,
    results_dir: Path | None = None,
    preview: bool = False,
    ready: bool = True,
) -> Prepared:
    """Settle a dispatch; if the queue is empty, fill it from the list of the repository.

    Args:
        settings: what is asked for.
        listed: a list whose tasks come into the queue first.
        results_dir: where sessions are looked for that have claimed tasks; None: the one in use.
        preview: nothing will be started: change nothing.
        ready: look whether the agent's model can be asked.

    Raises:
        InputError: it cannot be started as it is asked for; no session was created.
    """
    check_branch(settings)
    if not preview:
        _hide_suggestions(settings.top)
    feed = open_queue(settings.top, backend=settings.feed.backend or None)
    _check_wanted(feed, settings.feed.chosen)
    back = [] if preview else _take_back(settings, feed, results_dir)
    if not (preview or settings.feed.watch) and _find_list(settings, feed, listed) is None:
        tasks, left = _choose(settings, feed)
        if not tasks:
            return Prepared(None, feed, [], left, back)
    planned = plan_dispatch(settings, feed, preview=preview)
    findings = [*_look(planned, settings), *_check_agent(planned.spec, preview=preview)] if ready else []
    problems = [f"{one.what}: {one.text}" for one in findings if one.level == "error"]
    if problems and not preview:
        raise InputError(f"{'; '.join(problems)} (--no-ready starts all the same)")
    with _copy_queue(feed) if preview else nullcontext(feed) as queue:
        drafted = _import(settings, queue, listed, preview=preview)
        tasks, left = _choose(settings, queue)
    finding = Preflight("queue", f"{feed.place.name}: {len(tasks)} of {left} open tasks are ready{drafted}")
    source = [] if settings.source is None else [Preflight("configuration", str(settings.source))]
    return Prepared(planned, feed, tasks, left, [*source, *back, finding, *findings])


def find_follow_ups(settings: Settings, session_id: str) -> list[str]:
    """Say by which commands a user does what the session does not do by itself."""
    short = session_id[:8]
    if not settings.lands:
        return [f"nothing lands by itself: {_word_merge(settings, short)}"]
    lines = []
    if not settings.mends:
        lines.append(f"a conflict makes no task; its work stays on its branch: sessionrun merge {short}")
    if not settings.feed.lands_again:
        lines.append(f"work that did not land is not tried again by itself: sessionrun retry {short}")
    return lines


def _word_merge(settings: Settings, short: str) -> str:
    """The command that lands the work as the session would: with its gates."""
    words = ["sessionrun", "merge", short, *(word for gate in settings.gates for word in ("--gate", gate))]
    if settings.gates and settings.gate_timeout_s:
        words += ["--gate-timeout", f"{settings.gate_timeout_s:g}"]
    return shlex.join(words)


def _take_back(settings: Settings, feed: Feed, results_dir: Path | None) -> list[Preflight]:
    """Settle what sessions that are gone have claimed; else these tasks would not count as ready."""
    if not settings.takes_back:
        return []
    settled = take_back(feed, results_dir, most=settings.feed.take_back_most)
    return [Preflight("queue", f"{task.id} is {task.status}: {task.reason}") for task in settled]


def foresee(prepared: Prepared) -> Planned:
    """The session with the tasks that it begins with, for a preview."""
    assert prepared.planned is not None
    spec = prepared.planned.spec
    assert spec.template is not None
    taken: set[str] = set()
    tasks = []
    for task in prepared.ready[: spec.resources.get(SLOT)]:
        name = choose_id(task.id, taken)
        taken.add(name.casefold())
        tasks.append(make_task(spec.template, task, name))
    return prepared.planned._replace(spec=replace(spec, tasks=tuple(tasks)))


def _hide_suggestions(top: Path) -> None:
    """Let git overlook the file of follow-ups: it is collected, and in commits it would conflict."""
    git = Git(top)
    _, common = locate(git)
    hide_name(common, SUGGESTIONS)
    if git.names("ls-files", "-z", "--", SUGGESTIONS):
        hint = f"git rm --cached {SUGGESTIONS}"
        notify(f"{SUGGESTIONS} is in the repository, so tasks that append to it conflict: take it out ({hint})")


def _look(planned: Planned, settings: Settings) -> list[Preflight]:
    spec = planned.spec
    assert spec.template is not None
    agent = spec.agents[spec.template.agent]
    return [*look(agent, spec.template.model, settings.workers, {**os.environ, **agent.env})]


def _check_agent(spec: SessionSpec, *, preview: bool) -> list[Preflight]:
    """Refuse an agent that is not signed in or not ready, as `run` does; in a preview only say so."""
    assert spec.template is not None
    first = replace(spec, tasks=(spec.template,))
    if preview:
        return [Preflight("agent", line, "warning") for line in tell_signed_out(first)]
    check_ready(first)
    return []


def _import(settings: Settings, feed: Feed, listed: Path | None, *, preview: bool) -> str:
    """Fill the queue from a list; what to say of that."""
    path = _find_list(settings, feed, listed)
    if path is None:
        return ""
    if preview and feed.name != FILE:
        return f"; {len(parse_list(read_text(path)))} in {path} would be imported"
    added, present = import_list(feed, path, group=settings.feed.group)
    done = "would be" if preview else "were"
    return f"; {len(added)} {done} imported from {path}" + (f", {len(present)} were known" if present else "")


@contextmanager
def _copy_queue(feed: Feed) -> Iterator[Feed]:
    """A copy of the queue, to try an import with; a queue of another program is given as it is."""
    if feed.name != FILE:
        yield feed
        return
    with TemporaryDirectory(prefix="sessionrun-") as name:
        place = QueuePlace(Path(name), Path(name, "lock"))
        with suppress(FileNotFoundError):
            shutil.copyfile(feed.place, place.top / feed.place.name)
        yield open_feed(place, FILE)


def _find_list(settings: Settings, feed: Feed, listed: Path | None) -> str | None:
    """The list to import: the one that is named, or else the repository's own if the queue is empty."""
    known = settings.top / LIST
    if listed is None and (not known.is_file() or feed.load()):
        return None
    return str(listed or known)


def _choose(settings: Settings, feed: Feed) -> tuple[list[QueueTask], int]:
    """The tasks that can be claimed, of those that are asked for, and how many of these are open."""
    tasks = by_id(feed.load())
    among = [*tasks.values()] if settings.feed.group is None else choose_group(tasks, settings.feed.group)
    wanted = frozenset(settings.feed.chosen)
    left = [
        task
        for task in among
        if task.status != "closed" and not task.is_group and (not wanted or task.id in wanted)
    ]
    ready = [task for task in choose_ready(tasks, settings.feed.group) if not wanted or task.id in wanted]
    return ready, len(left)


def _check_wanted(feed: Feed, wanted: tuple[str, ...]) -> None:
    """Refuse ids of tasks that no worker would get.

    Raises:
        InputError: the first of them, and why.
    """
    tasks = by_id(feed.load()) if wanted else {}
    for task_id in wanted:
        if task_id not in tasks:
            raise InputError(f"the queue has no task {task_id!r}; `sessionrun queue list` shows its tasks")
        if (why := _find_obstacle(tasks[task_id], frozenset(wanted))) is not None:
            raise InputError(f"task {task_id} {why}")


def _find_obstacle(task: QueueTask, wanted: frozenset[str]) -> str | None:
    """Why a task would not be worked on; None: it is ready, claimed by a session, or waits for others of `wanted`.

    A claim may be of a session that is gone.
    """
    if task.status == "closed":
        return f"is closed; open it again first (sessionrun queue reopen {task.id})"
    if task.is_group:
        return f"is a group; name the group instead (sessionrun dispatch --group {task.id})"
    if task.status == "deferred":
        return f"is {task.backend_status}"
    waits_for = [one for one in task.blocked_by if one not in wanted]
    return f"waits for {', '.join(waits_for)}; close that first, or name it, too" if waits_for else None


def plan_dispatch(settings: Settings, feed: Feed, *, preview: bool = False) -> Planned:
    """Settle the session; its spec has no tasks yet.

    Raises:
        InputError: it cannot be started as it is asked for; nothing was created.
    """
    planned = plan(
        _describe_plan(settings),
        {
            "dialect": "prompts",
            "name": settings.name,
            "labels": dict(label.split("=", 1) for label in settings.labels),
            "worktree": True,
            "base": settings.branch,
            "cluster": settings.cluster,
        },
        preview=preview,
        directory=settings.top,
        programs={settings.agent: settings.program} if settings.agent and settings.program else {},
    )
    assert isinstance(planned, Planned)
    return planned._replace(spec=_add_feed(planned.spec, settings, feed))


def _add_feed(spec: SessionSpec, settings: Settings, feed: Feed) -> SessionSpec:
    (template,) = spec.tasks
    if settings.frame == FRAME and spec.agents[template.agent].prompt_kind == "script":
        template = replace(template, prompts=(f"{SCRIPT}\n",))  # words around it would be commands
    if spec.landing is None and _is_branch(spec):
        template = replace(template, base="target")
    return replace(
        spec,
        dialect=_DIALECT,
        source=str(feed.place),
        tasks=(),
        template=template,
        feed=replace(
            settings.feed, backend=feed.name, take_back_s=settings.feed.take_back_s if settings.takes_back else 0.0
        ),
        open_feed=True,
    )


def _is_branch(spec: SessionSpec) -> bool:
    """Whether tasks can begin at the end of a branch, and not only at a commit."""
    known = spec.repository
    return known is not None and Git(Path(known.top)).commit_of(f"refs/heads/{known.base_branch}") is not None


def _describe_plan(settings: Settings) -> dict[str, Any]:
    """The session as a plan, with the one task of which all others are made."""
    task: dict[str, Any] = {
        "id": "task",
        "prompt": settings.frame,
        "cwd": str(settings.top),
        "base": "target" if settings.lands else "session",
        "retries": settings.retries,
        "expect_change": settings.expect_change,
    }
    if settings.timeout_s:
        task["timeout_s"] = settings.timeout_s
    if settings.checks:
        task["check"] = list(settings.checks)
    plan: dict[str, Any] = {"max_parallel": settings.workers, "prompts": [task]}
    plan |= {"agent": settings.agent} if settings.agent else {}
    plan |= {"model": settings.model} if settings.model else {}
    if settings.lands:
        plan["land"] = {"gates": list(settings.gates), "mends": settings.mends}
        if settings.branch:
            plan["land"]["into"] = settings.branch
        if settings.gate_timeout_s:
            plan["land"]["timeout_s"] = settings.gate_timeout_s
    if settings.on_nodes:
        return plan
    plan["worktrees"] = {"stay": settings.placement}
    if settings.placement == "sibling" and settings.prefix:
        plan["worktrees"]["prefix"] = settings.prefix
    return plan

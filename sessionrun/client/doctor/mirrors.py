"""Checks of the mirrors that a session's tasks name.  Nothing is changed here: a mirror may hold work.

A mirror that is gone is a finding only if the session still needs it.  `clean --cache` removes what none needs.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from sessionrun.client.doctor.evidence import Evidence
from sessionrun.client.doctor.finding import Finding
from sessionrun.engine.task import TaskState
from sessionrun.model.errors import SessionrunError
from sessionrun.model.upstreams import MirrorSite


def check_mirrors(evidence: Evidence) -> Iterator[Finding]:
    """Whether mirrors are there, as far as they are needed, and are mirrors of the right repositories."""
    from sessionrun.workspaces.mirrors import describe_fault

    state, spec = evidence.state, evidence.spec
    if state is None or spec is None or spec.mirrors is None:
        return
    by_mirror: dict[tuple[str, str], list[TaskState]] = {}
    for task in state.tasks.values():
        if task.spec.upstream is not None:
            by_mirror.setdefault((task.spec.upstream.mirror, task.spec.upstream.repo), []).append(task)
    for (mirror, repo), tasks in by_mirror.items():
        if not os.path.lexists(mirror):
            yield from _check_gone(evidence, spec.mirrors, mirror, repo, tasks)
        elif (why := describe_fault(Path(mirror), repo)) is not None:
            what = f"it is no mirror of {repo}: tasks cannot begin in it ({why})"
            plan = f"mv {shlex.quote(mirror)} {shlex.quote(f'{mirror}.old')}, and the next task fetches it again"
            yield Finding("mirrors", "error", mirror, what, plan, shared=True)


def _check_gone(
    evidence: Evidence, site: MirrorSite, mirror: str, repo: str, tasks: list[TaskState]
) -> Iterator[Finding]:
    session_id = evidence.session.session_id
    own = [task for task in tasks if task.spec.upstream is not None and task.spec.upstream.history is None]
    worktrees = [task.place.worktree for task in own if task.place is not None and task.place.worktree is not None]
    left = [path for path in worktrees if os.path.isdir(path)]
    lost = [task.spec.id for task in own if _is_lost(task)]
    what = f"the mirror of {repo} is gone"
    if left:
        what = f"{what}, and so these worktrees have no repository: {', '.join(left)}"
        plan = (
            f"sessionrun diff {session_id} shows the work; take what else you need, then: rm -r {shlex.join(left)}"
        )
        yield Finding("mirrors", "error", mirror, what, plan)
    elif lost:
        what = f"{what}, and with it the branches of: {', '.join(lost)}"
        yield Finding("mirrors", "error", mirror, what, f"sessionrun diff {session_id} shows their work")
    elif site.require_cache and not evidence.ended:
        what = f"{what}, and this session fetches nothing"
        source = evidence.spec.source if evidence.spec is not None else ""
        plan = f"sessionrun precache --cache-dir {shlex.join((site.cache_dir, source or 'FILE'))}"
        yield Finding("mirrors", "warning", mirror, what, plan)


def _is_lost(task: TaskState) -> bool:
    """Whether the task's work was on a branch of the mirror and is not in a local repository."""
    from sessionrun.workspaces.transport import open_room

    place, upstream = task.place, task.spec.upstream
    if place is None or upstream is None or place.branch is None or place.holds_no_work:
        return False
    if upstream.home is None or not os.path.isdir(upstream.home):
        return True
    try:
        with open_room(Path(upstream.home), "") as room:
            return room.git.commit_of(place.commit or f"refs/heads/{place.branch}") is None
    except (SessionrunError, OSError):
        return False  # it is not known

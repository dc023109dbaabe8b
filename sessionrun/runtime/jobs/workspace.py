"""PREPARE, PARK and RELEASE as jobs: their request and process, and what their answer and end mean.

What they do is in `workspaces`.  Any task may have changed the files in their folders: an answer that
cannot be used is the failure of its job.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.agents.verdict import Problem, format_reason, split_status
from sessionrun.engine.handed import find_earlier, find_handed
from sessionrun.engine.task import TaskState
from sessionrun.engine.transitions import find_better
from sessionrun.model.cluster import uses_replicas
from sessionrun.model.errors import JobFileError, SessionrunError
from sessionrun.model.keys import JobKey
from sessionrun.model.landings import MendBase, may_insist
from sessionrun.model.places import Place
from sessionrun.model.reasons import WORKSPACE_REASONS
from sessionrun.model.spec import Job, hides_tests
from sessionrun.runtime.executors.protocol import Exit
from sessionrun.runtime.jobs.shared import Judged, Site, Tasks, read_last_line
from sessionrun.runtime.jobs.workspace_request import REPLACED, find_cwd, make_request
from sessionrun.store.jobfiles import ANSWER
from sessionrun.store.space import check_space
from sessionrun.workspaces.git import RepositoryFailed
from sessionrun.workspaces.request import NeedsConflict, TestsUnusable, load_place

_CLASSES: Final[Mapping[int, str]] = {
    NeedsConflict.job_code: "needs_conflict",
    RepositoryFailed.job_code: "repository_failed",
    TestsUnusable.job_code: "tests_not_run",
}
"""What a PREPARE has found, by its exit code."""


def build_workspace(site: Site, state: TaskState, key: JobKey, tasks: Tasks) -> Job:
    """The process of a PREPARE, PARK or RELEASE; `tasks` are all of the session, by id.

    Raises:
        OSError: the session directory cannot be written.
        NoSpace: a worktree is wanted and the disk is nearly full.
    """
    request = make_request(site, state, key)
    if key.phase == "prepare":
        check_space(Path(request.seats.directory if request.seats else request.repository.worktree_dir))
        target, earlier = _find_target(site, state), find_earlier(state)
        request = replace(request, needs=find_handed(state, tasks), target=target, earlier=earlier)
        if state.spec.prove is not None and state.spec.prove.hidden is not None:
            request = replace(request, tests=state.spec.prove.hidden.patch)
        if request.seats is not None:
            request = replace(request, prompt="\n\n".join(state.spec.prompts))
    else:
        partly = key.phase == "park" and hides_tests(state.spec)
        request = replace(request, patch=str(site.session.patch_path(key)), partly=partly)
    request = replace(request, mend=_find_mend_base(site, state, tasks))
    if key.phase == "prepare" and uses_replicas(site.spec.cluster):
        from sessionrun.workspaces.replica import name_commits  # few sessions have a cluster

        request = name_commits(request)
    better = find_better(state) if key.phase in ("park", "release") else None
    if better is not None:
        replaced = str(site.session.job_path(key).with_name(REPLACED.format(key.attempt)))
        request = replace(request, best=better.checked.snapshot, replaced=replaced)
    return site.ask(key, request, cwd=find_cwd(site, request))


def _find_mend_base(site: Site, state: TaskState, tasks: Tasks) -> MendBase | None:
    """Where a mend begins; None: the task is no mend."""
    mend, landing = state.spec.mend, site.spec.landing
    source = tasks[mend.source].place if mend is not None else None
    if mend is None or landing is None or source is None:
        return None
    return MendBase(landing.target, source.commit or "", insists=may_insist(mend.reason), files=mend.files)


def _find_target(site: Site, state: TaskState) -> str | None:
    """The branch at whose end the task begins, wherever that is by now; without landing a user lands there."""
    landing, repository = site.spec.landing, site.spec.repository
    if state.spec.base != "target" or repository is None:
        return None
    return landing.target if landing is not None else f"refs/heads/{repository.base_branch}"


def judge_workspace(site: Site, state: TaskState, ended: Exit, problem: Problem | None) -> Judged:
    """What PREPARE made, or what PARK or RELEASE did with that; a job that failed leaves the worktree.

    All can be repeated, so a job that was killed counts as lost: perhaps the memory was short.
    """
    folder = site.session.job_path(ended.key)
    if problem is None:
        try:
            found = _find_place(folder, ended.key)
            if uses_replicas(site.spec.cluster):
                from sessionrun.runtime.jobs.homecoming import take_home  # few sessions have a cluster

                found = take_home(site, state, ended.key, found)
            if ended.key.phase == "release" and site.spec.feed is not None:
                _shelve_follow_ups(site, state, folder, found)
            return Judged(place=found)
        except JobFileError as error:
            text = f"its answer cannot be used: {error.why}"
        except (SessionrunError, OSError) as error:
            text = f"its work cannot be taken from its node: {error}"
    else:
        text = read_last_line(folder) or problem.text
    exit_code, signal = split_status(ended.wait_status)
    code = exit_code if ended.key.phase == "prepare" else None
    named = Problem(_CLASSES.get(code or 0, WORKSPACE_REASONS[ended.key.phase]), text)
    place = None
    if state.place is not None:
        place = replace(state.place, kept=format_reason(*named))
    return Judged(named, place, can_repeat=signal is not None)


def _shelve_follow_ups(site: Site, state: TaskState, folder: Path, released: Place) -> None:
    """Keep what the task's agent wrote for the queue: no process of the task lives, and the next one may have its
    worktree at once.  From a node it came home beside the answer; what is in a commit is work.
    """
    from sessionrun.queue.follow_ups import NAME, put_aside  # few sessions have a queue
    from sessionrun.queue.place import find_place
    from sessionrun.workspaces.git import Git
    from sessionrun.workspaces.replica import LEFT

    place, feed = state.place, site.spec.feed
    if feed is None or place is None or place.worktree is None:
        return
    source = folder / LEFT if uses_replicas(site.spec.cluster) else Path(place.worktree, NAME)
    if (
        not source.exists()
        or Git(Path(feed.top)).attempt("cat-file", "-e", f"{released.commit}:{NAME}").returncode == 0
    ):
        return
    with suppress(OSError):  # then it stays where it lies: a link, or too large
        put_aside(find_place(Path(feed.top)), source)


def _find_place(folder: Path, key: JobKey) -> Place:
    """What a finished job answered.

    Raises:
        JobFileError: the answer cannot be used, or a PREPARE made no worktree: the task would run in the checkout.
    """
    place = load_place(folder)
    if place is None:
        raise JobFileError(folder / ANSWER, "there is none")
    if key.phase == "prepare" and None in (place.worktree, place.branch, place.base_commit):
        raise JobFileError(folder / ANSWER, "it is damaged: it names no worktree")
    return place

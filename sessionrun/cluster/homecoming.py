"""What is around the jobs of a workspace on a node: it is asked for commits, and its work is taken home."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from sessionrun.agents.reading import Problem
from sessionrun.cluster.replica import name_commits, open_home, set_branch, take_pack, take_work
from sessionrun.cluster.rescues import commit_of, list_packs
from sessionrun.engine.task import TaskState, find_earlier
from sessionrun.git.clone import drop_excerpt
from sessionrun.git.git import GitError
from sessionrun.model.asked import uses_replicas
from sessionrun.model.errors import SessionrunError
from sessionrun.model.events import JobLost
from sessionrun.model.keys import WORKSPACE_PHASES, JobKey
from sessionrun.model.places import Place, Repository
from sessionrun.model.repositories import repository_of
from sessionrun.model.spec import Job
from sessionrun.model.words import WORKSPACE_REASONS
from sessionrun.session.executor import Exit
from sessionrun.session.shared import Judged, Site
from sessionrun.store.jobfiles import REQUEST, load_record, write_record
from sessionrun.worktrees.bases import bring_home, list_home
from sessionrun.worktrees.phases import judge_failed, make_request
from sessionrun.worktrees.request import RESCUE_SUFFIX, WorkspaceRequest


def name_commits_first(site: Site, state: TaskState, job: Job) -> Job:
    """A PREPARE for a node, asked for commits in place of branches."""
    if job.key.phase == "prepare" and uses_replicas(site.spec.cluster):
        folder = site.session.job_path(job.key)
        write_record(folder / REQUEST, name_commits(load_record(folder / REQUEST, WorkspaceRequest)))
    return job


def take_home(site: Site, state: TaskState, ended: Exit, judged: Judged) -> Judged:
    """Take what the job of a workspace left on its node; the place is then as it is here."""
    key, place = ended.key, judged.place
    if place is None or key.phase not in WORKSPACE_PHASES or not uses_replicas(site.spec.cluster):
        return judged
    try:
        return replace(judged, place=_take_place(site, state, key, place))
    except (SessionrunError, OSError) as error:
        text = f"its work cannot be taken from its node: {error}"
        return judge_failed(state, Problem(WORKSPACE_REASONS[key.phase], text))


def _take_place(site: Site, state: TaskState, key: JobKey, place: Place) -> Place:
    """Take what a PARK or RELEASE left on its node; the place, also that of a PREPARE, as it is here."""
    folder, upstream = site.session.job_path(key), state.spec.upstream
    place = replace(place, start=upstream.start if upstream is not None else None)
    repository = repository_of(site.spec, state.spec, place.start)
    if repository is not None and key.phase != "prepare":
        ends = [one for one in (state.place, find_earlier(state)) if one is not None and not one.holds_no_work]
        before = [one.commit for one in ends if one.commit is not None]
        request = make_request(site, state, key)
        place = take_work(repository, place, folder, before, list_home(request, place.branch or ""))
        if key.phase == "release":
            place = bring_home(request, place, folder)
            if upstream is not None and upstream.history is not None:
                drop_excerpt(Path(repository.common_dir))
    if key.phase == "release":
        for pack in _list_packs(site, key):  # the work is here
            pack.unlink(missing_ok=True)
    return place


def judge_left_behind(site: Site, state: TaskState, lost: JobLost) -> Judged | None:
    """What is kept of a worktree whose node did not come back, if its RELEASE is given up; None: nothing."""
    if lost.key.phase != "release" or not uses_replicas(site.spec.cluster):
        return None
    place = state.place
    repository = repository_of(site.spec, state.spec, place.start if place is not None else None)
    if state.job is None or state.job.stopping is None or place is None or repository is None:
        return None
    try:
        taken = take_rescue(repository, place, _list_packs(site, lost.key))
    except (SessionrunError, OSError) as error:
        return Judged(Problem(WORKSPACE_REASONS["release"], f"what came of its work cannot be kept: {error}"))
    if taken is None:
        return None
    text = f"its node did not come back; what it had sent of the work is on {taken.rescue}"
    return Judged(Problem(WORKSPACE_REASONS["release"], text), taken)


def take_rescue(repository: Repository, place: Place, packs: Iterable[Path]) -> Place | None:
    """Keep the newest work that came of a task whose node is lost, on a branch of its own; None: none came."""
    with open_home(repository) as git:
        for pack in packs:
            try:
                take_pack(git, pack)
            except (GitError, OSError):
                continue  # it did not come whole; the one before it did
            name = set_branch(git, f"{place.branch}{RESCUE_SUFFIX}", commit_of(pack))
            return replace(place, rescue=name, commit=commit_of(pack))
    return None


def _list_packs(site: Site, key: JobKey) -> Iterator[Path]:
    """The packs of work in progress that came of an attempt, the newest first."""
    for folder in site.session.find_jobs(key.task, key.attempt, "work"):
        yield from list_packs(folder)

"""The phases of a workspace in the supervisor: their request and process, and what their answer and end mean.

The commands of SETUP are the user's, in a shell.  Before them a program of ours makes the environment, if the task
wants one; behind them another one settles the worktree; all of it is one job.

Also where the environment of a task is, and the variables by which its jobs find that, and overlook its links.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.agents.reading import Problem
from sessionrun.agents.verdict import format_reason, split_status
from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState, find_earlier, find_handed
from sessionrun.engine.transitions import demands_change, find_better
from sessionrun.model.asked import PATH_TOKEN, uses_replicas
from sessionrun.model.errors import JobFileError, RepositoryFailed
from sessionrun.model.keys import JobKey
from sessionrun.model.landings import DROPPED, KEPT, MendBase
from sessionrun.model.places import Place
from sessionrun.model.repositories import repository_of, resets_hard
from sessionrun.model.spec import AND_THEN, Job, TaskSpec, hides_tests, title_of
from sessionrun.model.words import WORKSPACE_REASONS
from sessionrun.session.executor import Exit
from sessionrun.session.shared import PROGRAM, SHELL, Judged, Site, read_last_line
from sessionrun.store.jobfiles import ANSWER, NOT_BEGUN, load_record_if_any, read_tail, write_record
from sessionrun.store.space import check_space
from sessionrun.walls.enclosing import begin_outside, wish_walls
from sessionrun.worktrees.request import (
    ENVIRONMENTS,
    HIDDEN,
    REPORT,
    WISH,
    EnvironmentReport,
    EnvironmentRequest,
    NeedsConflict,
    TestsUnusable,
    WorkRequest,
    WorkspaceRequest,
    find_environment,
    load_place,
    name_variables,
)


def name_environment(site: Site, task: TaskSpec, key: JobKey, place: Place | None) -> Mapping[str, str]:
    if place is None or place.worktree is None:
        return {}
    made = place.environment.path if place.environment else None  # a task may have moved its worktree since
    folder = made or find_environment(place.worktree)
    if uses_replicas(site.spec.cluster):
        return name_variables(folder, task.env.get("PATH") or PATH_TOKEN, {"PYTHONHOME": "perhaps"})
    return name_variables(folder, task.env.get("PATH") or os.environ.get("PATH") or os.defpath, os.environ)


def hide_links(site: Site, task: TaskSpec, key: JobKey, place: Place | None) -> Mapping[str, str]:
    """What makes the task's git overlook links that lead out of the repository: they are no work."""
    if place is None:
        return {}
    prepared = site.session.find_starts(key._replace(round=1, phase="prepare"))
    rules = next((path for folder in prepared if (path := folder / HIDDEN).exists()), None)
    if rules is None:
        return {}
    number = task.env.get("GIT_CONFIG_COUNT") or os.environ.get("GIT_CONFIG_COUNT") or "0"
    setting = {f"GIT_CONFIG_KEY_{number}": "core.excludesFile", f"GIT_CONFIG_VALUE_{number}": str(rules)}
    return {"GIT_CONFIG_COUNT": str(int(number) + 1), **setting} if number.isdecimal() else {}


REPLACED: Final = "a{}-replaced.patch"
"""In a task's folder: what the best round's work took the place of, by the number of the attempt."""


def make_request(site: Site, state: TaskState, key: JobKey) -> WorkspaceRequest:
    """What all jobs of a workspace are asked; a PREPARE for a new place, all others for what was made of it."""
    spec, task = site.spec, state.spec
    place = None if key.phase == "prepare" else state.place
    known = task.upstream.start if task.upstream else None
    repository = repository_of(spec, task, place.start if place else known)
    assert repository is not None
    return WorkspaceRequest(
        repository=repository,
        session_id=spec.session_id,
        task=key.task,
        title=title_of(task),
        links=task.links,
        place=place,
        succeeded=state.decided == "succeeded",
        worked=state.worked,
        expect_change=demands_change(state),
        branch=task.workspace.branch,
        directory=task.workspace.directory,
        limit_s=spec.limits.workspace_timeout_s,
        upstream=task.upstream,
        require_cache=spec.mirrors is not None and spec.mirrors.require_cache,
        seats=spec.seats if task.workspace.kind == "worktree" else None,
        seat=state.seat,
        round=f"a{key.attempt}-round-{key.round}",
        walls=None if task.sandbox is None else str(site.session.walls_path(key)),
    )


def find_cwd(site: Site, request: WorkspaceRequest) -> str:
    """Where such a job runs: in the user's checkout, or in the session's directory if there is only a mirror."""
    return str(site.session.path.absolute()) if request.upstream else request.repository.top


def take_back_first(site: Site, state: TaskState, job: Job) -> Job:
    """A WORK job that sets the worktree back before its agent starts, if it belongs to a further round."""
    key = job.key
    if key.phase != "work" or key.round == 1 or not resets_hard(state.spec):
        return job
    before = key._replace(round=key.round - 1, start=1)
    request = WorkRequest(
        workspace=make_request(site, state, before),
        argv=job.argv,
        first=str(site.session.make_job_path(key._replace(start=1))),
        before=str(site.session.make_job_path(before)),
    )
    return site.wrap(job, request)


def name_not_begun(site: Site, state: TaskState, key: JobKey, problem: Problem) -> Problem:
    path = site.session.job_path(key) / NOT_BEGUN
    if key.phase != "work" or problem.reason_class == "start_failed" or not path.exists():
        return problem
    why = read_tail(path).decode("utf-8", "replace")
    return Problem("workspace_failed", f"the worktree cannot be set back: {why}")


_CLASSES: Final[Mapping[int, str]] = {
    NeedsConflict.job_code: "needs_conflict",
    RepositoryFailed.job_code: "repository_failed",
    TestsUnusable.job_code: "tests_not_run",
}
"""What a PREPARE has found, by its exit code."""


def build(site: Site, state: TaskState, key: JobKey, whole: State) -> Job:
    """The process of a PREPARE, SETUP, PARK or RELEASE; `whole` is the state of the session.

    Raises:
        NoSpace: a worktree is wanted and the disk is nearly full.
    """
    if key.phase == "setup":
        return _build_setup(site, state, key)
    request, mend, landing = make_request(site, state, key), state.spec.mend, site.spec.landing
    if key.phase == "prepare":
        check_space(Path(request.seats.directory if request.seats else request.repository.worktree_dir))
        request = replace(request, needs=find_handed(state, whole.tasks), earlier=find_earlier(state))
        if state.spec.base == "target" and site.spec.repository is not None:  # at its end, wherever that is by now
            usual = f"refs/heads/{site.spec.repository.base_branch}"  # where a user lands if no session does
            request = replace(request, target=landing.target if landing is not None else usual)
        if state.spec.prove is not None and state.spec.prove.hidden is not None:
            request = replace(request, tests=state.spec.prove.hidden.patch)
        if request.seats is not None:
            request = replace(request, prompt="\n\n".join(state.spec.prompts))
    else:
        partly = key.phase == "park" and hides_tests(state.spec)
        request = replace(request, patch=str(site.session.patch_path(key)), partly=partly)
    source = whole.tasks[mend.source].place if mend is not None else None
    if mend is not None and landing is not None and source is not None:
        insists = DROPPED in mend.reason or KEPT in mend.reason  # it may do again what was refused
        base = MendBase(landing.target, source.commit or "", insists=insists, files=mend.files)
        request = replace(request, mend=base)
    better = find_better(state) if key.phase in ("park", "release") else None
    if better is not None:
        replaced = str(site.session.job_path(key).with_name(REPLACED.format(key.attempt)))
        request = replace(request, best=better.checked.snapshot, replaced=replaced)
    return site.ask(key, request, cwd=find_cwd(site, request))


def judge(site: Site, state: TaskState, ended: Exit, problem: Problem | None) -> Judged:
    """What PREPARE made, or what SETUP, PARK or RELEASE did with that; a job that failed leaves the worktree.

    All but SETUP can be repeated, so a job that was killed counts as lost: perhaps the memory was short.
    """
    if ended.key.phase == "setup":
        return _judge_setup(site, state, ended, problem)
    folder = site.session.job_path(ended.key)
    if problem is None:
        try:
            return Judged(place=_find_place(folder, ended.key))
        except JobFileError as error:
            text = f"its answer cannot be used: {error.why}"
    else:
        text = read_last_line(folder) or problem.text
    exit_code, signal = split_status(ended.wait_status)
    code = exit_code if ended.key.phase == "prepare" else None
    reason_class = _CLASSES.get(code or 0, WORKSPACE_REASONS[ended.key.phase])
    return replace(judge_failed(state, Problem(reason_class, text)), can_repeat=signal is not None)


def judge_failed(state: TaskState, problem: Problem) -> Judged:
    """What a job has come to that failed: the worktree stays, and says why."""
    return Judged(problem, state.place and replace(state.place, kept=format_reason(*problem[:2])))


def _find_place(folder: Path, key: JobKey) -> Place:
    """What a finished job answered; one of PREPARE has to name a worktree: the task would run in the checkout."""
    place = load_place(folder)
    if place is None:
        raise JobFileError(folder / ANSWER, "there is none")
    if key.phase == "prepare" and None in (place.worktree, place.branch, place.base_commit):
        raise JobFileError(folder / ANSWER, "it is damaged: it names no worktree")
    return place


_THEN: Final = '"$0" "$1" "$2" "$3" || exit; shift 3; exec "$@"'
"""A command of four words, and if it passes another one, which sees nothing of what the first did to its shell."""


def _build_setup(site: Site, state: TaskState, key: JobKey) -> Job:
    """The commands in one shell, as lines of a script, and then what commits what they left."""
    task, place, script = state.spec, state.place, AND_THEN.join(state.spec.setup)
    words: tuple[str, ...] = (SHELL, "-e", "-c", script)
    if place is None or place.worktree is None:
        return site.run_commands(state, key, words)
    settling = site.ask(key, make_request(site, state, key), cwd="").argv
    walls = wish_walls(site, task, key, place)
    words = (SHELL, "-c", _THEN, *(words if walls is None else begin_outside(walls, words)), *settling)
    if task.environment is not None:
        folder, repository = site.session.make_job_path(key), repository_of(site.spec, task, place.start)
        directory = site.directory_of(task, place)
        wish = wish_environment(site, task, key, place, top=place.worktree, directory=directory)
        is_new = key.start == 1 and place.seat is None and place.taken_up is None
        pristine = is_new and repository is not None and place.base_commit == repository.base_commit
        wish = replace(wish, repository=repository, pristine=pristine and task.sandbox is not None)
        write_record(folder / WISH, wish)
        words = (SHELL, "-c", _THEN, sys.executable, PROGRAM, "environment", str(folder), *words)
    return site.run_commands(state, key, words)


def wish_environment(
    site: Site, task: TaskSpec, key: JobKey, place: Place, *, top: str, directory: str, git: str | None = None
) -> EnvironmentRequest:
    """What is asked for an environment of a task, with the walls inside of which it is built, if any.

    Args:
        place: of the task, with the commit that is checked out at `top`, or above which work lies there.
        top, directory: as of `EnvironmentRequest`.
        git: the repository of the room in which the project lies; None: it is in the task's worktree.
    """
    assert task.environment is not None
    spec, upstream = site.spec, task.upstream
    env = site.environment_of(replace(task, environment=None), key, place)
    return EnvironmentRequest(
        top=top,
        directory=directory,
        cache=f"{site.cache}/{ENVIRONMENTS}",
        python=task.environment.python,
        require_cache=spec.cache is not None and spec.cache.require_cache,
        commit=place.base_commit or "HEAD",
        mirror=upstream.mirror if upstream is not None and upstream.history is not None else None,
        walls=wish_walls(site, task, key, place, env, environment=find_environment(top), git=git),
    )


def _judge_setup(site: Site, state: TaskState, ended: Exit, problem: Problem | None) -> Judged:
    """A failure to make the environment is the machine's, not the commands'.

    Only the job's folder has what it printed, so the reason names a file.
    """
    folder = site.session.job_path(ended.key)
    printed = folder.relative_to(site.session.path)
    if problem is not None:
        judged = Judged(Problem("setup_failed", f"{problem.text}, see {printed / 'stderr'}"))
    else:
        try:
            judged = Judged(place=load_place(folder))
        except JobFileError as error:
            judged = Judged(Problem("setup_failed", f"its answer cannot be used: {error.why}"))
    if state.spec.environment is None:
        return judged
    try:
        report = load_record_if_any(folder / REPORT, EnvironmentReport)
    except JobFileError as error:
        return Judged(Problem("environment_failed", f"its report cannot be used: {error.why}"))
    if report is None:
        return Judged(
            Problem("environment_failed", judged.problem.text if judged.problem else "there is no report")
        )
    place = replace(judged.place or state.place or Place(), environment=report.made)
    if report.problem is None:
        return replace(judged, place=place)
    return Judged(Problem("environment_failed", f"{report.problem}, see {printed}"), place)

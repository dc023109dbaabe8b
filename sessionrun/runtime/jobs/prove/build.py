"""A PROVE: its request and process, and what its answer means."""

from __future__ import annotations

import os
from dataclasses import replace

import orjson

from sessionrun.agents.verdict import Problem, split_status
from sessionrun.engine.state import TaskState
from sessionrun.model.errors import JobFileError
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import Check, Job, TaskSpec
from sessionrun.runtime.executors.protocol import Exit
from sessionrun.runtime.jobs.prove.request import ProveRequest, load_report
from sessionrun.runtime.jobs.shared import Judged, Site
from sessionrun.runtime.jobs.workspace_request import find_cwd, make_request
from sessionrun.store.files import replace_file
from sessionrun.store.jobfiles import read_tail
from sessionrun.workspaces.environments.request import (
    OF_ROOMS,
    WISH,
    EnvironmentRequest,
    find_cache,
    find_target,
)

KNOWN_DIR = "proofs"
"""In the session's directory: how checks ended, by the files that they were done on."""


def build_prove(site: Site, state: TaskState, key: JobKey) -> Job:
    """The process of a PROVE.

    Raises:
        OSError: the session directory cannot be written.
    """
    task, place, asked = state.spec, state.place, make_request(site, state, key)
    assert place is not None and place.worktree is not None
    assert task.prove is not None
    check = task.check or Check(())
    directory = site.directory_of(task, place)
    request = ProveRequest(
        repository=asked.repository,
        owner=asked.owner,
        place=place,
        directory=os.path.relpath(directory, place.worktree),
        setup=task.setup,
        commands=check.commands,
        env=task.env,
        setup_timeout_s=task.setup_timeout_s,
        check_timeout_s=check.timeout_s,
        red=task.prove.red,
        test_files=task.prove.test_files,
        repeat=task.prove.repeat,
        known=str(site.session.path.absolute() / KNOWN_DIR),
        limit_s=asked.git_limit_s,
        hidden=task.prove.hidden,
        environment=_ask_environment(site, task, key),
    )
    if request.environment is not None:
        wish = site.session.make_job_path(key) / WISH
        replace_file(wish, orjson.dumps(request.environment), durable=False)
    bare = replace(task, environment=None)  # the agent may have changed the task's own
    return site.ask(key, request, cwd=find_cwd(site, asked), env=site.environment_of(bare, key, place))


def _ask_environment(site: Site, task: TaskSpec, key: JobKey) -> EnvironmentRequest | None:
    """The environment of the rooms: made as the task's own is, and never the same."""
    if task.environment is None:
        return None
    cache = find_cache()
    return EnvironmentRequest(
        top="",
        directory="",
        cache=cache,
        target=find_target(cache, site.spec.session_id, f"{task.id}{OF_ROOMS}", key.attempt),
        owner=f"{site.spec.session_id}/{task.id}",
        python=task.environment.python,
    )


def judge_prove(site: Site, ended: Exit, problem: Problem | None) -> Judged:
    """What the proof found; one that was killed can be done again."""
    folder = site.session.job_path(ended.key)
    try:
        report = load_report(folder)
    except JobFileError as error:
        return Judged(Problem("unproved", f"its report cannot be used: {error.why}"))
    if report is None:
        printed = read_tail(folder / "stderr").decode("utf-8", "replace").strip().split("\n")[-1]
        why = printed or (problem.text if problem else "its report is gone")
        _, signal = split_status(ended.wait_status)
        return Judged(Problem("unproved", f"the proof could not be made: {why}"), can_repeat=signal is not None)
    reason_class = report.reason_class or report.verdict
    found = None if report.problem is None else Problem(reason_class, report.problem)
    return Judged(found, proof=report.verdict)

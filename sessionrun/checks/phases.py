"""CHECK and PROVE in the supervisor: their requests, what the answers mean, and what SETUP finds out for them."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace

import orjson

from sessionrun.agents import table
from sessionrun.agents.reading import Problem
from sessionrun.agents.verdict import split_status
from sessionrun.checks.requests import CheckRequest, KnownRequest, ProveRequest, Verification, name_known
from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.git.rooms import room_path
from sessionrun.model.checks import CheckReport, ProveReport
from sessionrun.model.keys import JobKey
from sessionrun.model.repositories import has_rounds, resets_hard
from sessionrun.model.spec import AgentSpec, Check, Job, answers_with_patch
from sessionrun.model.words import CHECK_NOT_RUN
from sessionrun.session.executor import Exit
from sessionrun.session.prompt import BriefProblem, list_earlier, load_shown
from sessionrun.session.shared import Judged, Site, read_last_line
from sessionrun.store.files import replace_file
from sessionrun.store.jobfiles import KNOWN, load_answer
from sessionrun.walls.argv import PROMPT
from sessionrun.walls.enclosing import wish_walls
from sessionrun.walls.wish import WallsWish
from sessionrun.worktrees.phases import find_cwd, make_request, wish_environment


def build(site: Site, state: TaskState, key: JobKey, whole: State) -> Job:
    """The process of a CHECK or a PROVE; a script is neither shown a brief nor asked for a verdict."""
    if key.phase == "prove":
        return _build_proof(site, state, key)
    task, agent = state.spec, site.agent_of(state)
    directory = site.directory_of(task, state.place)
    brief = None if agent.prompt_kind == "script" else task.brief
    env = site.environment_outside(task, key, state.place)
    env = {**agent.env, **env} if task.sandbox is None else env
    asked_by = None if brief is None and not (task.check and task.check.verify) else agent
    walls = _enclose(site, state, key, asked_by)
    shown = []
    if brief is not None:
        with suppress(BriefProblem):  # the work removed one of these files
            shown = load_shown(brief, directory, list_earlier(whole.tasks, task), again=False)
    answers, patch = brief is not None and not agent.edits, answers_with_patch(task, agent)
    request = CheckRequest(
        directory=directory,
        prompt="\n\n".join(task.prompts),
        applied=str(site.session.make_job_path(key._replace(start=1)) / "applied.json"),
        brief=brief,
        answer=str(site.session.output_path(task.id)) if answers or patch else None,
        check=task.check or Check(()),
        verification=_make_verification(site, state, key),
        earlier=tuple(file.path for file in shown if file.role == "changed"),
        workspace=make_request(site, state, key) if patch or has_rounds(task) else None,
        keeps=has_rounds(task),
        resets=resets_hard(task) and key.round < task.rounds,
        known=name_known(task),
        before=_find_setup(site, key),
        walls=walls,
    )
    return site.ask(key, request, cwd=directory, env=env)


def _find_setup(site: Site, key: JobKey) -> str | None:
    """The folder of the SETUP of an attempt, if there was one."""
    return next(map(str, site.session.find_starts(JobKey(key.task, key.attempt, 1, "setup", 1))), None)


def judge(site: Site, state: TaskState, ended: Exit, problem: Problem | None) -> Judged:
    """What the end of a CHECK or a PROVE means: its report says more than the end of its process."""
    if ended.key.phase == "prove":
        return _judge_proof(site, ended, problem)
    report = load_answer(site.session.job_path(ended.key), CheckReport)
    why = problem.text if problem else None
    if report is None:
        return Judged(Problem("check_failed", why or "its report is gone"))
    why = report.problem or why
    # any task may have changed what lies in its folder: another class than these counts as a red check
    is_known = report.reason_class in ("no_patch", "bad_patch", CHECK_NOT_RUN)
    reason_class = report.reason_class if is_known else "check_failed"
    return Judged(None if why is None else Problem(reason_class, why), checked=report.checked)


def ask_baseline(site: Site, state: TaskState, job: Job) -> Job:
    """A SETUP, which is asked to run the tests that should pass before the work, if there are any."""
    known = name_known(state.spec)
    if job.key.phase == "setup" and known is not None and known.pass_to_pass:
        request = KnownRequest(known, wish_walls(site, state.spec, job.key, state.place))
        folder = site.session.make_job_path(job.key)
        replace_file(folder / KNOWN, orjson.dumps(request), durable=False)
    return job


def _make_verification(site: Site, state: TaskState, key: JobKey) -> Verification | None:
    """The agent's own command line, but without permission to use tools: a reviewer changes nothing."""
    check, agent = state.spec.check, site.agent_of(state)
    if check is None or not check.verify or agent.prompt_kind == "script":
        return None
    prompt_file = str(site.session.make_job_path(key) / "verdict-prompt")
    on_stdin = agent.stdin == "prompt"
    walls = _enclose(site, state, key, agent)
    seen = prompt_file if walls is None else PROMPT
    argv = table.build_argv(agent, model=state.asked_model, approve=False, prompt_file=seen)
    return Verification(
        argv=argv,
        prompt_file=prompt_file,
        on_stdin=on_stdin,
        output=agent.output,
        walls=walls and replace(walls, prompt=prompt_file, on_stdin=on_stdin),
    )


def _enclose(site: Site, state: TaskState, key: JobKey, agent: AgentSpec | None) -> WallsWish | None:
    env = {**site.agent_of(state).env, **site.environment_of(state.spec, key, state.place)}
    return wish_walls(site, state.spec, key, state.place, env, agent)


# --- PROVE ---


def _build_proof(site: Site, state: TaskState, key: JobKey) -> Job:
    task, place, asked = state.spec, state.place, make_request(site, state, key)
    assert place is not None and place.worktree is not None
    assert task.prove is not None
    directory = os.path.relpath(site.directory_of(task, place), place.worktree)
    room, outside = room_path(asked.repository, asked.owner), replace(task, environment=None)
    env = site.environment_of(outside, key, place)  # the task's own environment is not used here
    wish = None
    if task.environment is not None:
        inside, git = str(room / directory), str(room / ".git")
        wish = wish_environment(site, task, key, place, top=str(room), directory=inside, git=git)
    walls = wish_walls(
        *(site, task, key, place, env), environment=None if wish is None else wish.target, room=str(room)
    )
    request = ProveRequest(
        workspace=asked,
        directory=directory,
        setup=task.setup,
        check=task.check or Check(()),
        prove=task.prove,
        setup_timeout_s=task.setup_timeout_s,
        environment=wish,
        walls=walls,
        before=_find_setup(site, key),
    )
    return site.ask(key, request, cwd=find_cwd(site, asked), env=site.environment_outside(outside, key, place))


def _judge_proof(site: Site, ended: Exit, problem: Problem | None) -> Judged:
    """What the proof found; one that was killed can be done again."""
    folder = site.session.job_path(ended.key)
    report = load_answer(folder, ProveReport)
    if report is None:
        why = read_last_line(folder) or (problem.text if problem else "its report is gone")
        _, signal = split_status(ended.wait_status)
        return Judged(Problem("unproved", f"the proof could not be made: {why}"), can_repeat=signal is not None)
    reason_class = report.reason_class or report.verdict
    found = None if report.problem is None else Problem(reason_class, report.problem)
    return Judged(found, proof=report.verdict, audit=report.audit)

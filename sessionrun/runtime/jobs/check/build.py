"""A CHECK that is more than shell commands: its request and process, and what its answer means."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sessionrun.agents import table
from sessionrun.agents.verdict import Problem, split_status
from sessionrun.engine.task import TaskState
from sessionrun.model.keys import JobKey
from sessionrun.model.reasons import CHECK_NOT_RUN, NO_PROGRAM
from sessionrun.model.repositories import has_worktree
from sessionrun.model.spec import AgentSpec, Check, Job, TaskSpec, answers_with_patch
from sessionrun.runtime.executors.protocol import Exit
from sessionrun.runtime.jobs.check.known import name_known
from sessionrun.runtime.jobs.check.request import APPLIED, CheckReport, CheckRequest, Verification
from sessionrun.runtime.jobs.context_files import BriefProblem, load_shown
from sessionrun.runtime.jobs.prompt import list_earlier
from sessionrun.runtime.jobs.shared import SHELL, Judged, Site, Tasks
from sessionrun.runtime.jobs.workspace_request import has_rounds, make_loop, resets_hard
from sessionrun.store.jobfiles import load_answer
from sessionrun.walls.argv import PROMPT
from sessionrun.walls.wish import WallsWish

VERDICT_PROMPT: Final = "verdict-prompt"
_EACH: Final = 'for command; do "$0" -ec "$command" || exit; done'


def build_check(site: Site, state: TaskState, key: JobKey, tasks: Tasks) -> Job:
    """The process of a CHECK: our own program if `is_ours` says so; else only the commands.

    Args:
        site: the session.
        state: the key's task.
        key: the job.
        tasks: all of the session, by id.

    Raises:
        OSError: the session directory cannot be written.
    """
    task, agent = state.spec, site.agent_of(state)
    if not is_ours(task, agent):
        return site.run_commands(state, key, _word_commands(task))
    directory = site.directory_of(task, state.place)
    brief = None if agent.prompt_kind == "script" else task.brief
    env = site.environment_outside(task, key, state.place)
    env = {**agent.env, **env} if task.sandbox is None else env
    asked_by = None if brief is None and not (task.check and task.check.verify) else agent
    walls = _enclose(site, state, key, asked_by)
    answers, patch = brief is not None and not agent.edits, answers_with_patch(task, agent)
    request = CheckRequest(
        directory=directory,
        prompt="\n\n".join(task.prompts),
        applied=str(site.session.make_job_path(key._replace(start=1)) / APPLIED),
        brief=brief,
        answer=str(site.session.output_path(task.id)) if answers or patch else None,
        check=task.check or Check(()),
        verification=_make_verification(site, state, key),
        earlier=_list_shown(tasks, task, directory) if brief else (),
        loop=make_loop(site, state, key) if patch or has_rounds(task) else None,
        keeps=has_rounds(task),
        patch=patch,
        tells=brief is None and not (task.check and task.check.verify),
        resets=resets_hard(task) and key.round < task.rounds,
        known=name_known(task),
        before=_find_setup(site, key),
        walls=walls,
    )
    return site.ask(key, request, cwd=directory, env=env)


def _word_commands(task: TaskSpec) -> tuple[str, ...]:
    """The commands of a check in plain shells: each in one of its own, and the first that fails ends it."""
    words = task.check.commands if task.check else ()
    return (SHELL, "-ec", words[0]) if len(words) == 1 else (SHELL, "-c", _EACH, SHELL, *words)


def judge_check(site: Site, state: TaskState, ended: Exit, problem: Problem | None) -> Judged:
    """Judge a CHECK: the report of our own program says more than the end of its process."""
    why = problem.text if problem else None
    if not is_ours(state.spec, site.agent_of(state)):
        lack = NO_PROGRAM.get(split_status(ended.wait_status)[0] or 0)
        if lack is not None:
            return Judged(Problem(CHECK_NOT_RUN, f"it could not be run: {why} ({lack})"))
        one = state.spec.check.commands if state.spec.check and len(state.spec.check.commands) == 1 else ()
        return Judged(None if why is None else Problem("check_failed", " of: ".join((why, *one))))
    report = load_answer(site.session.job_path(ended.key), CheckReport)
    if report is not None:
        why = report.problem or why
        return Judged(None if why is None else _name_problem(report, why), checked=report.checked)
    if _is_more_than_commands(state.spec, site.agent_of(state)):
        why = why or "its report is gone"  # of commands alone the exit code says enough
    return Judged(None if why is None else Problem("check_failed", why))


def _find_setup(site: Site, key: JobKey) -> str | None:
    """The folder of the attempt's SETUP, if there was one."""
    starts = site.session.find_starts(JobKey(key.task, key.attempt, 1, "setup", 1))
    return next((str(folder) for folder in starts), None)


def _name_problem(report: CheckReport, found: str) -> Problem:
    """The problem with a class that a CHECK can have; any task may have changed what lies in its folder."""
    is_known = report.reason_class in ("no_patch", "bad_patch", CHECK_NOT_RUN)
    return Problem(report.reason_class if is_known else "check_failed", found)


def is_ours(task: TaskSpec, agent: AgentSpec) -> bool:
    """Whether the task's CHECK is a program of ours.

    It is where more than commands is wanted; and where tests are counted and a failure is worded, which is in a
    worktree and where there are several rounds.  Shell commands that run once, in no worktree, are a plain shell.
    """
    if _is_more_than_commands(task, agent):
        return True
    return bool(task.check and task.check.commands) and (task.rounds > 1 or has_worktree(task))


def _is_more_than_commands(task: TaskSpec, agent: AgentSpec) -> bool:
    """Whether an answer is applied, or a verdict is asked for; a script is neither shown a brief nor asked."""
    if answers_with_patch(task, agent) or name_known(task) is not None:
        return True
    if agent.prompt_kind == "script":
        return False
    return bool(task.check and task.check.verify) or task.brief is not None


def _make_verification(site: Site, state: TaskState, key: JobKey) -> Verification | None:
    """The agent's own command line, but without permission to use tools: a reviewer changes nothing."""
    check, agent = state.spec.check, site.agent_of(state)
    if check is None or not check.verify or agent.prompt_kind == "script":
        return None
    prompt_file = str(site.session.make_job_path(key) / VERDICT_PROMPT)
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
    """The walls of a check, if the task has any; see `wish_walls`."""
    if state.spec.sandbox is None:
        return None
    from sessionrun.runtime.jobs.enclosing import wish_walls  # only walled tasks need it

    task, own = state.spec, site.agent_of(state).env
    env = {**own, **site.environment_of(task, key, state.place)}
    wish = wish_walls(site, task, key, state.place, env, agent)
    return replace(wish, begins_in=site.directory_of(task, state.place))


def _list_shown(tasks: Tasks, task: TaskSpec, directory: str) -> tuple[str, ...]:
    """The files that the agent was shown because other tasks wrote them."""
    if task.brief is None:
        return ()
    try:
        shown = load_shown(task.brief, directory, list_earlier(tasks, task), again=False)
    except BriefProblem:  # the work removed one of these files
        return ()
    return tuple(file.path for file in shown if file.role == "changed")

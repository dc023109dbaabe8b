"""Turns a job key into a process to start, and the end of that process into a verdict.

What to start when is the scheduler's business, starting it the executor's.  WORK is the session's own phase: here
a task's words meet its agent, as argv, prompt file, environment and output files.  Each other phase has a module
in the room of its business.

    build   key -> the phase's module -> a process -> what is put around it
    judge   exit and output -> a problem, if there is one -> what the phase makes of it -> the verdict, made once

If the files of one job, or our code for it, fail, that fails the job, and the session goes on.  A full disk, a
lack of descriptors and a session directory that is not there concern all jobs, and pass: the supervisor holds its
jobs until then.
"""

from __future__ import annotations

import errno
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

import orjson

from sessionrun.agents import table
from sessionrun.agents.prices import price_usage
from sessionrun.agents.reading import WITHOUT_RESULT, AgentResult, Problem, read_lines
from sessionrun.agents.verdict import find_end_of_limit, find_problem, format_reason, split_status
from sessionrun.engine.money import find_job_budget, name_model, to_usd, usage_since
from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.engine.transitions import LINGERING
from sessionrun.house import load
from sessionrun.keeper.wire import say
from sessionrun.model.errors import JobFileError, SessionrunError
from sessionrun.model.events import Event, JobFinished, JobLost, Verdict
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import BUDGET_VARIABLE, AgentSpec, Job, SessionSpec, TaskSpec
from sessionrun.model.usage import Usage
from sessionrun.model.words import EXIT_UNSEEN, LEFT_RUNNING, LINGERED
from sessionrun.session.executor import Exit
from sessionrun.session.prompt import BriefProblem, find_feedback, read_earlier_answer, word_prompt, word_task
from sessionrun.session.shared import Judged, Site, find_phase, list_wraps
from sessionrun.store.files import NotRegular, make_directories, open_regular, replace_file
from sessionrun.store.jobfiles import read_tail
from sessionrun.store.session import AGENT_DIR, WALLS_STATE, SessionDir

TASK_DIR: Final = "{task_dir}"
"""In a task's `args`: a folder of its own in the session, for files of its agent."""

LIMIT: Final = "limit"
"""File in the folder of a WORK job whose agent waited for a limit of its provider without a word: what it met."""

_Build: TypeAlias = Callable[[Site, TaskState, JobKey, State], Job]
_Judge: TypeAlias = Callable[[Site, TaskState, Exit, Problem | None], Judged]


class JobMaker:
    """Makes and judges the jobs of one session."""

    def __init__(self, session: SessionDir, read_spec: Callable[[], SessionSpec]) -> None:
        """`read_spec` tells what was asked for, while more may be asked for."""
        self.site = Site(session, read_spec)

    def build(self, key: JobKey, whole: State) -> Job:
        """The process for a key; writes its prompt and makes its folder.

        Raises:
            OSError: the session directory cannot be written.
            NoSpace: a worktree is wanted and the disk is nearly full.
        """
        state = whole.tasks[key.task]
        build: _Build = build_work if key.phase == "work" else load(find_phase(key.phase).maker).build
        job = build(self.site, state, key, whole)
        for wrap in list_wraps("build", self.site.spec, state.spec):
            job = wrap(self.site, state, job)
        return job

    def judge(self, state: TaskState, ended: Exit) -> list[Event]:
        """What an ended job tells of other tasks, and last the verdict on it; renders a structured stream into
        the task's answer file.
        """
        around = None
        for wrap in list_wraps("ended", self.site.spec, state.spec):
            ended, found = wrap(self.site, state, ended)
            around = around or found
        ran = ended.key.phase == "work" and ended.errno is None
        result, stderr = read_traces(self.site, state, ended.key) if ran else (None, "")
        stopping = state.job.stopping if state.job is not None else None
        # an agent that was ended after its last word is judged by its words: how it dies says nothing
        lingered = result is not None and result.is_final and stopping in LINGERING
        status, stopped = 0 if lingered else ended.wait_status, stopping is not None
        problem = around or find_problem(status, ended.errno, ended.detail, result, stderr, stopped=stopped)
        if ran and problem is None and ended.left and state.spec.leftovers == "fail":
            commands = ", ".join(left.command for left in ended.left)
            problem = Problem(LEFT_RUNNING, f"it was still running when its agent ended: {commands}")
        for wrap in list_wraps("problem", self.site.spec, state.spec) if problem is not None else ():
            problem = wrap(self.site, state, ended.key, problem)
        judged = Judged(around) if around else self._judge_phase(state, ended, problem)
        limit_ends = None
        if problem is not None:
            limit_ends = find_end_of_limit(problem.reason_class, result, stderr, time.time())
        verdict: Verdict = "passed" if judged.problem is None else "lost" if judged.can_repeat else "failed"
        if verdict == "passed" and lingered:
            when = f"after {state.spec.linger_s:g} s" if stopping == "linger" else "when its time was up"
            judged = replace(judged, problem=Problem(LINGERED, f"did not exit by itself; ended {when}"))
        usage = self._price(state, result)
        finished = _make_verdict(ended, verdict, judged, result, usage=usage, resets_at=limit_ends)
        return [*judged.events, finished]

    def judge_unseen(self, state: TaskState, lost: JobLost) -> JobFinished | None:
        """The verdict on WORK whose end was not seen: success if the agent's own report says so; else None.

        It is a failure if what was around the job makes one of its end.
        """
        key, agent = lost.key, self.site.agent_of(state)
        around = [wrap(self.site, state, lost) for wrap in list_wraps("lost", self.site.spec, state.spec)]
        for judged in filter(None, around):
            return _make_verdict(Exit(key, None), "failed", judged)
        if not lost.gone or key.phase != "work" or not table.has_stream(agent):
            return None
        result, _ = read_traces(self.site, state, key)
        if result is None or result.problem is not None:
            return None
        why = Problem(EXIT_UNSEEN, f"its answer is complete, though {lost.reason}")
        usage = self._price(state, result)
        return _make_verdict(Exit(key, None), "passed", Judged(why), result, usage=usage)

    def _judge_phase(self, state: TaskState, ended: Exit, problem: Problem | None) -> Judged:
        judged = Judged(problem)  # of WORK nothing else is known
        if ended.key.phase != "work":
            row = find_phase(ended.key.phase)
            judge: _Judge = load(row.maker).judge
            try:
                judged = judge(self.site, state, ended, problem)
            except JobFileError as error:  # any task may have changed what lies in the job's folder
                return Judged(Problem(row.damaged, f"its report cannot be used: {error.why}"))
        for wrap in list_wraps("judged", self.site.spec, state.spec):
            if judged.problem is None:
                judged = wrap(self.site, state, ended, judged)
        return judged

    def _price(self, state: TaskState, result: AgentResult | None) -> Usage | None:
        """What this run alone used and cost; the agent may report the usage of the whole conversation."""
        if result is None or result.usage is None:
            return None
        used, before = result.usage, state.thread.usage
        is_total = self.site.agent_of(state).output in table.COUNTS_ALL
        if before is not None and is_total and result.conversation in (None, state.thread.conversation):
            used = usage_since(used, before)
        model = name_model(state.agent, result.model, state.asked_model)
        return price_usage(self.site.spec.prices, used, model)


def _make_verdict(
    ended: Exit,
    verdict: Verdict,
    judged: Judged,
    result: AgentResult | None = None,
    *,
    usage: Usage | None = None,
    resets_at: float | None = None,
) -> JobFinished:
    why = judged.problem
    exit_code, signal = split_status(ended.wait_status)
    return JobFinished(
        key=ended.key,
        verdict=verdict,
        reason_class=why.reason_class if why else None,
        reason=format_reason(*why[:2]) if why else None,
        wait_status=ended.wait_status,
        exit_code=exit_code,
        signal=signal,
        ledger=ended.ledger,
        cpu_s=ended.cpu_s,
        conversation=result.conversation if result else None,
        model=result.model if result else None,
        usage=usage,
        place=judged.place,
        resets_at=resets_at,
        turns=result.turns if result else None,
        checked=judged.checked,
        leftovers=ended.left or None,
        proof=judged.proof,
        audit=judged.audit or None,
    )


# --- what cannot be built or judged ---

_IN_THE_WAY: Final = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG)
"""Something else lies where a job's file or folder is to be."""

_NOT_THERE: Final = (errno.ENOENT, errno.EACCES, errno.EPERM)
"""Of one job where the session's directory itself is as it should be."""


def is_of_one_job(error: Exception, session: Path) -> bool:
    """Whether a failure to write the files of a job concerns that job alone, and waiting would not help."""
    if not isinstance(error, OSError) or isinstance(error, NotRegular) or error.errno in _IN_THE_WAY:
        return True
    shared = [session, session / "prompts", *filter(os.path.lexists, [session / "jobs"])]  # it is made when needed
    return error.errno in _NOT_THERE and all(os.access(path, os.W_OK | os.X_OK) for path in shared)


def fail_job(ended: Exit, error: Exception) -> JobFinished:
    """The verdict on a job that cannot be built or judged: what no part of ours foresees is logged."""
    if isinstance(error, BriefProblem):
        problem = Problem("bad_context", str(error))
    elif isinstance(error, OSError):
        name = f" ({Path(os.fsdecode(error.filename)).name})" if isinstance(error.filename, (str, bytes)) else ""
        problem = Problem("infra", f"its files cannot be read or written: {error.strerror or error}{name}")
    elif isinstance(error, SessionrunError):
        problem = Problem("infra", str(error))
    else:
        text = "".join(traceback.format_exception(error))
        say(f"job {ended.key.text()} is given up for a bug:\n{text.rstrip()}")
        problem = Problem("internal", f"{type(error).__name__}: {error} (see supervisor.log)")
    return _make_verdict(ended, "failed", Judged(problem))


# --- WORK ---


def build_work(site: Site, state: TaskState, key: JobKey, whole: State) -> Job:
    """The agent's process; writes the prompt and moves the outputs of earlier jobs out of the way.

    Raises:
        BriefProblem: a file of its brief cannot be shown.
    """
    task, agent, session = state.spec, site.agent_of(state), site.session
    directory = site.directory_of(task, state.place)
    if key.round == 1:  # else they are those of this attempt, and stay if this round cannot begin
        _put_away_older_outputs(site, key)
    wanted = word_task(whole.tasks, task, agent, directory, again=key.round > 1)
    _put_away_older_outputs(site, key)
    prompt_path = session.prompt_path(key)
    feedback_path, feedback = find_feedback(session, state, key)
    conversation = state.thread.conversation if agent.continue_args else None
    prompt = word_prompt(
        site.spec,
        state,
        agent,
        prompt=wanted,
        feedback=feedback,
        conversation=conversation,
        answer=read_earlier_answer(session, state) if conversation is None else "",
    )
    replace_file(prompt_path, prompt, durable=False)
    budget = find_job_budget(site.spec.limits, state)
    env = {**agent.env, **site.environment_of(task, key, state.place)}
    kept = state.job.reserved if state.job else None
    if most := budget if budget is not None else kept and to_usd(kept):
        env[BUDGET_VARIABLE] = f"{most:.9f}"  # a session that this job launches may cost as much as the job itself
    if feedback_path is not None:
        env["SESSIONRUN_FEEDBACK"] = str(feedback_path)
    return Job(
        key=key,
        argv=table.build_argv(
            agent,
            model=state.asked_model,
            approve=site.spec.approve,
            prompt_file=str(prompt_path),
            conversation=conversation,
            budget=budget,
            extra=() if state.fallbacks else _fill_args(site, task, key),
        ),
        cwd=directory,
        stdin=str(prompt_path) if agent.stdin == "prompt" else None,
        stdout=str(session.raw_path(task.id) if table.has_stream(agent) else session.output_path(task.id)),
        stderr=str(session.error_path(task.id)),
        env=env,
        stop_grace_s=agent.stop_grace_s,
        keeps=task.leftovers == "keep",
    )


def note_limit(site: Site, state: TaskState, key: JobKey) -> bool:
    """Whether a silent agent waits for a limit; if so, what it met is written down for `read_traces`."""
    agent, session, task = site.agent_of(state), site.session, state.spec
    stdout = session.raw_path(task.id) if table.has_stream(agent) else session.output_path(task.id)
    cwd, (env, own) = site.directory_of(task, state.place), _find_own_files(site, state, key)
    problem = table.find_silent_limit(agent, stdout, session.error_path(task.id), env, cwd, own)
    try:
        if problem is not None:
            replace_file(session.make_job_path(key) / LIMIT, orjson.dumps([*problem]), durable=True)
    except OSError:  # the disk is full: it is looked at again
        return False
    return problem is not None


def _find_own_files(site: Site, state: TaskState, key: JobKey) -> tuple[Mapping[str, str], str | None]:
    """How the agent finds the files that it keeps for itself: its variables, and inside of walls the folder.

    Those of a node stay there: here it is told a folder that is not there.
    """
    agent, task = site.agent_of(state), state.spec
    env = {**os.environ, **agent.env, **site.environment_of(task, key, state.place)}
    walls = site.session.walls_path(key).with_name(WALLS_STATE) / agent.name
    return env, None if task.sandbox is None and state.node is None else str(walls)


def read_traces(site: Site, state: TaskState, key: JobKey) -> tuple[AgentResult | None, str]:
    """What the agent left: the result in its output (None: plain text, no result), the end of standard error.

    Renders a structured stream into the task's answer file.
    """
    agent, session, task = site.agent_of(state), site.session, state.spec.id
    # a script's standard error comes from the programs that it ran, not from a provider
    stderr = "" if agent.prompt_kind == "script" else table.read_errors(session.error_path(task))
    if agent.output == "text":
        return None, stderr
    answer, errors, raw = session.output_path(task), session.error_path(task), session.raw_path(task)
    if not table.has_stream(agent):
        return table.read_result(agent.output, answer, errors), stderr
    result = table.read_result(agent.output, raw, errors)
    if result.reason_class == LEFT_RUNNING and site.spec.cluster is None:
        ended = table.list_ended(agent, result.conversation, *_find_own_files(site, state, key))
        result = table.read_result(agent.output, raw, errors, ended) if ended else result
    if result.reason_class in WITHOUT_RESULT and (met := read_tail(session.job_path(key) / LIMIT)):
        result = replace(result, problem=Problem(*orjson.loads(met)))
    if result.text is not None:
        replace_file(answer, result.text.encode("utf-8", "replace"), durable=False)
    else:
        _render(agent, raw, answer)
    return result, stderr


def is_final(site: Site, state: TaskState, key: JobKey) -> bool:
    """Whether a WORK job has said its last word, and nothing that it began goes on."""
    return table.is_final(site.agent_of(state), site.session.raw_path(key.task))


def measure_output(site: Site, key: JobKey) -> int:
    """How much a WORK job, or the job of a workspace, has printed (bytes)."""
    session, task = site.session, key.task
    paths = [session.raw_path(task), session.output_path(task), session.error_path(task)]
    size = 0
    for path in paths if key.phase == "work" else [session.job_path(key) / "stdout"]:
        with suppress(OSError):  # it is gone
            size += path.lstat().st_size
    return size


def _fill_args(site: Site, task: TaskSpec, key: JobKey) -> Sequence[str]:
    """The task's own arguments; if they name the agent's folder, it is made."""
    if not any(TASK_DIR in arg for arg in task.args):
        return task.args
    folder = site.session.make_job_path(key).parent / AGENT_DIR
    make_directories(folder, 0o700)
    return [arg.replace(TASK_DIR, str(folder)) for arg in task.args]


def _put_away_older_outputs(site: Site, key: JobKey) -> None:
    """Keep what an earlier WORK job of the task wrote: the top level is for the files of the last WORK job."""
    counted = next((part for part in ("start", "round", "attempt") if getattr(key, part) > 1), None)
    if counted is None:  # it is the first
        return
    older, session = key._replace(**{counted: getattr(key, counted) - 1}), site.session
    names = {"stdout": session.output_path(key.task), "stderr": session.error_path(key.task)}
    names["raw"] = session.raw_path(key.task)
    if not any(path.exists() for path in names.values()):
        return
    # they are of `older`, or of a later round of its attempt
    while any((session.job_path(older) / name).exists() for name in names):
        older = older._replace(round=older.round + 1)
    folder = session.make_job_path(older)
    for name, path in names.items():
        if path.exists():
            os.rename(path, folder / name)


def _render(agent: AgentSpec, raw: Path, answer: Path) -> None:
    """Write all that a stream without a final answer shows into the answer file."""
    try:
        lines = open(raw, "rb", opener=open_regular)
    except OSError:
        return  # the agent removed or replaced the file: that counts as no output
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with lines, os.fdopen(open_regular(answer, flags), "wb") as stream:
        for line in read_lines(lines):
            stream.write(table.render_events(agent.output, line).encode("utf-8", "replace"))

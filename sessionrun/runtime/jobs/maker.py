"""Turns a job key into a process to start, and the end of that process into a verdict.

Here a task's words meet its agent: argv, prompt file, environment, output files.  What to start when is the
scheduler's business, starting it the executor's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

import orjson

from sessionrun.agents import table
from sessionrun.agents.prices import price_usage
from sessionrun.agents.verdict import format_reason, judge_exit
from sessionrun.engine.budget import find_job_budget
from sessionrun.engine.state import TaskState
from sessionrun.engine.totals import name_model, usage_since
from sessionrun.model.errors import JobFileError
from sessionrun.model.events import JobFinished, JobLost
from sessionrun.model.keys import JobKey
from sessionrun.model.places import Place
from sessionrun.model.reasons import EXIT_UNSEEN
from sessionrun.model.spec import AgentSpec, Job, SessionSpec, TaskSpec
from sessionrun.model.usage import Usage
from sessionrun.runtime.executors.protocol import Exit
from sessionrun.runtime.jobs.brief import REFUSAL, make_request, needs_request, word_task
from sessionrun.runtime.jobs.check import request as answers
from sessionrun.runtime.jobs.context_files import BriefProblem
from sessionrun.runtime.jobs.prompt import word_prompt
from sessionrun.runtime.jobs.workspace import REASON_CLASSES as WORKSPACE_CLASSES
from sessionrun.runtime.jobs.workspace import build_workspace_job, judge_workspace_job
from sessionrun.store.files import make_directories, open_regular, replace_file
from sessionrun.store.jobfiles import read_tail
from sessionrun.store.session import AGENT_DIR, SessionDir

SHELL: Final = "/bin/sh"
AND_THEN: Final = "\n(exit $?)\n"
EACH: Final = 'for command; do "$0" -ec "$command" || exit; done'
"""Between commands: ``sh -e`` alone goes on after a failed ``a && b`` or ``! a``, and would call that passed."""

TASK_DIR: Final = "{task_dir}"
"""In a task's `args`: a folder of its own in the session, for files of its agent."""

_PHASE_CLASSES: Final = {"setup": "setup_failed", "check": "check_failed"}


class JobMaker:
    """Makes and judges the jobs of one session."""

    def __init__(self, session: SessionDir, spec: SessionSpec, *, clock: Callable[[], float] = time.time) -> None:
        """
        Args:
            session: where its jobs' files are.
            spec: what was asked for.
            clock: wall time in seconds since the epoch.
        """
        self._session = session
        self._spec = spec
        self._clock = clock
        self._tasks = {task.id: task for task in spec.tasks}

    def build(self, state: TaskState, key: JobKey, tasks: Mapping[str, TaskState]) -> Job:
        """The process for a key; writes its prompt and makes its folder.

        Args:
            state: the key's task.
            key: the job.
            tasks: all of the session, by id.

        Raises:
            OSError: the session directory cannot be written.
            NoSpace: a worktree is wanted and the disk is nearly full.
        """
        if key.phase == "work":
            return self._build_work(state, key)
        if key.phase in WORKSPACE_CLASSES:
            return build_workspace_job(self._session, self._spec, state, key, tasks)
        if key.phase == "check" and needs_request(state.spec, self._spec.agents[state.agent]):
            return self._build_check(state, key)
        return self._build_shell(state.spec, key, state.place)

    def judge(self, state: TaskState, ended: Exit) -> JobFinished:
        """The verdict on an ended job; renders a structured stream into the task's answer file."""
        key = ended.key
        ran = key.phase == "work" and ended.errno is None
        verdict = judge_exit(
            key,
            wait_status=ended.wait_status,
            errno=ended.errno,
            detail=ended.detail,
            result=self._read_result(state) if ran else None,
            now=self._clock(),
            stderr=self._read_errors(state) if ran else "",
        )
        verdict = self._price(state, verdict)
        if key.phase in WORKSPACE_CLASSES:
            verdict = judge_workspace_job(self._session, state, verdict)
        elif key.phase in _PHASE_CLASSES:
            problem = self._find_problem(state, verdict)
            if problem or verdict.verdict == "failed":
                verdict = _name_phase(verdict, _PHASE_CLASSES[key.phase], problem)
        elif ran and verdict.verdict == "failed" and (self._session.job_path(key) / REFUSAL).exists():
            verdict = _name_phase(
                verdict, "bad_context", read_tail(self._session.job_path(key) / REFUSAL).decode("utf-8", "replace")
            )
        return replace(verdict, ledger=ended.ledger, cpu_s=ended.cpu_s)

    def judge_unseen(self, state: TaskState, lost: JobLost) -> JobFinished | None:
        """The verdict on WORK whose exit nobody saw, where its agent's own report is whole and good; else None."""
        key, agent = lost.key, self._spec.agents[state.agent]
        if not lost.gone or key.phase != "work" or not table.has_stream(agent):
            return None
        if os.path.lexists(self._session.job_path(key) / REFUSAL):
            return None  # what lies there is of the round before
        result = self._read_result(state)
        if result is None or not result.ok:
            return None
        verdict = judge_exit(key, wait_status=0, errno=None, detail=None, result=result, now=self._clock())
        reason = f"{EXIT_UNSEEN}: its answer is complete, though {lost.reason}"
        verdict = replace(verdict, reason_class=EXIT_UNSEEN, reason=reason, wait_status=None, exit_code=None)
        return self._price(state, verdict)

    def _price(self, state: TaskState, verdict: JobFinished) -> JobFinished:
        """The verdict with what the run itself used, and what that cost."""
        if verdict.usage is None:
            return verdict
        model = name_model(state.agent, verdict.model, state.asked_model)
        used = self._used_now(state, verdict.conversation, verdict.usage)
        return replace(verdict, usage=price_usage(self._spec.prices, used, model))

    def measure_output(self, key: JobKey) -> int:
        """How much a WORK job has printed on standard output and standard error (bytes), or a job of a workspace.

        What is not there, or was replaced by something that is no file, counts as nothing.
        """
        task = key.task
        if key.phase in WORKSPACE_CLASSES:
            return _size(self._session.job_path(key) / "stdout")
        paths = (self._session.raw_path(task), self._session.output_path(task), self._session.error_path(task))
        return sum(_size(path) for path in paths)

    def _used_now(self, state: TaskState, conversation: str | None, usage: Usage) -> Usage:
        """What this run used by itself, also where its agent reports that of the whole conversation."""
        before = state.thread.usage
        is_total = self._spec.agents[state.agent].output in table.COUNTS_ALL
        if before is None or not is_total or conversation not in (None, state.thread.conversation):
            return usage
        return usage_since(usage, before)

    def _build_work(self, state: TaskState, key: JobKey) -> Job:
        task, place, agent = state.spec, state.place, self._spec.agents[state.agent]
        try:
            wanted = word_task(self._tasks, task, agent, self._cwd(task, place), again=key.round > 1)
        except BriefProblem as problem:
            return self._build_refusal(task, key, place, str(problem))
        self._put_away_older_outputs(task, key)
        prompt_path = self._prompt_path(key)
        feedback = self._feedback_path(key)
        conversation = state.thread.conversation if agent.continue_args else None
        red_check = None if feedback is None else read_tail(feedback) + read_tail(feedback.with_name("stderr"))
        prompt = word_prompt(
            self._spec, state, agent, prompt=wanted, red_check=red_check, conversation=conversation
        )
        with _open_private(prompt_path) as stream:
            stream.write(prompt)
        structured = table.has_stream(agent)
        return Job(
            key=key,
            argv=table.build_argv(
                agent,
                model=state.asked_model,
                approve=self._spec.approve,
                prompt_file=str(prompt_path),
                conversation=conversation,
                budget=find_job_budget(self._spec.limits, state),
                extra=() if state.setbacks.fallbacks else self._fill_args(task, key),
            ),
            cwd=self._cwd(task, place),
            stdin=str(prompt_path) if agent.stdin == "prompt" else None,
            stdout=str(self._session.raw_path(task.id) if structured else self._session.output_path(task.id)),
            stderr=str(self._session.error_path(task.id)),
            env={
                **agent.env,
                **self._env(task, key, place),
                **({"SESSIONRUN_FEEDBACK": str(feedback)} if feedback else {}),
            },
            stop_grace_s=agent.stop_grace_s,
        )

    def _fill_args(self, task: TaskSpec, key: JobKey) -> Sequence[str]:
        """The task's own arguments; its folder is made where they name it."""
        if not any(TASK_DIR in arg for arg in task.args):
            return task.args
        folder = self._session.make_job_path(key).parent / AGENT_DIR
        make_directories(folder, 0o700)
        return [arg.replace(TASK_DIR, str(folder)) for arg in task.args]

    def _build_refusal(self, task: TaskSpec, key: JobKey, place: Place | None, problem: str) -> Job:
        """A WORK job that says why there is no work: its task's failure is data, like any other."""
        folder = self._session.make_job_path(key)
        replace_file(folder / REFUSAL, problem.encode("utf-8", "replace"), durable=False)
        return Job(
            key=key,
            argv=(SHELL, "-c", 'cat "$0" >&2; exit 1', str(folder / REFUSAL)),
            cwd=self._cwd(task, place),
            stdout=str(self._session.output_path(task.id)),
            stderr=str(self._session.error_path(task.id)),
        )

    def _build_check(self, state: TaskState, key: JobKey) -> Job:
        """A CHECK with a brief or a verdict: our own code in a process of its own."""
        task, agent = state.spec, self._spec.agents[state.agent]
        folder, directory = self._session.make_job_path(key), self._cwd(task, state.place)
        request = make_request(
            self._tasks,
            state,
            agent,
            directory=directory,
            answer=self._session.output_path(task.id),
            answer_mark=self._session.make_job_path(key._replace(start=1)) / answers.APPLIED,
            folder=folder,
        )
        replace_file(folder / answers.REQUEST, orjson.dumps(request), durable=False)
        return Job(
            key=key,
            argv=answers.command_line(folder),
            cwd=directory,
            stdout=str(folder / "stdout"),
            stderr=str(folder / "stderr"),
            env={**agent.env, **self._env(task, key, state.place)},
        )

    def _find_problem(self, state: TaskState, verdict: JobFinished) -> str | None:
        """What is wrong with a setup or a check, where more is known than how its process ended."""
        folder, failed = self._session.job_path(verdict.key), verdict.verdict == "failed"
        if verdict.key.phase == "setup":  # nothing else shows what it printed
            why = (verdict.reason or "").partition(": ")[2]
            return f"{why}, see {(folder / 'stderr').relative_to(self._session.path)}" if failed else None
        if not needs_request(state.spec, self._spec.agents[state.agent]):
            return None
        try:
            report = answers.load_report(folder)
        except JobFileError as error:
            return f"its report cannot be used: {error.why}"
        if report is None:
            return None if failed else "its report is gone"
        return report.problem

    def _build_shell(self, task: TaskSpec, key: JobKey, place: Place | None) -> Job:
        """SETUP: its commands in one shell, as lines of a script.  CHECK: each command in a shell of its own."""
        commands = task.setup if key.phase == "setup" else task.check.commands if task.check else ()
        one = key.phase == "setup" or len(commands) == 1
        folder = self._session.make_job_path(key)
        return Job(
            key=key,
            argv=(SHELL, "-ec", AND_THEN.join(commands)) if one else (SHELL, "-c", EACH, SHELL, *commands),
            cwd=self._cwd(task, place),
            stdout=str(folder / "stdout"),
            stderr=str(folder / "stderr"),
            env=self._env(task, key, place),
        )

    def _cwd(self, task: TaskSpec, place: Place | None) -> str:
        """The task's directory; inside its worktree the same one that was meant in the user's checkout."""
        cwd = os.path.join(self._spec.cwd, task.cwd) if task.cwd else self._spec.cwd
        if place is None or place.worktree is None or self._spec.repository is None:
            return cwd
        inside = os.path.relpath(os.path.realpath(cwd), os.path.realpath(self._spec.repository.top))
        outside = inside == os.pardir or inside.startswith(os.pardir + os.sep)
        return cwd if outside else os.path.normpath(os.path.join(place.worktree, inside))

    def _env(self, task: TaskSpec, key: JobKey, place: Place | None) -> Mapping[str, str]:
        return {
            **task.env,
            **self._place_env(place),
            "SESSIONRUN_SESSION": self._spec.session_id,
            "SESSIONRUN_TASK": task.id,
            "SESSIONRUN_ATTEMPT": str(key.attempt),
            "SESSIONRUN_ROUND": str(key.round),
        }

    def _place_env(self, place: Place | None) -> Mapping[str, str]:
        if place is None or self._spec.repository is None:
            return {}
        return {
            "SESSIONRUN_BRANCH": place.branch or "",
            "SESSIONRUN_WORKTREE": place.worktree or "",
            "SESSIONRUN_BASE_COMMIT": place.base_commit or "",
            "SESSIONRUN_REPOSITORY": self._spec.repository.top,
        }

    def _prompt_path(self, key: JobKey) -> Path:
        if (key.attempt, key.round, key.start) == (1, 1, 1):
            return self._session.prompt_path(key.task)
        return self._session.make_job_path(key) / "prompt"

    def _feedback_path(self, key: JobKey) -> Path | None:
        """The output of the check that sent the task into this round."""
        if key.round == 1:
            return None
        check = key._replace(round=key.round - 1, phase="check")
        starts = (self._session.job_path(check._replace(start=start)) for start in (3, 2, 1))
        return next((folder / "stdout" for folder in starts if folder.is_dir()), None)

    def _put_away_older_outputs(self, task: TaskSpec, key: JobKey) -> None:
        """Keep what an earlier WORK job of the task wrote; the top level holds the last one's files."""
        older = _key_before(key)
        if older is None:
            return
        names = {"stdout": self._session.output_path(task.id), "stderr": self._session.error_path(task.id)}
        names["raw"] = self._session.raw_path(task.id)
        if not any(path.exists() for path in names.values()):
            return
        folder = self._free_folder(older)
        for name, path in names.items():
            if path.exists():
                os.rename(path, folder / name)

    def _free_folder(self, key: JobKey) -> Path:
        """The folder of the WORK job that wrote last: of `key`, or of a later round of its attempt."""
        while any((self._session.job_path(key) / name).exists() for name in ("stdout", "stderr", "raw")):
            key = key._replace(round=key.round + 1)
        return self._session.make_job_path(key)

    def _read_errors(self, state: TaskState) -> str:
        """The end of an agent's standard error; a script's tells of its programs, and not of a provider."""
        if self._spec.agents[state.agent].prompt_kind == "script":
            return ""
        return table.read_errors(self._session.error_path(state.spec.id))

    def _read_result(self, state: TaskState) -> table.AgentResult | None:
        task, agent = state.spec, self._spec.agents[state.agent]
        if agent.output == "text":
            return None
        answer, errors = self._session.output_path(task.id), self._session.error_path(task.id)
        raw = self._session.raw_path(task.id)
        if not table.has_stream(agent):
            return table.read_result(agent.output, answer, errors)
        result = table.read_result(agent.output, raw, errors)
        if result.text is not None:
            replace_file(answer, result.text.encode("utf-8", "replace"), durable=False)
        else:
            _render(agent, raw, answer)
        return result


def _key_before(key: JobKey) -> JobKey | None:
    """The WORK key whose outputs may lie at the top level when `key` starts."""
    if key.start > 1:
        return key._replace(start=key.start - 1)
    if key.round > 1:
        return key._replace(round=key.round - 1)
    if key.attempt > 1:
        return key._replace(attempt=key.attempt - 1)
    return None


def _name_phase(verdict: JobFinished, reason_class: str, problem: str | None) -> JobFinished:
    """A failed setup or check is named as such, whatever made it fail; `problem` is what, if it is known."""
    what = problem or (verdict.reason or "").partition(": ")[2]
    return replace(verdict, verdict="failed", reason_class=reason_class, reason=format_reason(reason_class, what))


def _open_private(path: Path) -> BinaryIO:
    """A new or emptied file of ours; a link or FIFO that an agent planted in its place is refused."""
    return os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb")


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _render(agent: AgentSpec, raw: Path, answer: Path) -> None:
    """A stream without a final answer: show what it did say."""
    try:
        lines = table.open_output(raw)
    except OSError:
        return  # the agent removed it, or put something else in its place: it has said nothing
    with lines, _open_private(answer) as stream:
        for line in table.read_lines(lines):
            stream.write(table.render_events(agent.output, line).encode("utf-8", "replace"))

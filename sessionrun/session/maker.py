"""Turns a job key into a process to start, and the end of that process into a verdict.

Each phase has a module (see `rows`); what to start when is the scheduler's business, starting it the executor's.

    build   key -> the phase's module -> a process -> what is put around it
    judge   exit and output -> a problem, if there is one -> what the phase makes of it -> the verdict, made once
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from sessionrun.agents import table
from sessionrun.agents.prices import price_usage
from sessionrun.agents.reading import AgentResult, Problem
from sessionrun.agents.verdict import find_end_of_limit, find_problem, format_reason, split_status
from sessionrun.engine.money import name_model, usage_since
from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.engine.transitions import LINGERING
from sessionrun.house import load
from sessionrun.model.errors import JobFileError
from sessionrun.model.events import Event, JobFinished, JobLost, Verdict
from sessionrun.model.keys import JobKey
from sessionrun.model.reasons import EXIT_UNSEEN, LEFT_RUNNING, LINGERED
from sessionrun.model.spec import Job, SessionSpec
from sessionrun.model.usage import Usage
from sessionrun.session import work
from sessionrun.session.executor import Exit
from sessionrun.session.shared import Judged, Site, find_phase, list_wraps
from sessionrun.session.work import Traces, is_refused, read_traces
from sessionrun.store.session import SessionDir

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
        build: _Build = work.build if key.phase == "work" else load(find_phase(key.phase).maker).build
        job = build(self.site, state, key, whole)
        if key.phase == "work" and is_refused(self.site, key):
            return job  # it only prints why, and no agent: nothing is around it
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
        traces = read_traces(self.site, state, ended.key) if ran else Traces()
        stopping = state.job.stopping if state.job is not None else None
        # an agent that was ended after its last word is judged by its words: how it dies says nothing
        lingered = traces.result is not None and traces.result.is_final and stopping in LINGERING
        status, stopped = 0 if lingered else ended.wait_status, stopping is not None
        problem = around or find_problem(
            status, ended.errno, ended.detail, traces.result, traces.stderr, stopped=stopped
        )
        if ran and problem is None and ended.left and state.spec.leftovers == "fail":
            commands = ", ".join(left.command for left in ended.left)
            problem = Problem(LEFT_RUNNING, f"it was still running when its agent ended: {commands}")
        for wrap in list_wraps("problem", self.site.spec, state.spec) if problem is not None else ():
            problem = wrap(self.site, state, ended.key, problem)
        judged = Judged(around) if around else self._judge_phase(state, ended, problem)
        limit_ends = None
        if problem is not None:
            limit_ends = find_end_of_limit(problem.reason_class, traces.result, traces.stderr, time.time())
        verdict: Verdict = "passed" if judged.problem is None else "lost" if judged.can_repeat else "failed"
        if verdict == "passed" and lingered:
            when = f"after {state.spec.linger_s:g} s" if stopping == "linger" else "when its time was up"
            judged = replace(judged, problem=Problem(LINGERED, f"did not exit by itself; ended {when}"))
        return [
            *judged.events,
            self._make_verdict(state, ended, verdict, judged, traces.result, resets_at=limit_ends),
        ]

    def judge_unseen(self, state: TaskState, lost: JobLost) -> JobFinished | None:
        """The verdict on WORK whose end was not seen: success if the agent's own report says so; else None.

        It is a failure if what was around the job makes one of its end.
        """
        key, agent = lost.key, self.site.agent_of(state)
        around = [wrap(self.site, state, lost) for wrap in list_wraps("lost", self.site.spec, state.spec)]
        for judged in filter(None, around):
            return self._make_verdict(state, Exit(key, None), "failed", judged, None)
        if not lost.gone or key.phase != "work" or not table.has_stream(agent) or is_refused(self.site, key):
            return None
        result = read_traces(self.site, state, key).result
        if result is None or result.problem is not None:
            return None
        why = Problem(EXIT_UNSEEN, f"its answer is complete, though {lost.reason}")
        return self._make_verdict(state, Exit(key, None), "passed", Judged(why), result)

    def _judge_phase(self, state: TaskState, ended: Exit, problem: Problem | None) -> Judged:
        phase = ended.key.phase
        judge: _Judge = work.judge if phase == "work" else load(find_phase(phase).maker).judge
        try:
            judged = judge(self.site, state, ended, problem)
        except JobFileError as error:  # any task may have changed what lies in the job's folder
            return Judged(Problem(find_phase(phase).damaged, f"its report cannot be used: {error.why}"))
        for wrap in list_wraps("judged", self.site.spec, state.spec):
            if judged.problem is None:
                judged = wrap(self.site, state, ended, judged)
        return judged

    def _make_verdict(
        self,
        state: TaskState,
        ended: Exit,
        verdict: Verdict,
        judged: Judged,
        result: AgentResult | None,
        *,
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
            usage=self._price(state, result) if result else None,
            place=judged.place,
            resets_at=resets_at,
            turns=result.turns if result else None,
            checked=judged.checked,
            leftovers=ended.left or None,
            proof=judged.proof,
            audit=judged.audit or None,
        )

    def _price(self, state: TaskState, result: AgentResult) -> Usage | None:
        """What this run alone used and cost; the agent may report the usage of the whole conversation."""
        used, before = result.usage, state.thread.usage
        if used is None:
            return None
        is_total = self.site.agent_of(state).output in table.COUNTS_ALL
        if before is not None and is_total and result.conversation in (None, state.thread.conversation):
            used = usage_since(used, before)
        model = name_model(state.agent, result.model, state.asked_model)
        return price_usage(self.site.spec.prices, used, model)

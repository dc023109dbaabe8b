"""Turns a job key into a process to start, and the end of that process into a verdict.

Each phase has a module here; what to start when is the scheduler's business, starting it the executor's.

    build   key -> the phase's module -> a process
    judge   exit and output -> a problem, if there is one -> what the phase makes of it -> the verdict, made once
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from sessionrun.agents import table
from sessionrun.agents.prices import price_usage
from sessionrun.agents.reading import AgentResult
from sessionrun.agents.verdict import Problem, find_end_of_limit, find_problem, format_reason, split_status
from sessionrun.engine.money import name_model, usage_since
from sessionrun.engine.task import TaskState
from sessionrun.engine.transitions import LINGERING
from sessionrun.model.cluster import uses_replicas
from sessionrun.model.errors import JobFileError
from sessionrun.model.events import Event, JobFinished, JobLost, Verdict
from sessionrun.model.keys import JobKey, Phase
from sessionrun.model.landings import LAND_FAILED
from sessionrun.model.reasons import EXIT_UNSEEN, LEFT_RUNNING, LINGERED
from sessionrun.model.spec import Job, SessionSpec
from sessionrun.model.usage import Usage
from sessionrun.runtime.executors.protocol import Exit
from sessionrun.runtime.jobs.check.build import build_check, judge_check
from sessionrun.runtime.jobs.land.build import build_land, find_fates, judge_land
from sessionrun.runtime.jobs.prove.build import build_prove, judge_prove
from sessionrun.runtime.jobs.setup import build_setup, judge_setup
from sessionrun.runtime.jobs.shared import Judged, Site, Tasks
from sessionrun.runtime.jobs.work import (
    Traces,
    build_work,
    is_refused,
    judge_work,
    measure_file,
    measure_work,
    note_limit,
    read_traces,
)
from sessionrun.runtime.jobs.workspace import build_workspace, judge_workspace
from sessionrun.store.session import SessionDir

_Build: TypeAlias = Callable[[Site, TaskState, JobKey, Tasks], Job]
_Judge: TypeAlias = Callable[[Site, TaskState, Exit, Problem | None], Judged]

_PHASES: Final[Mapping[Phase, tuple[_Build | None, _Judge]]] = {
    "prepare": (build_workspace, judge_workspace),
    "setup": (build_setup, judge_setup),
    "work": (build_work, judge_work),
    "check": (build_check, judge_check),
    "park": (build_workspace, judge_workspace),
    "prove": (build_prove, judge_prove),
    "land": (None, judge_land),
    "release": (build_workspace, judge_workspace),
}
"""What makes a job of the phase, and what judges its end.  `JobMaker.build_land` makes a LAND: that is no task's.
What the process of a job does is the other half of this table, in `job`: the two must not import each other."""

_DAMAGED: Final[Mapping[str, str]] = {
    "check": "check_failed",
    "prove": "unproved",
    "land": LAND_FAILED,
}
"""By phase the class of a job whose report cannot be used; the judges of the others say more of it."""


class JobMaker:
    """Makes and judges the jobs of one session."""

    def __init__(
        self,
        session: SessionDir,
        spec: SessionSpec | Callable[[], SessionSpec],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            session: where its jobs' files are.
            spec: what was asked for, or what tells it while more may be asked for.
            clock: wall time in seconds since the epoch.
        """
        self._site = Site(session, spec if callable(spec) else lambda: spec)
        self._clock = clock

    def build(self, state: TaskState, key: JobKey, tasks: Tasks) -> Job:
        """The process for a key; writes its prompt and makes its folder.

        Args:
            state: the key's task.
            key: the job.
            tasks: all of the session, by id.

        Raises:
            OSError: the session directory cannot be written.
            NoSpace: a worktree is wanted and the disk is nearly full.
        """
        build, _ = _PHASES[key.phase]
        assert build is not None
        return build(self._site, state, key, tasks)

    def build_land(self, key: JobKey, tasks: Tasks, *, only_mend: bool) -> Job:
        """The process of a LAND, as in `build`; with `only_mend` it lands nothing new."""
        return build_land(self._site, key, tasks, only_mend=only_mend)

    def judge(self, state: TaskState, ended: Exit) -> JobFinished:
        """The verdict on an ended job; renders a structured stream into the task's answer file."""
        no_walls = None
        if state.spec.sandbox is not None:
            from sessionrun.runtime.jobs.walled_end import name_full, take_report  # only walled tasks need it

            ended, no_walls = take_report(self._site, ended, state.spec.sandbox)
        ran = ended.key.phase == "work" and ended.errno is None
        traces = read_traces(self._site, state, ended.key) if ran else Traces()
        stopping = state.job.stopping if state.job is not None else None
        # an agent that was ended after its last word is judged by its words: how it dies says nothing
        lingered = traces.result is not None and traces.result.is_final and stopping in LINGERING
        status, stopped = 0 if lingered else ended.wait_status, stopping is not None
        problem = no_walls or find_problem(
            status, ended.errno, ended.detail, traces.result, traces.stderr, stopped=stopped
        )
        if ran and problem is None and ended.left and state.spec.leftovers == "fail":
            commands = ", ".join(left.command for left in ended.left)
            problem = Problem(LEFT_RUNNING, f"it was still running when its agent ended: {commands}")
        if state.spec.sandbox is not None:
            problem = name_full(self._site, ended.key, state.spec.sandbox, problem)
        judged = Judged(no_walls) if no_walls else self._judge_phase(state, ended, problem)
        limit_ends = None
        if problem is not None:
            limit_ends = find_end_of_limit(problem.reason_class, traces.result, traces.stderr, self._clock())
        verdict: Verdict = "passed" if judged.problem is None else "lost" if judged.can_repeat else "failed"
        if verdict == "passed" and lingered:
            when = f"after {state.spec.linger_s:g} s" if stopping == "linger" else "when its time was up"
            judged = replace(judged, problem=Problem(LINGERED, f"did not exit by itself; ended {when}"))
        return self._make_verdict(state, ended, verdict, judged, traces.result, resets_at=limit_ends)

    def find_fates(self, ended: Exit) -> Sequence[Event]:
        """Return what became of the work of each task of a LAND that has ended."""
        return find_fates(self._site, ended.key)

    def judge_unseen(self, state: TaskState, lost: JobLost) -> JobFinished | None:
        """The verdict on WORK whose end was not seen: success if the agent's own report says so; else None.

        If the node that has a task's worktree did not come back in time, what it had sent of the work is kept.
        """
        key, agent = lost.key, self._site.agent_of(state)
        if lost.gone and state.spec.sandbox is not None:
            from sessionrun.runtime.jobs.walled_end import settle  # only walled tasks need it

            settle(self._site.session.job_path(key))
        if key.phase == "release" and uses_replicas(self._site.spec.cluster):
            from sessionrun.runtime.jobs.homecoming import judge_left_behind  # few sessions have a cluster

            judged = judge_left_behind(self._site, state, lost)
            return None if judged is None else self._make_verdict(state, Exit(key, None), "failed", judged, None)
        if not lost.gone or key.phase != "work" or not table.has_stream(agent) or is_refused(self._site, key):
            return None
        result = read_traces(self._site, state, key).result
        if result is None or not result.ok:
            return None
        why = Problem(EXIT_UNSEEN, f"its answer is complete, though {lost.reason}")
        return self._make_verdict(state, Exit(key, None), "passed", Judged(why), result)

    def measure_output(self, key: JobKey) -> int:
        """How much a WORK job, or the job of a workspace, has printed (bytes)."""
        if key.phase == "work":
            return measure_work(self._site, key.task)
        return measure_file(self._site.session.job_path(key) / "stdout")

    def note_limit(self, state: TaskState, key: JobKey) -> bool:
        """Whether a silent WORK job waits for a limit of its provider; if it does, its verdict will say so."""
        return note_limit(self._site, state, key)

    def is_final(self, state: TaskState, key: JobKey) -> bool:
        """Whether a WORK job has said its last word, and nothing that it began goes on."""
        return table.is_final(self._site.agent_of(state), self._site.session.raw_path(key.task))

    def _judge_phase(self, state: TaskState, ended: Exit, problem: Problem | None) -> Judged:
        _, judge = _PHASES[ended.key.phase]
        try:
            return judge(self._site, state, ended, problem)
        except JobFileError as error:  # any task may have changed what lies in the job's folder
            return Judged(Problem(_DAMAGED[ended.key.phase], f"its report cannot be used: {error.why}"))

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
            reason=format_reason(*why) if why else None,
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
        is_total = self._site.agent_of(state).output in table.COUNTS_ALL
        if before is not None and is_total and result.conversation in (None, state.thread.conversation):
            used = usage_since(used, before)
        model = name_model(state.agent, result.model, state.asked_model)
        return price_usage(self._site.spec.prices, used, model)

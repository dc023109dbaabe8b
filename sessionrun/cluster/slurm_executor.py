"""Runs jobs as Slurm's; those that work in git run here, where the repository's locks are.

The journal is the first fence: a claim names its batch, and is durable before anything is submitted.  The second
is the claim file, which a job needs to begin: it counts as never begun only once this side holds that.  Whatever
Slurm does later, or a submission that is still on its way, the job cannot begin.

Slurm is asked about all jobs at once, at an interval; ends come sooner, by the records that the nodes leave.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from sessionrun.cluster import slurm_jobs
from sessionrun.cluster.slurm_jobs import RETRY_S, OpenJob, SlurmFault
from sessionrun.cluster.slurm_node import CLAIM, END, MAX_BYTES, claim, dump, load
from sessionrun.model.asked import SLURM, Sandbox
from sessionrun.model.events import HoldPlaced, JobClaimed, JobLost, JobStarted
from sessionrun.model.keys import JobKey, Phase
from sessionrun.model.spec import SLOT, Job, SessionSpec
from sessionrun.session.executor import Executor, Notice, as_order, describe_order
from sessionrun.session.worker import Worker
from sessionrun.store.files import make_directories, replace_file
from sessionrun.store.session import SessionDir

HEAD_PHASES: Final[tuple[Phase, ...]] = ("prepare", "park", "land", "release")
POLL_VARIABLE: Final = "SESSIONRUN_SLURM_POLL"
"""How often squeue is run while a job is open (seconds)."""

POLL_S: Final = 5.0
LOOK_S: Final = 0.5
"""How often the folders of jobs that run are looked at for the record of their end."""

CLOSE_TIMEOUT_S: Final = 5.0


class SlurmExecutor:
    """The executor of a session whose jobs are Slurm's; the nodes see the session's directory under the same path.

    `local` is the executor of this machine; `gen` counts the lives of the supervisor.  Of the `opened` jobs, which
    the journal has at Slurm, it is known in which batch they are, and whether their beginning was told.
    """

    needs_sync = True

    def __init__(
        self,
        session: SessionDir,
        spec: SessionSpec,
        local: Executor,
        gen: int,
        opened: Mapping[JobKey, tuple[str, bool]],
        log: Callable[[object], None],
    ) -> None:
        assert spec.cluster is not None
        self._local = local
        self._gen = gen
        self._number = 1
        self._in_batch = 0
        self._claimed: dict[JobKey, str] = {}
        environ = dict(os.environ)
        run = partial(slurm_jobs.run_program, slurm_jobs.make_environment(environ))
        self._desk = Desk(session, spec.cluster.options, environ, log, find_poll(environ), run)
        self._opened = opened
        self._worker: Worker[Callable[[], list[Notice]], Notice] = Worker("slurm", self._work)
        self._worker.start()

    def claim(self, key: JobKey, node: str | None, sandbox: Sandbox | None) -> JobClaimed:
        """See `Executor.claim`: where it will run, Slurm decides."""
        if key.phase in HEAD_PHASES:
            return JobClaimed(key)
        if self._in_batch >= slurm_jobs.LARGEST_ARRAY:
            self._next_batch()
        self._in_batch += 1
        batch = self._claimed[key] = f"{self._gen}-{self._number}"
        return JobClaimed(key, SLURM, batch)

    def _next_batch(self) -> None:
        self._number, self._in_batch = self._number + 1, 0

    def settle(self) -> None:
        """See `Executor.settle`: the records stay where they are."""

    def start(self, jobs: Sequence[Job]) -> list[Notice]:
        """See `Executor.start`: what is started together is submitted together."""
        here = [job for job in jobs if job.key.phase in HEAD_PHASES]
        batches: dict[str, list[Job]] = {}
        for job in jobs:
            if job.key in self._claimed:
                batches.setdefault(self._claimed[job.key], []).append(job)
        for batch, of_batch in batches.items():
            self._worker.ask(partial(self._desk.submit, batch, of_batch))
        self._claimed.clear()  # the others could not be built
        if batches:
            self._next_batch()
        return self._local.start(here) if here else []

    def stop(self, key: JobKey, *, now: bool = False) -> None:
        if key.phase in HEAD_PHASES:
            self._local.stop(key, now=now)
        else:
            self._worker.ask(partial(self._desk.stop, key, now=now))

    def wait(self, timeout_s: float | None, *wake_fds: int) -> list[Notice]:
        """See `Executor.wait`.

        Raises:
            KeeperGone: the keeper of this machine is dead.
            RuntimeError: the thread that speaks with Slurm has died; another supervisor begins with a new one.
        """
        notices = [*self._local.wait(timeout_s, self._worker.fd, *wake_fds), *self._worker.take()]
        if self._worker.fault is not None and not notices:
            raise RuntimeError(f"Slurm: {self._worker.fault}")
        return notices

    def close(self) -> None:
        self._worker.stop(CLOSE_TIMEOUT_S)
        self._local.close()

    # --- the thread that uses the desk: a program of Slurm's that takes its time holds up nothing else ---

    def _work(self, worker: Worker[Callable[[], list[Notice]], Notice]) -> None:
        self._desk.reattach(self._opened)
        while (orders := worker.wait(LOOK_S if self._desk.open else None)) or not worker.is_stopping:
            for order in orders:
                worker.tell(*order())
            worker.tell(*self._desk.look())


def find_poll(environ: Mapping[str, str]) -> float:
    """How often to ask Slurm (seconds); what is no number of at least 0.1 says nothing."""
    try:
        return max(0.1, float(environ.get(POLL_VARIABLE, "")))
    except ValueError:
        return POLL_S


# --- the desk ---

SIGNAL_AGAIN_S: Final = 2.0
KILL_SLACK_S: Final = 15.0
"""So long after its grace a job that is stopped is left to what runs around it; then Slurm kills it."""


class Desk:
    """What a session has open at Slurm: submits, looks, signals, and says what became of each job.

    One thread uses it.  `options` are the user's for sbatch; jobs get `environ`.  squeue is run each `poll_s`
    seconds while a job is open.  `run` is `slurm_jobs.run_program`, and `clock` is monotonic (seconds).
    """

    def __init__(
        self,
        session: SessionDir,
        options: Mapping[str, str],
        environ: Mapping[str, str],
        log: Callable[[object], None],
        poll_s: float,
        run: Callable[..., str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._options = options
        self._environ = dict(environ)
        self._run = run
        self._log = log
        self._poll_s = poll_s
        self._clock = clock
        self._prefix = f"sessionrun-{session.session_id}-"
        self._next_look = 0.0
        self._complaint: str | None = None
        self._answering: frozenset[str] = frozenset()
        self.open: dict[JobKey, OpenJob] = {}

    # --- what comes in ---

    def reattach(self, opened: Mapping[JobKey, tuple[str, bool]]) -> None:
        """Take over what an earlier supervisor had claimed: see `SlurmExecutor`."""
        for batch in sorted({batch for batch, _ in opened.values()}):
            try:
                jobs = load(self._batch_path(batch))["jobs"]
            except (OSError, ValueError):
                jobs = []  # it died before it had written the batch, so nothing was submitted
            places = {job["key"]: (index, float(job["grace_s"])) for index, job in enumerate(jobs)}
            for key, (named, reported) in opened.items():
                if named == batch:
                    index, grace_s = places.get(key.text(), (None, 0.0))
                    self.open[key] = OpenJob(key, batch, index, grace_s, reported=reported)

    def stop(self, key: JobKey, *, now: bool) -> list[Notice]:
        """Begin to stop a job; what became of it comes with `look`."""
        job = self.open.get(key)
        if job is not None and job.stop != "USR2":
            if job.stop is None:
                job.stop_at = self._clock()
            job.stop, job.signal_at = "USR2" if now else "TERM", 0.0
        return []

    def submit(self, batch: str, jobs: Sequence[Job]) -> list[Notice]:
        """Hand a batch to Slurm as one array."""
        about = {"session": self._session.session_id, "environ": self._environ}
        try:
            make_directories(self._batch_path(batch).parent, 0o700)
            folders = [self._session.make_job_path(job.key).relative_to(self._session.path) for job in jobs]
            orders = [
                {**describe_order(as_order(job)), "folder": str(folder)}
                for job, folder in zip(jobs, folders, strict=True)
            ]
            replace_file(self._batch_path(batch), dump({**about, "jobs": orders}), durable=True)
        except (OSError, ValueError) as error:
            return self._give_up(batch, jobs, f"the batch cannot be written: {error}", claim=False)
        name = f"{self._prefix}{batch}"
        words = slurm_jobs.submit_words(self._session.path, batch, name, len(jobs), self._options)
        try:
            array = self._run(words, slurm_jobs.SUBMIT_S).strip().partition(";")[0]
        except SlurmFault as fault:
            with suppress(SlurmFault):  # it may have been taken all the same
                self._run(["scancel", f"--name={name}", f"--user={os.getuid()}", "--state=PENDING"])
            return self._give_up(batch, jobs, f"Slurm does not take it: {fault}", claim=True)
        for index, job in enumerate(jobs):
            self.open[job.key] = OpenJob(job.key, batch, index, job.stop_grace_s, array)
        self._next_look = self._clock() + self._poll_s
        return []

    def _give_up(self, batch: str, jobs: Sequence[Job], why: str, *, claim: bool) -> list[Notice]:
        """These were not submitted, as far as can be seen; one that a node has taken was."""
        self._log(why)
        notices: list[Notice] = [HoldPlaced(SLOT, why, until=self._clock() + RETRY_S)]
        for index, job in enumerate(jobs):
            if claim and not self._take(job.key):
                self.open[job.key] = OpenJob(job.key, batch, index, job.stop_grace_s)
            else:
                notices.append(JobLost(job.key, "void", why, counts=False))
        self._drop_batch(batch)
        return notices

    # --- what became of them ---

    def look(self) -> list[Notice]:
        """Ask Slurm when it is time, read the records of all jobs or else of those that run; go on stopping."""
        is_time = bool(self.open) and self._clock() >= self._next_look
        fresh = is_time and self._ask()
        now, notices = self._clock(), list[Notice]()
        for job in [*self.open.values()]:
            if is_time or job.claim is not None:
                waits = job.row is not None and job.row.waits
                notices += self._judge(job, now, fresh=fresh and not waits)
        return notices + self._go_on_stopping()

    def _ask(self) -> bool:
        """Run squeue; False: it does not answer."""
        try:
            ours = f"--user={os.getuid()}"
            words = ["squeue", ours, "--noheader", "--array", "--states=all", f"--format={slurm_jobs.FORMAT}"]
            rows = slurm_jobs.parse_rows(self._run(words), self._prefix)
            self._complain(None)
        except SlurmFault as fault:
            self._complain(f"Slurm does not answer: {fault}")
            return False  # what is not known is not guessed
        finally:
            self._next_look = self._clock() + self._poll_s
        for job in self.open.values():
            job.row = rows.get((job.batch, job.index)) if job.index is not None else None
        # of the nodes that have failed those that answer again: what ran there was ended when they came back
        failed = {job.row.node for job in self.open.values() if job.row and job.row.meaning == "node"} - {""}
        self._answering = frozenset()
        if failed:
            with suppress(SlurmFault):
                words = ["sinfo", "--noheader", "--Node", f"--nodes={','.join(sorted(failed))}", "--format=%N %T"]
                self._answering = slurm_jobs.parse_answering(self._run(words))
        return True

    def _judge(self, job: OpenJob, now: float, *, fresh: bool) -> list[Notice]:
        """What is known of a job; `fresh`: squeue has just been asked."""
        try:
            folder = self._session.job_path(job.key)
            if job.claim is None and (folder / CLAIM).exists():
                job.claim = load(folder / CLAIM, MAX_BYTES)
            if job.end is None and job.claim is not None and (folder / END).exists():
                job.end = load(folder / END, MAX_BYTES)
            notices: list[Notice] = []
            if not job.reported and job.claim is not None and job.claim.get("by") == "node":
                job.reported = True
                where = f"{job.claim['node']}, Slurm job {job.claim['job']}"
                notices.append(JobStarted(job.key, 0, 0, 0, node=where))
            end = self._find_end(job, now, fresh=fresh)
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._log(f"{job.key.text()}: its record cannot be read: {error}")
            notices, end = [], [JobLost(job.key, "lost", "its record cannot be read")]
        if end is not None:
            self._close(job)
            notices += end
        return notices

    def _find_end(self, job: OpenJob, now: float, *, fresh: bool) -> list[Notice] | None:
        if job.end is not None:
            return job.judge_end(now, fresh=fresh)
        if job.claim is not None and job.claim.get("by") != "node":
            return job.judge_unbegun(now)
        if not fresh or (job.row is not None and job.row.meaning == "lives"):
            return None
        if job.claim is None:
            return job.judge_unbegun(now) if self._take(job.key) else None
        if job.row is not None and job.row.meaning == "node" and job.row.node not in self._answering:
            self._complain(f"{job.row.node} does not answer, and may still run {job.key.text()} ({job.job})")
            return None
        return job.judge_over(now)

    def _take(self, key: JobKey) -> bool:
        """Take the claim of a job, so that it can never begin; False: it has begun, or that is not sure."""
        try:
            return claim(self._session.job_path(key), {"by": "head"})
        except OSError as error:
            self._log(f"{key.text()}: its claim cannot be written: {error.strerror}")
            return False

    def _close(self, job: OpenJob) -> None:
        """It is told what became of it.  With the last job of a batch goes its file: the environment is in it."""
        del self.open[job.key]
        self._drop_batch(job.batch)

    def _drop_batch(self, batch: str) -> None:
        if all(job.batch != batch for job in self.open.values()):
            with suppress(OSError):
                os.unlink(self._batch_path(batch))

    # --- stopping ---

    def _go_on_stopping(self) -> list[Notice]:
        """Take the next step with each; all that are to be told the same are told at once."""
        notices: list[Notice] = []
        asked: dict[str | None, list[str]] = {}
        for job in [job for job in self.open.values() if job.stop is not None]:
            notices += self._stop_one(job, asked)
        for number, names in asked.items():
            # what runs around the jobs is signalled, or Slurm ends them, begun or not
            words = ["scancel", *(() if number is None else (f"--signal={number}", "--batch"))]
            try:
                self._run([*words, *names])
            except SlurmFault as fault:  # it is asked again
                self._log(f"scancel: {fault}")
        return notices

    def _stop_one(self, job: OpenJob, asked: dict[str | None, list[str]]) -> list[Notice]:
        """The next step with one; `asked` takes which signal Slurm is to send it, None: it is to end it."""
        now = self._clock()
        if job.claim is None and self._take(job.key):
            if job.job is not None:
                asked.setdefault(None, []).append(job.job)
            self._close(job)
            return [JobLost(job.key, "void", "it was stopped before it began", counts=False)]
        notices = [] if job.claim is not None else self._judge(job, now, fresh=False)
        if job.key not in self.open:
            return notices
        if job.row is not None and job.row.meaning == "node":
            self._close(job)
            why = f"{job.row.node} does not answer, and may still run it (Slurm job {job.job})"
            return [*notices, JobLost(job.key, "lost", f"it was given up: {why}")]
        if job.job is not None and now >= job.signal_at:
            job.signal_at = now + SIGNAL_AGAIN_S
            is_late = now - job.stop_at > job.grace_s + KILL_SLACK_S
            asked.setdefault(None if is_late else job.stop or "TERM", []).append(job.job)
        return notices

    # --- tools ---

    def _batch_path(self, batch: str) -> Any:
        return self._session.path / "slurm" / f"batch-{batch}.json"

    def _complain(self, complaint: str | None) -> None:
        if complaint is not None and complaint != self._complaint:
            self._log(complaint)
        self._complaint = complaint

"""What a session has open at Slurm: submits, looks, signals, and says what became of each job.

One thread uses it.  Slurm is asked about all jobs at once, at an interval; ends come sooner, by the records that
the nodes leave.  A job counts as never begun only once this side holds its claim: whatever Slurm
does later, or a submission that is still on its way, the job cannot begin.

Of a job that has begun its record wins: it has the raw status of wait(2).  What Slurm says counts without one, and
of a job that was told to end by something else than its session.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from sessionrun.cluster import slurm_programs
from sessionrun.cluster.slurm_node import CLAIM, END, MAX_BYTES, claim, dump, load
from sessionrun.cluster.slurm_programs import (
    ASK_S,
    FORMAT,
    SUBMIT_S,
    Row,
    SlurmFault,
    describe,
    parse_answering,
    parse_rows,
    run_program,
)
from sessionrun.model.events import HoldPlaced, JobLost, JobStarted, Verdict
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import SLOT, Job
from sessionrun.session.executor import Notice, as_order, describe_order, read_end
from sessionrun.store.files import make_directories, replace_file
from sessionrun.store.session import SessionDir

RETRY_S: Final = 10.0
RECORD_WAIT_S: Final = 10.0
"""How long a record may take to be seen here once Slurm says that the job is over: file systems have caches."""

NODE_WAIT_S: Final = 60.0
"""How long a node that came back may take to end what Slurm has given up (its KillWait is 30 seconds)."""

STATE_WAIT_S: Final = 120.0
"""How long Slurm may take to say why it told a job to end."""


class OpenJob:
    """A job; `index` is its place in the batch, None if it never came into one.  Times are monotonic."""

    def __init__(self, key: JobKey, batch: str, index: int | None, grace_s: float, array: str | None) -> None:
        self.key = key
        self.batch = batch
        self.index = index
        self.grace_s = grace_s
        self.array = array
        self.claim: dict[str, Any] | None = None
        self.end: dict[str, Any] | None = None
        self.row: Row | None = None
        self.reported = False
        self.over_since: float | None = None
        self.stop: str | None = None
        self.stop_at = 0.0
        self.signalled_at: float | None = None

    @property
    def job(self) -> str | None:
        """Slurm's name of it, ``ARRAY_INDEX``; None: not known (yet)."""
        if self.row is not None:
            return self.row.job
        if self.claim is not None and self.claim.get("by") == "node":
            return str(self.claim["job"])
        return f"{self.array}_{self.index}" if self.array is not None else None

    def judge_end(self, now: float, *, fresh: bool) -> list[Notice] | None:
        """What its record says; None: Slurm has to say first why it told the job to end.

        Raises:
            KeyError, ValueError: the record is damaged.
        """
        end = self.end
        assert end is not None
        if end.get("told") and self.stop is None:
            self.over_since = now if self.over_since is None else self.over_since
            waits = not fresh or (self.row is not None and self.row.meaning == "lives")
            if waits and now - self.over_since < STATE_WAIT_S:
                return None
            if self.row is not None and self.row.meaning not in ("lives", "ended"):
                return [JobLost(self.key, _judge(self.row), describe(self.row), gone=True)]
        notice = read_end(end, self.key, f"{end.get('node')}, Slurm job {end.get('job')}")
        if isinstance(notice, JobLost) and notice.verdict == "void":  # there was no room for a process
            return [HoldPlaced(SLOT, notice.reason, until=now + RETRY_S), notice]
        return [notice]

    def judge_over(self, now: float) -> list[Notice] | None:
        """It has begun, left no record, and Slurm says that it is over, or knows nothing of it; None: wait.

        What ran around it is dead: whether Slurm has found all of its tree depends on how it tracks processes.
        """
        self.over_since = now if self.over_since is None else self.over_since
        is_back = self.row is not None and self.row.meaning == "node"
        if now - self.over_since < (NODE_WAIT_S if is_back else RECORD_WAIT_S):
            return None
        if self.row is None:
            why = f"Slurm knows nothing of job {self.job} any more, and it left no record"
            return [JobLost(self.key, "lost", why)]
        return [JobLost(self.key, _judge(self.row), describe(self.row))]

    def judge_unbegun(self, now: float) -> list[Notice]:
        """It can never begin: the head has taken its claim, or it was in no batch."""
        row = self.row
        if row is not None and row.meaning in ("cancelled", "limit"):
            return [JobLost(self.key, "interrupted", describe(row))]
        if row is not None and row.meaning in ("ended", "memory"):
            why = f"nothing ran: {describe(row)}; see slurm/log-{self.batch}.txt in the session's directory"
            return [HoldPlaced(SLOT, why, until=now + RETRY_S), JobLost(self.key, "void", why)]
        why = "Slurm does not have it" if row is None else describe(row)
        return [HoldPlaced(SLOT, why, until=now + RETRY_S), JobLost(self.key, "void", why, counts=False)]


def _judge(row: Row) -> Verdict:
    return "interrupted" if row.meaning in ("cancelled", "limit", "preempted") else "lost"


SIGNAL_AGAIN_S: Final = 2.0
MOST_AT_ONCE: Final = 500
"""So many jobs are named on one command line."""

KILL_SLACK_S: Final = 15.0
"""So long after its grace a job that is stopped is left to what runs around it; then Slurm kills it."""


class Desk:
    """See the module.  `options` are the user's for sbatch; jobs get `environ`, and Slurm's programs a part of it.

    squeue is run each `poll_s` seconds while a job is open.  `clock` is monotonic (seconds).
    """

    def __init__(
        self,
        session: SessionDir,
        options: Mapping[str, str],
        environ: Mapping[str, str],
        log: Callable[[object], None],
        poll_s: float,
        *,
        run: Callable[[Sequence[str], Mapping[str, str], float], str] = run_program,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._options = options
        self._environ = dict(environ)
        self._programs_environ = slurm_programs.make_environment(environ)
        self._run_program = run
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
                    self.open[key] = OpenJob(key, batch, index, grace_s, None)
                    self.open[key].reported = reported

    def stop(self, key: JobKey, *, now: bool) -> list[Notice]:
        """Begin to stop a job; what became of it comes with `look`."""
        job = self.open.get(key)
        if job is not None and job.stop != "USR2":
            if job.stop is None:
                job.stop_at = self._clock()
            job.stop = "USR2" if now else "TERM"
            job.signalled_at = None
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
        words = slurm_programs.submit_words(self._session.path, batch, name, len(jobs), self._options)
        try:
            array = self._run(words, SUBMIT_S).strip().partition(";")[0]
        except SlurmFault as fault:
            with suppress(SlurmFault):  # it may have been taken all the same
                self._run(["scancel", f"--name={name}", f"--user={os.getuid()}", "--state=PENDING"], ASK_S)
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
            opened = OpenJob(job.key, batch, index, job.stop_grace_s, None)
            if claim and not self._take(opened):
                self.open[job.key] = opened
            else:
                notices.append(JobLost(job.key, "void", why, counts=False))
        self._drop_batch(batch)
        return notices

    # --- what became of them ---

    def look(self) -> list[Notice]:
        """Read the records of jobs that run; when it is time those of all, and ask Slurm; go on stopping."""
        now = self._clock()
        is_time = bool(self.open) and now >= self._next_look
        looked_at = [job for job in self.open.values() if is_time or job.claim is not None]
        notices = [notice for job in looked_at for notice in self._judge(job, now, fresh=False)]
        if is_time:
            notices += self._ask()
        return notices + self._go_on_stopping([job for job in self.open.values() if job.stop is not None])

    def _ask(self) -> list[Notice]:
        try:
            ours = f"--user={os.getuid()}"
            words = ["squeue", ours, "--noheader", "--array", "--states=all", f"--format={FORMAT}"]
            rows = parse_rows(self._run(words, ASK_S), self._prefix)
            self._complain(None)
        except SlurmFault as fault:
            self._complain(f"Slurm does not answer: {fault}")
            return []  # what is not known is not guessed
        finally:
            self._next_look = self._clock() + self._poll_s
        jobs = list(self.open.values())
        for job in jobs:
            job.row = rows.get((job.batch, job.index)) if job.index is not None else None
        # of the nodes that have failed those that answer again: what ran there was ended when they came back
        failed = {job.row.node for job in jobs if job.row is not None and job.row.meaning == "node"} - {""}
        self._answering = frozenset()
        if failed:
            with suppress(SlurmFault):
                words = ["sinfo", "--noheader", "--Node", f"--nodes={','.join(sorted(failed))}", "--format=%N %T"]
                self._answering = parse_answering(self._run(words, ASK_S))
        now = self._clock()
        begun = [job for job in jobs if job.row is None or not job.row.waits]
        return [notice for job in begun for notice in self._judge(job, now, fresh=True)]

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
            return job.judge_unbegun(now) if self._take(job) else None
        if job.row is not None and job.row.meaning == "node" and job.row.node not in self._answering:
            self._complain(f"{job.row.node} does not answer, and may still run {job.key.text()} ({job.job})")
            return None
        return job.judge_over(now)

    def _take(self, job: OpenJob) -> bool:
        """Take the claim of a job, so that it can never begin; False: it has begun, or that is not sure."""
        try:
            folder = self._session.job_path(job.key)
            return claim(folder, {"by": "head"})
        except OSError as error:
            self._log(f"{job.key.text()}: its claim cannot be written: {error.strerror}")
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

    def _go_on_stopping(self, jobs: Iterable[OpenJob]) -> list[Notice]:
        """Take the next step with each; all that are to be told the same are told at once."""
        notices: list[Notice] = []
        asked: dict[str | None, list[str]] = {}
        for job in jobs:
            notices += self._stop_one(job, asked)
        for number, names in asked.items():
            # what runs around the jobs is signalled, or Slurm ends them, begun or not
            words = ["scancel", *(() if number is None else (f"--signal={number}", "--batch"))]
            for first in range(0, len(names), MOST_AT_ONCE):
                try:
                    self._run([*words, *names[first : first + MOST_AT_ONCE]], ASK_S)
                except SlurmFault as fault:  # it is asked again
                    self._log(f"scancel: {fault}")
        return notices

    def _stop_one(self, job: OpenJob, asked: dict[str | None, list[str]]) -> list[Notice]:
        """The next step with one; `asked` takes which signal Slurm is to send it, None: it is to end it."""
        now = self._clock()
        if job.claim is None and self._take(job):
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
        if job.job is not None and (job.signalled_at is None or now - job.signalled_at >= SIGNAL_AGAIN_S):
            job.signalled_at = now
            is_late = now - job.stop_at > job.grace_s + KILL_SLACK_S
            asked.setdefault(None if is_late else job.stop or "TERM", []).append(job.job)
        return notices

    # --- tools ---

    def _batch_path(self, batch: str) -> Any:
        return self._session.path / "slurm" / f"batch-{batch}.json"

    def _run(self, words: Sequence[str], limit_s: float) -> str:
        return self._run_program(words, self._programs_environ, limit_s)

    def _complain(self, complaint: str | None) -> None:
        if complaint is not None and complaint != self._complaint:
            self._log(complaint)
        self._complaint = complaint

"""Runs jobs as Slurm's; those that work in git run here, where the repository's locks are.

The journal is the first fence: a claim names its batch, and is durable before anything is submitted.  The second
is the claim file, which a job needs to begin (see `slurm_queue`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from sessionrun.cluster.slurm_programs import LARGEST_ARRAY
from sessionrun.cluster.slurm_queue import Desk
from sessionrun.model.asked import SLURM, Sandbox
from sessionrun.model.events import JobClaimed
from sessionrun.model.keys import JobKey, Phase
from sessionrun.model.spec import Job, SessionSpec
from sessionrun.session.executor import Executor, Notice
from sessionrun.session.worker import Worker
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
        self._waiting: dict[str, list[Job]] = {}
        environ = dict(os.environ)
        self._desk = Desk(session, spec.cluster.options, environ, log, find_poll(environ))
        self._opened = opened
        self._worker: Worker[Callable[[], list[Notice]], Notice] = Worker("slurm", self._work)
        self._worker.start()

    def claim(self, key: JobKey, node: str | None, sandbox: Sandbox | None) -> JobClaimed:
        """See `Executor.claim`: where it will run, Slurm decides."""
        if key.phase in HEAD_PHASES:
            return JobClaimed(key)
        if self._in_batch >= LARGEST_ARRAY:
            self._next_batch()
        self._in_batch += 1
        batch = self._claimed[key] = f"{self._gen}-{self._number}"
        return JobClaimed(key, SLURM, batch)

    def _next_batch(self) -> None:
        self._number, self._in_batch = self._number + 1, 0

    def settle(self) -> None:
        """See `Executor.settle`: the records stay where they are."""

    def start(self, jobs: Sequence[Job]) -> list[Notice]:
        """See `Executor.start`: they are submitted together with what comes until the next `wait`."""
        here = [job for job in jobs if job.key.phase in HEAD_PHASES]
        for job in jobs:
            if job.key in self._claimed:
                self._waiting.setdefault(self._claimed.pop(job.key), []).append(job)
        return self._local.start(here) if here else []

    def stop(self, key: JobKey, *, now: bool = False) -> None:
        """See `Executor.stop`."""
        if key.phase in HEAD_PHASES:
            self._local.stop(key, now=now)
        else:
            self._submit()
            self._worker.ask(partial(self._desk.stop, key, now=now))

    def wait(self, timeout_s: float | None, *wake_fds: int) -> list[Notice]:
        """See `Executor.wait`.

        Raises:
            KeeperGone: the keeper of this machine is dead.
            RuntimeError: the thread that speaks with Slurm has died; another supervisor begins with a new one.
        """
        self._submit()
        self._claimed.clear()  # what could not be built
        notices = [*self._local.wait(timeout_s, self._worker.fd, *wake_fds), *self._worker.take()]
        if self._worker.fault is not None and not notices:
            raise RuntimeError(f"Slurm: {self._worker.fault}")
        return notices

    def _submit(self) -> None:
        for batch, jobs in self._waiting.items():
            self._worker.ask(partial(self._desk.submit, batch, jobs))
        if self._in_batch:
            self._next_batch()
        self._waiting.clear()

    def close(self) -> None:
        """See `Executor.close`."""
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

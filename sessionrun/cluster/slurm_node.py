"""What runs around a job on a node of Slurm's: claims it, starts it, stops its tree, and records its end.

``slurm_node.py SESSION BATCH_FILE``, once for each index of an array.  It is the keeper of that one job: the same
code starts, reaps and stops.  The claim is a file that can be made only once, so a job begins at most once,
whatever Slurm starts again, and however late.  Standard library alone.

    TERM    stop the tree: TERM, the job's grace, KILL      (scancel, a time limit, preemption)
    USR2    KILL at once

What it and the head leave each other is on the shared file system, below the session's directory:

    slurm/batch-B.json              the orders of a batch, by index
    slurm/log-B.txt                 what was printed around its jobs
    JOB_FOLDER/slurm-claim.json     which Slurm job runs it, or that the head has given it up
    JOB_FOLDER/slurm-end.json       how it ended
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    sys.path.insert(0, os.path.abspath(os.path.join(__file__, *[os.pardir] * 3)))

from sessionrun.keeper.children import Children
from sessionrun.keeper.loop import drain, wake_on_death
from sessionrun.keeper.wire import count_ms
from sessionrun.model.events import JobLost
from sessionrun.model.keys import parse_job_key
from sessionrun.session.executor import Exit, NotSet, describe_end, fill_in, parse_order, read_frame
from sessionrun.store import processes
from sessionrun.store.files import make_directories, read_regular, replace_file, sync_directory
from sessionrun.store.logs import AppendLog

CLAIM: Final = "slurm-claim.json"
END: Final = "slurm-end.json"
LEDGER: Final = "slurm-ledger"
MAX_BYTES: Final = 1 << 20

RETRY_S: Final = 1.0
LATE_S: Final = 1.0
"""So long a signal of Slurm's is waited for when a signal has ended the job (seconds): Slurm sends it to all
processes, one after the other, and perhaps to this one last."""

_FROM_SLURM: Final = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")


def main() -> int:
    """Run one job of a batch to its end; returns its exit code, as a shell would, for those who ask Slurm."""
    session, batch_file = Path(sys.argv[1]), Path(sys.argv[2])
    index = int(os.environ["SLURM_ARRAY_TASK_ID"])
    batch = load(batch_file)
    order = batch["jobs"][index]
    folder = session / order["folder"]
    who = {
        "job": f"{os.environ.get('SLURM_ARRAY_JOB_ID', '?')}_{index}",
        "node": os.environ.get("SLURMD_NODENAME") or os.uname().nodename,
        "pid": os.getpid(),
    }
    if not claim(folder, {**who, "by": "node"}):
        print(f"{order['key']}: it was claimed before, and is not started ({who['job']} on {who['node']})")
        return 0
    job = OneJob(batch, order, folder / LEDGER)
    end = job.run()
    record = {**describe_end(end), **who, "told": job.asked_to_end}
    while True:  # as often as the disk refuses: without it the end of the job is not known
        try:
            replace_file(folder / END, dump(record), durable=True)
            break
        except OSError as error:
            print(f"cannot write {folder / END}: {error.strerror}", flush=True)
            time.sleep(RETRY_S)
    status = end.wait_status if isinstance(end, Exit) else None
    code = 1 if status is None else os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


class OneJob:
    """The job, and how it ended once it has; `asked_to_end`: a signal told it to."""

    def __init__(self, batch: dict[str, Any], order: dict[str, Any], ledger: Path) -> None:
        self.asked_to_end = False
        self._key = parse_job_key(order["key"])
        self._order = order
        self._end: Exit | JobLost | None = None
        self._asked: list[int] = []
        self._wake_fd = wake_on_death()
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, lambda number, frame: self._asked.append(number))
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        processes.become_subreaper()
        environ = make_job_environment(batch["environ"], os.environb)
        os.environb.clear()
        os.environb.update(environ)
        self._children = Children(AppendLog(ledger), batch["session"], self._hear)

    def run(self) -> Exit | JobLost:
        """Start it, and return when nothing of its tree is left: its end."""
        try:
            self._children.start([fill_in(parse_order(self._order))])
        except NotSet as fault:
            return Exit(self._key, None, detail=str(fault))
        while self._end is None or self._children.by_key:
            self._wait(self._children.next_time())
            self._children.reap()
            asked, self._asked = self._asked, []
            for number in asked:
                self.asked_to_end = True
                self._children.stop(self._key.text(), now=number == signal.SIGUSR2)
            self._children.go_on_stopping()
        status = self._end.wait_status if isinstance(self._end, Exit) else None
        if status is not None and os.WIFSIGNALED(status) and not self.asked_to_end:
            # Slurm may have ended the job, and say so to this process only now
            deadline = time.monotonic() + LATE_S
            while not self._asked and time.monotonic() < deadline:
                self._wait(deadline)
            self.asked_to_end = bool(self._asked)
        return self._end

    def _wait(self, until: float | None) -> None:
        """Wait for a signal, until that time at most (monotonic)."""
        poller = select.poll()
        poller.register(self._wake_fd, select.POLLIN)
        if poller.poll(count_ms(None if until is None else until - time.monotonic())):
            drain(self._wake_fd)

    def _hear(self, *fields: object) -> None:
        """Take a frame of the keeper's code about the job: see `keeper.wire`."""
        for notice in read_frame([*fields], self._key):
            if isinstance(notice, (Exit, JobLost)):
                self._end = notice


def make_job_environment(
    wanted: dict[str, str], given: os._Environ[bytes] | dict[bytes, bytes]
) -> dict[bytes, bytes]:
    """The environment of a job but for its own variables: the session's, and what Slurm says of its place."""
    environ = {os.fsencode(name): os.fsencode(value) for name, value in wanted.items()}
    kept = tuple(name.encode() for name in _FROM_SLURM)
    environ |= {name: value for name, value in given.items() if name.startswith(b"SLURM") or name in kept}
    return environ


# --- what head and node leave each other ---


def claim(folder: Path, about: Mapping[str, Any]) -> bool:
    """Take the job whose folder that is, once and for ever; False: it was taken before.

    A link can be made only if nothing has its name, also on NFS; there it may be made, and the answer lost.
    """
    make_directories(folder, 0o700)
    beside = folder / f".{CLAIM}.{os.uname().nodename}.{os.getpid()}"
    replace_file(beside, dump(about), durable=True)
    try:
        with suppress(FileExistsError):
            os.link(beside, folder / CLAIM)
        taken = os.stat(beside).st_nlink == 2
    finally:
        os.unlink(beside)
    sync_directory(folder)
    return taken


def load(path: Path, most: int | None = None) -> dict[str, Any]:
    """The JSON object in a file of at most so many bytes, such as the orders of a batch.

    Raises:
        ValueError: it is damaged.
        OSError: it cannot be read.
    """
    found = json.loads(read_regular(path, most))
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no object")
    return found


def dump(about: Mapping[str, Any]) -> bytes:
    """An object as it is written: words may hold any byte, as surrogates."""
    return json.dumps(about).encode()


if __name__ == "__main__":
    sys.exit(main())

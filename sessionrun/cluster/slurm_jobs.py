"""Slurm's programs, what they print of jobs, and what became of a job by that and by the record of its end.

Of a job that has begun its record wins: it has the raw status of wait(2).  What Slurm says counts without one, and
of a job that was told to end by something else than its session.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from sessionrun.model.events import HoldPlaced, JobLost, Verdict
from sessionrun.model.frozen import changeable
from sessionrun.model.keys import JobKey
from sessionrun.model.spec import SLOT
from sessionrun.session.executor import Notice, read_end
from sessionrun.store import programs
from sessionrun.store.files import usual_umask

SUBMIT_S: Final = 60.0
ASK_S: Final = 30.0
"""How long a program may take (seconds): a controller that is busy, or gone, lets them wait for minutes."""

LARGEST_ARRAY: Final = 100
"""So many jobs are submitted at once at most (MaxArraySize of Slurm is 1001, unless a site says otherwise)."""

_KEPT: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR"),
    *("SLURM_CONF", "SLURM_CLUSTERS"),
)
_KEPT_OF_SBATCH: Final = ("ACCOUNT", "PARTITION", "QOS", "TIMELIMIT", "RESERVATION", "CONSTRAINT", "WCKEY")

FORMAT: Final = "%F|%K|%T|%N|%j"
"""What squeue is to print of a job: number of the array, index, state, node, name."""

Meaning: TypeAlias = Literal["lives", "ended", "cancelled", "limit", "memory", "preempted", "node"]

MEANINGS: Final[dict[str, Meaning]] = {
    "COMPLETED": "ended",
    "FAILED": "ended",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
    "TIMEOUT": "limit",
    "DEADLINE": "limit",
    "OUT_OF_MEMORY": "memory",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "node",
    "BOOT_FAIL": "node",
}
"""Of the states in which a job is over.  In any other it lives, also in one of a later version: an end is never
guessed."""

WORDS: Final[dict[Meaning, str]] = {
    "ended": "it ended without a record: what runs around a job was killed, or could not be started",
    "cancelled": "it was cancelled in Slurm, not by this session",
    "limit": "it was ended at its time limit in Slurm",
    "memory": "it was ended because it used more memory than it had in Slurm",
    "preempted": "it was preempted by another Slurm job",
    "node": "its node failed",
}

WRAPPER: Final = Path(__file__).with_name("slurm_node.py")


class SlurmFault(Exception):
    """A program of Slurm's did not do what it was asked for; the message is the first line that it printed."""


def make_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What Slurm's programs are given of an environment: nothing of it reaches Slurm's own books.

    A session that was started from a Slurm job has that job's variables, which mean another thing here.
    """
    kept = {*_KEPT, *(f"SBATCH_{name}" for name in _KEPT_OF_SBATCH)}
    return {"PATH": os.defpath, **{name: value for name, value in environ.items() if name in kept}}


def option_words(options: Mapping[str, str]) -> list[str]:
    """The user's options as words for sbatch; one without a value is a flag."""
    return [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]


def submit_words(session: Path, batch: str, name: str, count: int, options: Mapping[str, str]) -> list[str]:
    """The command line that submits a batch of `count` jobs as one array."""
    folder = session / "slurm"
    command = [sys.executable, "-I", "-S", str(WRAPPER), str(session), str(folder / f"batch-{batch}.json")]
    fixed = ["--parsable", "--no-requeue", "--export=ALL", "--input=/dev/null", "--chdir=/", "--open-mode=append"]
    about = [f"--job-name={name}", f"--array=0-{count - 1}", f"--output={folder}/log-{batch}.txt"]
    return ["sbatch", *option_words(options), *fixed, *about, f"--wrap=exec {shlex.join(command)}"]


def run_program(environ: Mapping[str, str], words: Sequence[str], limit_s: float = ASK_S) -> str:
    """What a program of Slurm's prints.  SlurmFault: it failed, or was killed after `limit_s` seconds."""
    try:
        done = programs.run(words, cwd="/", environ=environ, limit_s=limit_s, umask=usual_umask())
    except OSError as error:
        raise SlurmFault(f"{words[0]} cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise SlurmFault(f"{words[0]} did not end within {limit_s:g} seconds") from None
    printed, complaint = done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
    if done.returncode:
        lines = [line.strip() for line in (complaint or printed).splitlines() if line.strip()]
        errors = [line for line in lines if "error:" in line or "failure:" in line] or lines
        raise SlurmFault(errors[-1] if errors else f"{words[0]} ended with {done.returncode}")  # the last says why
    return printed


# --- what they print ---


class Row(NamedTuple):
    """A job as squeue shows it; `job` is ``ARRAY_INDEX``."""

    job: str
    state: str
    node: str

    @property
    def meaning(self) -> Meaning:
        """What its state means."""
        return MEANINGS.get(self.state, "lives")

    @property
    def waits(self) -> bool:
        """Whether it has not begun."""
        return self.state in ("PENDING", "CONFIGURING")


def parse_rows(printed: str, prefix: str) -> dict[tuple[str, int], Row]:
    """The jobs of one session by batch and index: those whose name is `prefix` and a batch."""
    rows: dict[tuple[str, int], Row] = {}
    for line in printed.splitlines():
        words = line.strip().split("|")
        if len(words) != 5 or not words[4].startswith(prefix) or not words[1].isdecimal():
            continue
        array, index, state, node, name = words
        rows[name.removeprefix(prefix), int(index)] = Row(f"{array}_{index}", state, node)
    return rows


def describe(row: Row) -> str:
    """Why a job that left no record ended, in words."""
    where = f" on {row.node}" if row.node else ""
    return f"{WORDS.get(row.meaning, 'it ended')} (Slurm job {row.job}{where}: {row.state})"


def parse_answering(printed: str) -> frozenset[str]:
    """The nodes that answer their controller, of what sinfo prints as ``NODE STATE``; ``*`` marks silence.

    One that is down and answers was put down by its operator, or has been booted anew.
    """
    pairs = (line.split() for line in printed.splitlines())
    lost = ("unknown", "power", "boot", "reboot")
    return frozenset(
        pair[0] for pair in pairs if len(pair) == 2 and "*" not in pair[1] and not pair[1].lower().startswith(lost)
    )


# --- what became of a job ---

RETRY_S: Final = 10.0
RECORD_WAIT_S: Final = 10.0
"""How long a record may take to be seen here once Slurm says that the job is over: file systems have caches."""

NODE_WAIT_S: Final = 60.0
"""How long a node that came back may take to end what Slurm has given up (its KillWait is 30 seconds)."""

STATE_WAIT_S: Final = 120.0
"""How long Slurm may take to say why it told a job to end."""


@changeable
class OpenJob:
    """A job; `index` is its place in the batch, None if it never came into one.  Times are monotonic."""

    key: JobKey
    batch: str
    index: int | None
    grace_s: float
    array: str | None = None
    reported: bool = False
    claim: dict[str, Any] | None = None
    end: dict[str, Any] | None = None
    row: Row | None = None
    over_since: float | None = None
    stop: str | None = None
    stop_at: float = 0.0
    signal_at: float = 0.0

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
        why = "Slurm does not have it" if row is None else describe(row)
        counts = row is not None and row.meaning in ("ended", "memory")
        if counts:
            why = f"nothing ran: {why}; see slurm/log-{self.batch}.txt in the session's directory"
        return [HoldPlaced(SLOT, why, until=now + RETRY_S), JobLost(self.key, "void", why, counts=counts)]


def _judge(row: Row) -> Verdict:
    return "interrupted" if row.meaning in ("cancelled", "limit", "preempted") else "lost"

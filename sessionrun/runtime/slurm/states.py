"""What Slurm says of jobs: the lines of squeue, and what each state means for a job that left no record.  Pure."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

FORMAT: Final = "%F|%K|%T|%N|%j|%r"
"""What squeue is to print of a job: number of the array, index, state, node, name, reason."""

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


class Row(NamedTuple):
    """A job as squeue shows it; `job` is ``ARRAY_INDEX``."""

    job: str
    batch: str
    place: int
    state: str
    node: str
    reason: str

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
        words = line.strip().split("|", 5)
        if len(words) != 6 or not words[4].startswith(prefix) or not words[1].isdecimal():
            continue
        array, index, state, node, name, reason = words
        batch = name.removeprefix(prefix)
        rows[batch, int(index)] = Row(f"{array}_{index}", batch, int(index), state, node, reason)
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

"""What names one process of a session (its task, attempt, round, phase and start), and its node.  Pure."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple, get_args

Phase = Literal["prepare", "setup", "work", "check", "park", "prove", "land", "release"]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)

_ID: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
GOOD_ID: Final = rf"\A(?!.*(?:\.\.|\.\Z|\.lock\Z)){_ID}\Z"
"""What an id of a task is: safe as part of a file name and of a git ref (git-check-ref-format(1))."""


def describe_id_problem(task_id: str) -> str | None:
    """Say what is wrong with a task id, or None when it is good."""
    if re.search(GOOD_ID, task_id):
        return None
    if re.fullmatch(_ID, task_id):
        return "must not hold '..' nor end in '.' or '.lock'"
    return "must be 1 to 128 letters, digits, '.', '_' or '-', and begin with a letter or digit"


class JobKey(NamedTuple):
    """Names one process of a session, once and for ever."""

    task: str
    attempt: int
    round: int
    phase: Phase
    start: int

    def text(self) -> str:
        """The key as the ledger and `SESSIONRUN_JOB` spell it; ids hold no slash."""
        return f"{self.task}/{self.attempt}/{self.round}/{self.phase}/{self.start}"


def parse_job_key(text: str) -> JobKey:
    """Read what `JobKey.text` wrote.

    Raises:
        ValueError: the text is not a job key.
    """
    task, attempt, round_, phase, start = text.split("/")
    if phase not in PHASES:
        raise ValueError(f"unknown phase {phase!r}")
    return JobKey(task, int(attempt), int(round_), phase, int(start))


WORKSPACE_PHASES: Final[frozenset[Phase]] = frozenset(("prepare", "park", "release"))
"""What is done by our own code in the repository, with the time limit `workspace_timeout`."""


def is_node_id(node: str | None) -> bool:
    """Whether that is ``NAME@ID``: such a node may have no disk in common with this machine; Slurm's have."""
    return node is not None and "@" in node

"""What walls a job is to have, for its own process to build (see `walls.build`).

On a node of a cluster the programs, the home directory and its secrets are others than where the session is, so
what is written down is what was asked for, and no words for bubblewrap.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from sessionrun.model.asked import Sandbox
from sessionrun.model.frozen import frozen
from sessionrun.model.places import Repository


@frozen
class AgentWish:
    """The agent of a job: its name in the plan, and its words, the program first."""

    name: str
    argv: tuple[str, ...]


@frozen
class WallsWish:
    """What walls a job is to have.

    Attributes:
        worktree: the directory that can be written.
        folder: the folder of the attempt's walls.
        record: the job's folder.
        cwd: where relative paths in variables begin.
        cache: the directory of what could be made again, as environments.
        hidden: folders of which nothing is seen but what is the task's own: a node adds that of its books.
        answers: files and folders from which the task could learn what judges it.
        links: paths that the worktree shares with the checkout.
        environment: where the environment of the task is; None: it has none.
        python: the interpreter that was asked for it.
        agent: whose state comes in; None: of no agent.
        env: the variables of the job, beside those around it.
        begins_in: the directory of the task, for what runs in its worktree.
        room: another directory than the worktree that can be written, without git, and with a /tmp of its own.
        git: of a build, the repository of the room in which the project lies; None: it is in the worktree.
        on_stdin: whether the program reads the prompt from its standard input.
        outlives_us: whether the programs go on when the process ends that starts them.
        command: of a job whose process becomes bubblewrap, the words of the program.
    """

    session_id: str
    job: str
    sandbox: Sandbox
    repository: Repository
    worktree: str
    folder: str
    record: str
    session: str
    cwd: str
    cache: str
    hidden: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    environment: str | None = None
    python: str | None = None
    plain_env: Mapping[str, str] = field(default_factory=dict)
    agent: AgentWish | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    begins_in: str = ""
    room: str | None = None
    git: str | None = None
    prompt: str | None = None
    on_stdin: bool = False
    outlives_us: bool = False
    command: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        return f"sessionrun-{self.session_id}-{self.job.replace('/', '-')}"


INSIDE: Final = "inside.json"
"""In the folder of a job that goes on inside: a `WallsWish`."""

REPORT: Final = "walls-report"
"""In the folder of a walled job: what `inner` reports."""

FILLED: Final = "walls-filled"
"""In the folder of such a job on a node: the limit ended it."""


@frozen
class Report:
    """How far a walled job came: whether its walls stood, why its program could not be executed, how that ended.

    `status` is the raw one of wait(2).
    """

    started: bool = False
    errno: int | None = None
    status: int | None = None
    cpu_s: float | None = None


def parse_report(content: bytes) -> Report:
    """Read a report; lines that `inner` does not write are passed over, and the first of each kind counts."""
    text = content[:4096].decode("ascii", "replace")
    failed = re.search(r"^failed (\d{1,9})$", text, re.MULTILINE)
    ended = re.search(r"^ended (\d{1,9}) (\S+)$", text, re.MULTILINE)
    is_time = ended is not None and re.fullmatch(r"\d{1,7}(\.\d+)?", ended[2])
    return Report(
        started=re.search(r"^started$", text, re.MULTILINE) is not None,
        errno=int(failed[1]) if failed else None,
        status=int(ended[1]) if ended else None,
        cpu_s=float(ended[2]) if ended and is_time else None,
    )


def agree(reported: int, seen: int) -> bool:
    """Whether a raw status fits the one of bubblewrap, which says 128 and the number where a signal ended it.

    The program could write into the report, too, so it counts only where it agrees with what the keeper saw.
    """
    if not os.WIFEXITED(seen):
        return False
    code = os.WEXITSTATUS(seen)
    if os.WIFSIGNALED(reported):
        return code == 128 + os.WTERMSIG(reported)
    return os.WIFEXITED(reported) and os.WEXITSTATUS(reported) == code

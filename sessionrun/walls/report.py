"""What `inner` reports of the program that it ran, and when that is believed.

The program could write into the report, too, so it only counts where it agrees with what the keeper saw.  By what
it writes a program can fail in another way than it did, and as if nothing of it had run; it cannot pass.
"""

from __future__ import annotations

import os
import re
from typing import Final

from sessionrun.model.frozen import frozen

REPORT: Final = "walls-report"
"""In the folder of a walled job: what `inner` reports."""

FILLED: Final = "walls-filled"
"""In the folder of such a job on a node: the limit ended it."""


@frozen
class Report:
    """How far a walled job came.

    Attributes:
        started: whether the walls stood.
        errno: why the program could not be executed, if it could not.
        status: the raw status of wait(2), if it ended.
        cpu_s: the seconds of processor time that it took.
    """

    started: bool = False
    errno: int | None = None
    status: int | None = None
    cpu_s: float | None = None


def parse_report(content: bytes) -> Report:
    """Read a report; lines that `inner` does not write are passed over, and the first of each kind counts."""
    text = content[:4096].decode("ascii", "replace")
    failed = re.search(r"^failed (\d{1,9})$", text, re.MULTILINE)
    ended = re.search(r"^ended (\d{1,9}) (\S+) \S+$", text, re.MULTILINE)
    is_time = ended is not None and re.fullmatch(r"\d{1,9}(\.\d+)?", ended[2])
    return Report(
        started=re.search(r"^started$", text, re.MULTILINE) is not None,
        errno=int(failed[1]) if failed else None,
        status=int(ended[1]) if ended else None,
        cpu_s=float(ended[2]) if ended and is_time else None,
    )


def agree(reported: int, seen: int) -> bool:
    """Whether a raw status fits the one of bubblewrap, which says 128 and the number where a signal ended it."""
    if not os.WIFEXITED(seen):
        return False
    code = os.WEXITSTATUS(seen)
    if os.WIFSIGNALED(reported):
        return code == 128 + os.WTERMSIG(reported)
    return os.WIFEXITED(reported) and os.WEXITSTATUS(reported) == code

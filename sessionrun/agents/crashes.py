"""Finds at the end of standard error why a program died: out of memory, or by a fault of its own.

This is for runs that failed; a trace in the standard error of a good run means nothing.  This module must not
know agents or exit codes.
"""

from __future__ import annotations

import re
from typing import Final

_LOOKED_AT: Final = 8 * 1024
_LAST_LINES: Final = 12

# Words, not `re.compile`: `re` compiles a pattern, and keeps it, when it is used; a good run uses none.
_OUT_OF_MEMORY: Final = (
    r"(?m)JavaScript heap out of memory"  # Node, then SIGABRT or code 134: anthropics/claude-code#1421
    r"|^MemoryError\b(?=[^\n]*\n*\Z)"  # Python, its last line
    r"|^memory allocation of \d+ bytes failed"  # Rust
    r"|^fatal error: (?:runtime: )?(?:cannot allocate memory|out of memory)"  # Go
    r"|std::bad_alloc"
)
_TRACE: Final = (
    r"(?m)"
    r"^Traceback \(most recent call last\):$(?=(?:\n.*)*\n[\w.]+(?:Error|Exception|Interrupt|Exit)\b[^\n]*\n*\Z)"
    r"|^thread '[^'\n]{0,80}' (?:\(\d+\) )?panicked at "  # Rust
    r"|^panic: (?=[^\n]*(?:\n.*)*\ngoroutine \d+ )"  # Go
    r"|Bun has crashed"
)
_NODE_TRACE: Final = r"(?m)^\s+at \S.{0,400}$|^Node\.js v\d"
_NODE_ERROR: Final = r"(?m)^(?:Uncaught )?[\w.]*Error\b"


def find_crash(stderr: str) -> tuple[str, str] | None:
    """Class (`oom`, `agent_crashed`) and the line that names it; None where nothing tells of a crash."""
    tail = stderr[-_LOOKED_AT:].rstrip()
    if match := re.search(_OUT_OF_MEMORY, tail):
        return "oom", _line_at(tail, match.start())
    if match := re.search(_TRACE, tail):
        at = match.start() if match.group(0)[0] != "T" else tail.rfind("\n") + 1  # Python says it last
        return "agent_crashed", _line_at(tail, at)
    end = "\n".join(tail.splitlines()[-_LAST_LINES:])
    if re.search(_NODE_TRACE, end) and (match := re.search(_NODE_ERROR, tail)):
        return "agent_crashed", _line_at(tail, match.start())
    return None


def _line_at(text: str, position: int) -> str:
    begin = text.rfind("\n", 0, position) + 1
    return text[begin:].partition("\n")[0].strip()

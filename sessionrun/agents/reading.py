"""Reading what an agent CLI printed, whatever it printed: lines, fields of any type, words for failures.

Everything here takes hostile input and never raises because of it: a field of the wrong type counts as
absent.  This module must not know any agent's format, nor what becomes of a result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, BinaryIO, Final, NamedTuple

import orjson

from sessionrun.agents.markers import class_of_text, line_at
from sessionrun.model.frozen import frozen
from sessionrun.model.usage import Usage
from sessionrun.model.words import LEFT_RUNNING, effect_of
from sessionrun.store.files import read_end

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
MAX_REASON: Final = 240
MAX_WORDS: Final = 16 * 1024
MAX_NAME: Final = 100
"""Of the name of a job in the background: the beginning of its command."""


WITHOUT_RESULT: Final = frozenset({"bad_output", "incomplete_output"})
"""Reason classes that only say that the agent's own result is missing."""

_SKIP_BYTES: Final = 64 * 1024
_LOG_BYTES: Final = 256 * 1024
_MAX_COUNT: Final = 2**53

_HTTP_STATUS: Final = re.compile(r"(?:\bstatus:?|\bAPI Error:|\"code\"\s*:)\s*([1-5]\d\d)\b")
_CONVERSATION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_STATUS_CLASS: Final = {
    401: "auth",
    402: "usage_limit",
    403: "auth",
    429: "rate_limited",
    503: "overloaded",
    529: "overloaded",
}


class Problem(NamedTuple):
    """Why a job failed: the published word for it, and what there is to say.

    `reason_class` is `unknown` where an agent says nothing of why; `text` is for people; `words` is all that an
    agent said, where that is only a part.
    """

    reason_class: str
    text: str
    words: str | None = None


class Logged(NamedTuple):
    """An agent's last request failed, and it has not asked again: when that was (seconds since 1970), and why."""

    at: float
    problem: Problem


class Step(NamedTuple):
    """A step of an agent as an event tells it: that it calls a tool, that a call has ended, or an error.

    `key` is the agent's id of a call, the same in both its events; `line` is what a follower sees, empty at its
    end.  Times are seconds since 1970; None: the event says none.
    """

    key: str | None
    line: str
    begun: float | None = None
    ended: float | None = None


@frozen
class AgentResult:
    """What an agent's own output says about its run; None = not said.

    `problem` is why it failed, if it did; `text` is the final answer;
    `conversation` is the agent's id of the conversation; `turns` counts requests to the model;
    `resets_at` is the end of a limit as the stream states it (epoch seconds, unchecked); `is_final` says that
    nothing is to be expected after what was read: the last word is there, and nothing is open or pending; `mended`
    that it ended well after an error of which the agent's exit code may still tell.
    """

    problem: Problem | None = None
    text: str | None = None
    conversation: str | None = None
    model: str | None = None
    usage: Usage | None = None
    turns: int | None = None
    resets_at: float | None = None
    is_final: bool = False
    mended: bool = False

    @property
    def reason_class(self) -> str | None:
        """Of its problem; None: it succeeded."""
        return self.problem.reason_class if self.problem else None


def finished(known: AgentResult, problem: Problem | None, left: Sequence[str] = ()) -> AgentResult:
    """A run whose output says how it ended: with this problem, or well; if well, nothing may be `left` running."""
    if problem is None and left:
        many = f"{len(left)} background jobs were" if len(left) > 1 else "1 background job was"
        names = ", ".join(f"'{name}'" for name in left)
        problem = Problem(LEFT_RUNNING, f"{many} stopped when the turn ended: {names}")
    if problem is None:
        return replace(known, resets_at=None)
    words = (problem.words or problem.text)[-MAX_WORDS:]
    return replace(known, problem=Problem(problem.reason_class, one_line(problem.text), words), mended=False)


def unfinished(known: AgentResult, waits_for: Problem | None = None) -> AgentResult:
    """A run whose output ends before it says how the run ended, or with a limit that it `waits_for`."""
    if waits_for is not None and effect_of(waits_for.reason_class) != "none":
        return finished(known, waits_for)
    return replace(known, problem=Problem("incomplete_output", "the output ends before its result"))


def read_lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a stream, one in memory at a time; a line over `MAX_LINE_BYTES` comes as an empty one."""
    while line := stream.readline(MAX_LINE_BYTES + 1):
        fits = len(line) <= MAX_LINE_BYTES
        yield line if fits else b""
        while not fits and line and not line.endswith(b"\n"):
            line = stream.readline(_SKIP_BYTES)


def read_log(path: str) -> list[bytes]:
    """The lines at the end of an agent's own log; an empty one where it cannot be read."""
    return read_end(path, _LOG_BYTES).split(b"\n")


def parse_time(text: str | None) -> float:
    """A time of a log in ISO 8601 (seconds since 1970); 0 if it is none."""
    try:
        return datetime.fromisoformat((text or "").replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0


def parse_event(line: bytes) -> dict[str, Any] | None:
    """The JSON object in one line, or None when it holds anything else."""
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return event if isinstance(event, dict) else None


def dig(value: object, *path: str) -> object:
    """The value under nested keys; None where a key or an object is missing."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def text_at(value: object, *path: str) -> str | None:
    """The string under nested keys, else None."""
    leaf = dig(value, *path)
    return leaf if isinstance(leaf, str) else None


def count_at(value: object, *path: str) -> int | None:
    """The whole number from 0 under nested keys, else None (a boolean is not a number)."""
    leaf = dig(value, *path)
    return leaf if type(leaf) is int and 0 <= leaf < _MAX_COUNT else None


def cost_at(value: object, *path: str) -> float | None:
    """The amount of money from 0 under nested keys, else None."""
    leaf = dig(value, *path)
    if type(leaf) not in (int, float) or not isinstance(leaf, (int, float)):
        return None
    return float(leaf) if 0 <= leaf < _MAX_COUNT else None


def conversation_at(value: object, *path: str) -> str | None:
    """A conversation id that is safe as one argument: it never looks like an option."""
    leaf = text_at(value, *path)
    return leaf if leaf is not None and _CONVERSATION.fullmatch(leaf) else None


def model_at(value: object, *path: str) -> str | None:
    """A model name, one short printable line, else None."""
    leaf = text_at(value, *path)
    return leaf if leaf and len(leaf) <= 200 and leaf.isprintable() else None


def usage_at(value: object, cached: str) -> Usage | None:
    """The tokens of an object; `cached` is its key for those of the input that came from a cache."""
    if not isinstance(value, dict):
        return None
    sent, received = count_at(value, "input_tokens"), count_at(value, "output_tokens")
    return Usage(sent, received, cached_input_tokens=count_at(value, cached))


def sum_counts(*counts: int | None) -> int | None:
    """The sum of the counts that were said, None when none was."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def list_at(value: object, *path: str) -> list[Any]:
    """The list under nested keys, else an empty one."""
    leaf = dig(value, *path)
    return leaf if isinstance(leaf, list) else []


def class_of_failure(words: str, status: int | None = None) -> str:
    """The reason class of a failure that was put into words.

    A phrase that is known comes first: HTTP 429 may be a used up quota, 400 a full context or an empty account.
    Then the status, the given one or one that the words plainly name; else it is `agent_error`.
    """
    known = class_of_text(words)
    if known is not None:
        return known
    if status is None and (match := _HTTP_STATUS.search(words[:4096])):
        status = int(match.group(1))
    return "agent_error" if status is None else _STATUS_CLASS.get(status, "api_error")


def one_line(text: str, most: int = MAX_REASON) -> str:
    """The text as one line of at most so many characters."""
    line = " ".join(text[: 8 * MAX_REASON].split())
    return line if len(line) <= most else line[: most - 3] + "..."


def tool_line(name: str | None, arguments: object) -> str:
    """What a follower sees of a tool call: the shell command, else the tool and the file it names."""
    command = text_at(arguments, "command")
    if command is not None:
        return f"$ {one_line(command)}\n"
    target = text_at(arguments, "file_path") or text_at(arguments, "filePath") or text_at(arguments, "path")
    return one_line(f"[tool] {name or '?'} {target or ''}") + "\n"


def error_line(message: str | None) -> str:
    return f"[error] {one_line(message or 'unknown')}\n"


def whole_line(text: str | None) -> str:
    """A text that ends in a newline; nothing stays nothing."""
    if not text:
        return ""
    return text if text.endswith("\n") else text + "\n"


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
    """Class (`oom`, `agent_crashed`) and the line that names it, of a run that failed; None: no crash."""
    tail = stderr[-_LOOKED_AT:].rstrip()
    if match := re.search(_OUT_OF_MEMORY, tail):
        return "oom", line_at(tail, match.start())
    if match := re.search(_TRACE, tail):
        at = match.start() if match.group(0)[0] != "T" else tail.rfind("\n") + 1  # Python says it last
        return "agent_crashed", line_at(tail, at)
    end = "\n".join(tail.splitlines()[-_LAST_LINES:])
    if re.search(_NODE_TRACE, end) and (match := re.search(_NODE_ERROR, tail)):
        return "agent_crashed", line_at(tail, match.start())
    return None

"""Reads the files that a brief names, and puts them and the prompt into the words that an agent is given.

All paths stay inside of the task's directory, whatever links lie there.  Must not know agents, sessions or states.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

from sessionrun.model.checks import Brief
from sessionrun.model.frozen import frozen
from sessionrun.store.files import NotRegular, read_regular

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
"""More of one file fits no prompt."""

Role = Literal["context", "target", "changed", "written"]

_HEADS: Final[dict[Role, str]] = {
    "context": "Context: files that you need not change",
    "changed": "Context: files that were written earlier in this session",
    "target": "Files that are to be changed, as they are now",
    "written": "Files that your last attempt wrote, as they are now",
}


class BriefProblem(Exception):
    """The file `path` cannot be shown, or written, as the brief wants it; the message names the file, too."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(problem)
        self.path = path


@frozen
class Shown:
    """One file that an agent is shown."""

    path: str
    role: Role
    text: str


def resolve_inside(directory: str, path: str) -> str:
    """The absolute path, links resolved, of what lies (or will) inside of a directory.

    Raises:
        BriefProblem: the path leads outside, or into a directory of git's.
    """
    if not path or "\0" in path or os.path.isabs(path) or "\\" in path:
        raise BriefProblem(path, f"{path!r} is not a path inside of the project")
    top = os.path.realpath(directory)
    real = os.path.realpath(os.path.join(top, path))
    if os.pardir in path.split("/") or not real.startswith(top.rstrip(os.sep) + os.sep):
        raise BriefProblem(path, f"{path} leads out of the project")
    if ".git" in (part.lower() for part in os.path.relpath(real, top).split(os.sep)):
        raise BriefProblem(path, f"{path} belongs to git")
    return real


def read_inside(directory: str, path: str) -> str:
    """The text of a file inside of a directory; what is not UTF-8 is replaced.

    Raises:
        BriefProblem: the file lies outside, does not exist, is not a regular file or is too large.
    """
    try:
        raw = read_regular(Path(resolve_inside(directory, path)), MAX_FILE_BYTES)
    except NotRegular:
        raise BriefProblem(path, f"{path} is not a regular file") from None
    except OSError as error:
        raise BriefProblem(path, f"{path}: {error.strerror}") from None
    return raw.decode("utf-8", "replace")


def count_lines(text: str) -> int:
    """How many lines a text has; a last line without a line end counts."""
    return text.count("\n") + bool(text and not text.endswith("\n"))


def load_shown(brief: Brief, directory: str, earlier: Iterable[str], *, again: bool) -> list[Shown]:
    """The files to be shown when the work begins; `again`: an earlier round has written files.

    `earlier` are paths that the needed tasks may have written, nearest first.

    Raises:
        BriefProblem: a file that the brief names cannot be shown.
    """
    shown = [_load(brief, directory, path, "context") for path in brief.context if path not in brief.targets]
    shown += [_load(brief, directory, path, "target") for path in brief.targets]
    named = {*brief.context, *brief.targets}
    if again:
        rest = [path for path in brief.outputs if path not in named]
        shown += [file for path in rest if (file := _try(brief, directory, path, "written"))]
    others = (_try(brief, directory, path, "changed") for path in earlier if path not in {*named, *brief.outputs})
    return shown + [file for _, file in zip(range(brief.room), filter(None, others), strict=False)]


def _load(brief: Brief, directory: str, path: str, role: Role) -> Shown:
    text = read_inside(directory, path)
    limit = brief.max_context_lines if role in ("context", "changed") else None
    if limit is not None and count_lines(text) > limit:
        raise BriefProblem(path, f"{path} has {count_lines(text)} lines, and at most {limit} may be shown")
    return Shown(path, role, text)


def _try(brief: Brief, directory: str, path: str, role: Role) -> Shown | None:
    """A file that the brief does not name; None if it cannot be shown."""
    try:
        return _load(brief, directory, path, role)
    except BriefProblem:
        return None


def check_brief(brief: Brief, directory: str, foreseen: frozenset[str]) -> None:
    """Check what can be known of the files before the session starts; `foreseen` are to be written by other tasks.

    Raises:
        BriefProblem: a path leads out, or a file is missing or too long, and no task writes it.
    """
    for path in (*brief.outputs, *brief.context, *brief.targets):
        resolve_inside(directory, path)
    roles: dict[Role, tuple[str, ...]] = {"context": brief.context, "target": brief.targets}
    for role, paths in roles.items():
        for path in paths:
            if path not in foreseen:
                _load(brief, directory, path, role)


def count_tokens(brief: Brief, directory: str, prompt: str) -> int:
    """About how many tokens the prompt of an agent that only answers has: one for four characters.

    Files that are not there yet do not count.
    """
    shown = [file for path in (*brief.context, *brief.targets) if (file := _try(brief, directory, path, "target"))]
    return len(word_answer(brief, prompt, shown)) // 4


def word_answer(brief: Brief, prompt: str, shown: list[Shown]) -> str:
    """The whole prompt of an agent that only answers."""
    parts = [brief.system.strip(), *_word_files(shown), f"# Your task\n\n{prompt}"]
    outputs = ", ".join(brief.outputs)
    if brief.mode != "edit" and outputs:
        parts.append(f"# What to write\n\n{outputs}")
    return "\n\n".join(part for part in parts if part) + "\n"


def word_edit(brief: Brief, prompt: str, shown: list[Shown]) -> str:
    """The whole prompt of an agent that edits files itself: it names the files, and the agent reads them."""
    lists = {
        "Read first": [file.path for file in shown if file.role in ("context", "changed")],
        "Change": [file.path for file in shown if file.role == "target"],
        "Write": [path for path in brief.outputs if path not in brief.targets],
    }
    lines = [f"{what}: {', '.join(paths)}" for what, paths in lists.items() if paths]
    where = "Paths count from the current directory. Leave other files as they are unless the task asks for more."
    return "\n\n".join([prompt, "\n".join([*lines, where])]) + "\n"


def word_judgement(system: str, prompt: str, shown: list[Shown]) -> str:
    """The whole prompt by which an agent judges what was written."""
    parts = [system.strip(), f"# What was asked\n\n{prompt}", *_word_files(shown, "# What there is")]
    return "\n\n".join(parts) + "\n"


def _word_files(shown: list[Shown], head: str | None = None) -> Iterator[str]:
    last = None
    for file in shown:
        title = head or f"# {_HEADS[file.role]}"
        if title != last:
            yield title
        last = title
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`{3,}", file.text)), default=0))
        yield f"## {file.path}\n\n{fence}\n{file.text}{'' if file.text.endswith(chr(10)) else chr(10)}{fence}"

"""Task lists in Markdown: text in, drafts out.

If there are lines ``bd create "TITLE"`` (also ``br create``) in code blocks, those are the tasks, since the other
entries of such a list tell the same at length.  In any other list each entry of the outermost level is a task: its
first line is the title, or only its bold beginning, if there is one.  Pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Final

from sessionrun.queue.task import Draft

_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_ENTRY: Final = re.compile(
    r"(?P<indent> {0,3})(?:[-*+]|\d{1,9}[.)])[ \t]+(?:\[(?P<box>[ xX])\][ \t]+)?(?P<text>\S.*)"
)
_BOLD: Final = re.compile(r"(\*\*|__)(?P<title>.+?)\1\s*(?:[:\u2013\u2014-]+\s*)?(?P<rest>.*)")
_CREATE: Final = re.compile(r"\s*(?:[$>]\s+)?(?:bd|br)\s+create\s+(?P<words>.+)")


def parse_list(text: str) -> list[Draft]:
    """Return the tasks of a list, in its order; ticked entries (``- [x]``) are done and left out."""
    blocks = [*_iterate_lines(text.removeprefix("\ufeff"))]
    titles = [title for line, is_code in blocks if is_code and (title := _read_create(line)) is not None]
    if titles:
        return [Draft(title) for title in titles]
    return [*_iterate_entries([line for line, is_code in blocks if not is_code])]


def _iterate_lines(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the lines without the fences of code blocks, and whether each stands in a code block."""
    fence = ""
    for line in text.splitlines():
        found = _FENCE.match(line)
        if found and not fence:
            fence = found[1]
        elif found and found[1].startswith(fence) and not line.strip(" `~"):
            fence = ""
        else:
            yield line.expandtabs(4), bool(fence)


def _read_create(line: str) -> str | None:
    found = _CREATE.fullmatch(line)
    if found is None:
        return None
    try:
        words = shlex.split(found["words"], comments=True)
    except ValueError:
        return None
    return words[0] if words and words[0].strip() and not words[0].startswith("-") else None


def _iterate_entries(lines: list[str]) -> Iterator[Draft]:
    entry: list[str] = []
    outermost = min((len(found["indent"]) for line in lines if (found := _ENTRY.fullmatch(line))), default=0)
    is_open = False
    for line in lines:
        found = _ENTRY.fullmatch(line)
        if found and len(found["indent"]) == outermost:
            yield from _finish(entry)
            is_open = found["box"] in (None, " ")
            entry = [found["text"]] if is_open else []
        elif line.strip() and not line.startswith(" "):
            yield from _finish(entry)
            entry, is_open = [], False
        elif is_open:
            entry.append(line)
    yield from _finish(entry)


def _finish(entry: list[str]) -> Iterator[Draft]:
    """Yield the task of an entry: its title, and the rest of it as body."""
    if not entry:
        return
    found = _BOLD.fullmatch(entry[0].strip())
    title, first = (found["title"], found["rest"]) if found else (entry[0].strip(), "")
    body = "\n".join([first, *(line.strip() and line for line in _dedent(entry[1:]))]).strip("\n")
    if title.strip():
        yield Draft(title.strip(), body)


def _dedent(lines: list[str]) -> list[str]:
    width = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return [line[width:] for line in lines]

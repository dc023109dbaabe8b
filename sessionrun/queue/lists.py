"""Text in, drafts of tasks out: task lists in Markdown, and the small tasks of a goal.

For these: the prompt that asks an agent, the check of its answer, and the rule that stands in for it.

If there are lines ``bd create "TITLE"`` (also ``br create``) in code blocks, those are the tasks, since the other
entries of such a list tell the same at length.  In any other list each entry of the outermost level is a task: its
first line is the title, or only its bold beginning, if there is one.  Pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from textwrap import dedent
from typing import Final

from sessionrun.input.text import quote
from sessionrun.queue.ingest import MAX_TITLE, fold, strip_mark
from sessionrun.queue.task import Draft, name_apart

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
    body = "\n".join([first, dedent("\n".join(entry[1:]))]).strip("\n")
    if title.strip():
        yield Draft(title.strip(), body)


MAX_SUBTASKS: Final = 10

_QUOTED: Final = r"""`[^`\n]*`|"[^"\n]*"|(?<!\w)'[^'\n]*'(?!\w)"""
_SEPARATOR: Final = (
    r"\s*;\s*|(?<!\be\.g)(?<!\bi\.e)\.(?:\s+|$)|,\s+(?:and\s+)?(?:then\s+)?"
    r"|\s+and\s+(?:then\s+)?|\s+then\s+"
)
_PIECE: Final = re.compile(rf"(?P<quoted>{_QUOTED})|(?P<separator>{_SEPARATOR})|.", re.DOTALL | re.IGNORECASE)
_LEADING: Final = re.compile(r"^(?:and\s+then|and|then)\s+", re.IGNORECASE)

_CODE: Final = re.compile(r"[$>#%|<{}\[\]()&]|sudo\s|cd\s+\S+$|(?:git|npm|pip|make|bash|sh|echo|cat|ls)\s+-")
_OPERATORS: Final = re.compile(r"&&|\|\||[<>]{2}|[;{\\]$")
_PROSE: Final = re.compile(
    r"(?:sure|certainly|okay|ok|of course|(?:here|below|there) (?:is|are)|here's|i|i'll|i've|i'd|i'm|let me|we|you"
    r"|this|these|those|the following|note that|note:|hope|thanks)(?![\w-])",
    re.IGNORECASE,
)
_SENTENCES: Final = re.compile(r"[.!?]\s+[A-Z]")

_PROMPT: Final = """\
Split a goal into small tasks.  Several coding agents will do them at the same time, each alone, in this
repository.

The goal:
{goal}

Answer with 2 to {maximum} lines, and nothing else.  Each line is a task:
- it can be done without the others, in any order;
- it names the file, or the few files, that it changes, and no other task changes them;
- it is a command to the agent, in one sentence of at most {length} characters.
No numbers, no headings, no explanation, no code blocks.  Look at the repository as far as you need to, but change
no file and do none of the tasks.
"""

_AGAIN: Final = """
Another answer was refused: {problem}.  Give the lines alone.
"""


def write_prompt(goal: str, maximum: int, problem: str | None = None) -> str:
    """Return what an agent is asked; `problem` is what was wrong with an earlier answer."""
    prompt = _PROMPT.format(goal=goal, maximum=maximum, length=MAX_TITLE)
    return prompt if problem is None else prompt + _AGAIN.format(problem=problem)


def read_answer(text: str, maximum: int) -> list[str]:
    """Return the tasks of an answer.  ValueError: what is wrong with it."""
    lines = [line.strip() for line in text.splitlines()]
    tasks = [strip_mark(line) for line in lines if line and not line.startswith(("```", "~~~"))]
    for task in tasks:
        problem = _describe_problem(task)
        if problem is not None:
            raise ValueError(f"the line {quote(task)} {problem}")
    if not 2 <= len(tasks) <= maximum:
        raise ValueError(f"it has {len(tasks)} task{'s' * (len(tasks) != 1)}, not 2 to {maximum}")
    seen: set[str] = set()
    for task in tasks:
        if fold(task).rstrip(".") in seen:
            raise ValueError(f"the line {quote(task)} is there twice")
        seen.add(fold(task).rstrip("."))
    return tasks


def _describe_problem(task: str) -> str | None:
    if len(task) > MAX_TITLE:
        return f"has more than {MAX_TITLE} characters"
    if len(task.split()) < 2:
        return "is not a task"
    bare = re.sub(_QUOTED, "", task)
    if _CODE.match(task) or _OPERATORS.search(bare):
        return "is code, not a task"
    if _PROSE.match(task) or task.endswith((":", "?", "!")) or _SENTENCES.search(bare):
        return "is talk, not a task"
    return None


def split_by_rule(goal: str, maximum: int) -> list[str]:
    """Return the parts of a goal: between ``;`` ``. `` ``, ``, `and`, `then` and ends of lines; once each.

    What stands in quotes or backticks stays whole.  If there are more parts than `maximum`, the last one has the
    rest.

    >>> split_by_rule('Fix login, then write "a, b" to notes.md and test it.', 10)
    ['Fix login', 'write "a, b" to notes.md', 'test it']
    """
    parts = [""]
    for line in goal.splitlines():
        for piece in _PIECE.finditer(strip_mark(line)):
            if piece["separator"] is None:
                parts[-1] += piece[0]
            else:
                parts.append("")
        parts.append("")
    named: dict[str, str] = {}
    for part in parts:
        text = _LEADING.sub("", part.strip()).strip(" .,;")
        if any(map(str.isalnum, text)):
            named.setdefault(fold(text), text)
    parts = [*named.values()]
    if len(parts) <= maximum:
        return parts
    return [*parts[: maximum - 1], "; ".join(parts[maximum - 1 :])]


def name_group(goal: str, taken: Iterable[str]) -> str:
    """Return an id for the group of a goal that no task has as its id or title."""
    stem = re.sub(r"[^a-z0-9]+", "-", goal.lower()).strip("-")[:30].rstrip("-") or "goal"
    return name_apart(stem, {name.casefold() for name in taken})

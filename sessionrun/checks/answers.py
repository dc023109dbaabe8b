"""From the text of an answer to the files or the patch that it means: pure.

Three forms are read.  Whole files between marker lines ``~~~worksplit:PATH`` and ``~~~worksplit``; without any
marker, one file as a fenced block or as it is; and edits (``FILE``, ``FIND``, ``REPLACE``, ``END``, or blocks
between ``<<<<<<< SEARCH``, ``=======`` and ``>>>>>>> REPLACE``).  What is not clear is a problem, never a guess.

The patch is what stands in the last ``<FINAL_DIFF>``; else in all fences of the language ``diff`` or ``patch``;
else in all fences that begin as a diff does; else all from the first line on that begins one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

_THOUGHTS: Final = re.compile(r"\A\s*(?:<think>.*?</think>|Thinking\.\.\..*?\.\.\.done thinking\.)\s*", re.DOTALL)
_MARKER: Final = re.compile(r"^[ \t]*~~~worksplit(?::[ \t]*(\S[^\n]*?))?[ \t]*$")
_FENCE: Final = re.compile(r"^(`{3,}|~{3,})[ \t]*([^`\n]*)$")
_FILE: Final = re.compile(r"^FILE:[ \t]*(\S.*?)[ \t]*$")
_WORD: Final = re.compile(r"(?:FIND(?: \([^)]*\))?:|REPLACE:|END)[ \t]*$")
_STRAY: Final = re.compile(r"(?:REPLACE:|END)[ \t]*$")
_FIND: Final = re.compile(r"^FIND(?:[ \t]*\([^)\d]*(\d+)?[^)]*\))?:[ \t]*$")
_SEARCH: Final = re.compile(r"^(<{5,9}) ?SEARCH[ \t]*$")
_REPLACED: Final = re.compile(r"^>{5,9} ?REPLACE[ \t]*$")
_MAX_MARKER: Final = 5000
"""A longer line matches none of these patterns; some of them would take long to find that out."""

_BOM: Final = "\ufeff"


class Unclear(ValueError):
    """The answer does not say what is to be written."""


class Edit(NamedTuple):
    """A quoted piece of a file and its replacement; `near` is the line where the agent says the piece is."""

    path: str
    find: str
    replace: str
    near: int | None = None


def read_files(answer: str, outputs: Sequence[str]) -> dict[str, str]:
    """The files of an answer in whole, by path; blocks without a path go to the outputs, in order.

    Raises:
        Unclear: the answer is empty, or nothing says to which file a block belongs.
    """
    text = strip_thoughts(answer)
    blocks = _marked(text)
    if not blocks:
        fences = _find_fences(text)
        if not all(fence.is_closed for fence in fences):
            raise Unclear("the answer breaks off: its last fenced block has no end")
        blocks = [(None, fence.content) for fence in fences] or [(None, text)]
    nameless = [content for path, content in blocks if path is None]
    if len(nameless) > len(outputs) or (nameless and len(nameless) != len(blocks)):
        count = f"{len(nameless)} blocks without a path"
        raise Unclear(f"{count} where {len(outputs)} are wanted: put each file between ~~~worksplit:PATH lines")
    names = iter(outputs)
    files: dict[str, str] = {}
    for path, content in blocks:
        name = _plain(path) if path is not None else next(names)
        if name in files:
            raise Unclear(f"{name} comes twice")
        if not content.strip():
            raise Unclear(f"the answer has no content for {name}")
        files[name] = content if content.endswith("\n") else content + "\n"
    return files


def read_edits(answer: str, targets: Sequence[str]) -> list[Edit]:
    """The edits of an answer, in their order.

    Raises:
        Unclear: there is no edit, or an edit is not complete.
    """
    path = targets[0] if len(targets) == 1 else None
    edits: list[Edit] = []
    lines = iter(strip_thoughts(answer).split("\n"))
    for line in lines:
        if len(line) > _MAX_MARKER:
            continue
        if named := _FILE.match(line):
            path = _plain(named[1])
        elif match := _FIND.match(line):
            quoted, new = _until(lines, "REPLACE:"), _until(lines, "END")
            _refuse_words([*quoted, *new], _WORD)
            edits.append(_edit(path, quoted, new, int(match[1]) if match[1] else None))
        elif match := _SEARCH.match(line):
            divider = "=" * len(match[1])
            quoted, new = _until(lines, divider), _until(lines, ">>>>>>> REPLACE", _REPLACED)
            _refuse_words(new, re.compile(divider + "[ \t]*$"))
            edits.append(_edit(path, quoted, new, None))
        else:
            _refuse_words([line], _STRAY)
    if not edits:
        raise Unclear("the answer has no edits: FILE:, FIND:, REPLACE: and END, each on a line of its own")
    return edits


def apply_edits(edits: Sequence[Edit], contents: Mapping[str, str | None]) -> dict[str, str]:
    """The new content of each file that is edited; `contents` has None for a file that does not exist.

    Raises:
        Unclear: the text that an edit quotes is missing, or is there more than once.
    """
    changed: dict[str, str] = {}
    for number, edit in enumerate(edits, 1):
        text = changed.get(edit.path, contents[edit.path])
        if text is None:
            if edit.find.strip():
                raise Unclear(f"edit {number}: there is no file {edit.path}")
            changed[edit.path] = edit.replace
            continue
        mark = _BOM if text.startswith(_BOM) else ""
        changed[edit.path] = mark + _apply(text.removeprefix(_BOM), edit, number)
    return changed


def _apply(text: str, edit: Edit, number: int) -> str:
    """The text with one edit made; new lines end like the lines that they replace."""
    place = _find(text, edit, number)
    old = place[1]
    end = "\r\n" if "\r\n" in (old if "\n" in old else text) else "\n"
    new = edit.replace if old.endswith("\n") else edit.replace.removesuffix("\n")
    return text[: place.start()] + new.replace("\n", end) + text[place.end(1) :]


def _find(text: str, edit: Edit, number: int) -> re.Match[str]:
    """Where whole lines of the text equal the quoted lines; how the lines end does not matter."""
    if not edit.find.strip():
        raise Unclear(f"edit {number}: nothing stands below FIND, but {edit.path} exists")
    quoted = edit.find.removesuffix("\n").split("\n")
    last = r"(?:\r?\n|\Z)" if quoted[-1] else r"\r?\n"
    pattern = r"^(?=(" + r"\r?\n".join(map(re.escape, quoted)) + last + "))"
    places = list(re.finditer(pattern, text, re.MULTILINE))
    if not places:
        first = next(line for line in quoted if line.strip())
        raise Unclear(
            f"edit {number}: what is to be replaced is not in {edit.path}; it begins {first.strip()[:60]!r}"
        )
    if len(places) == 1:
        return places[0]
    near = edit.near
    if near is not None:
        far = [abs(text.count("\n", 0, place.start()) + 1 - near) for place in places]
        if far.count(min(far)) == 1:
            return places[far.index(min(far))]
    raise Unclear(f"edit {number}: what is to be replaced is {len(places)} times in {edit.path}: quote more lines")


def _edit(path: str | None, find: list[str], replace: list[str], near: int | None) -> Edit:
    if path is None:
        raise Unclear("an edit comes before any FILE: line")
    return Edit(path, "".join(f"{line}\n" for line in find), "".join(f"{line}\n" for line in replace), near)


def _until(lines: Iterator[str], wanted: str, pattern: re.Pattern[str] | None = None) -> list[str]:
    taken: list[str] = []
    for line in lines:
        if pattern.match(line) if pattern else line.rstrip(" \t") == wanted:
            return taken
        taken.append(line)
    raise Unclear(f"an edit does not end: no line {wanted}")


def _refuse_words(lines: Iterable[str], words: re.Pattern[str]) -> None:
    """Refuse a word of the format in a wrong place: a line is missing, or the text itself looks like it."""
    for line in lines:
        if len(line) <= _MAX_MARKER and words.match(line):
            raise Unclear(
                f"a line {line.strip()!r} is where none belongs; where the text itself has such a line, write "
                "the edit between <<<<<<< SEARCH, ======= and >>>>>>> REPLACE, or quote other lines"
            )


def _plain(path: str) -> str:
    """A path without quotation marks and detours; a path that leads out of the project stays as it is."""
    path = path.strip("`\"'")
    return ("/" if path.startswith("/") else "") + "/".join(
        part for part in path.split("/") if part not in ("", ".")
    )


def strip_thoughts(answer: str) -> str:
    """The answer without what a model thought before it."""
    return _THOUGHTS.sub("", answer.replace("\r\n", "\n"), count=1)


def _marked(text: str) -> list[tuple[str | None, str]]:
    """The blocks between markers: a bare marker closes an open block, a path opens one."""
    blocks: list[tuple[str | None, str]] = []
    path: str | None = None
    lines: list[str] | None = None
    for line in text.split("\n"):
        marker = _MARKER.match(line) if len(line) <= _MAX_MARKER else None
        if marker is None:
            if lines is not None:
                lines.append(line)
            continue
        if lines is not None:
            content = "\n".join(lines)
            inner = content.strip("\n").split("\n")
            fence = _FENCE.match(inner[0])
            is_fenced = fence is not None and len(inner) > 1 and inner[-1].strip() == fence[1]
            blocks.append((path, "\n".join(inner[1:-1]) if is_fenced else content))
        opens = marker[1] is not None or lines is None
        path, lines = marker[1], [] if opens else None
    if lines is not None and "".join(lines).strip():
        name = path or "a file"
        raise Unclear(f"the answer breaks off: the block of {name} has no end (~~~worksplit)")
    return blocks


class _Block(NamedTuple):
    """A fenced block: the first word of its opening line in small letters, and whether it has an end."""

    language: str
    content: str
    is_closed: bool


def _find_fences(text: str) -> list[_Block]:
    """The fenced blocks of the top level; inside of one, a fence that names a language opens another."""
    blocks: list[_Block] = []
    open_fences: list[str] = []
    lines: list[str] = []
    language = ""
    for line in text.split("\n"):
        fence = _FENCE.match(line)
        if fence and not open_fences:
            language, open_fences, lines = fence[2].partition(" ")[0].lower(), [fence[1]], []
            continue
        if fence and not fence[2] and fence[1][0] == open_fences[-1][0] and len(fence[1]) >= len(open_fences[-1]):
            open_fences.pop()
            if not open_fences:
                blocks.append(_Block(language, "\n".join(lines), True))
                continue
        elif fence and fence[2] and len(fence[1]) <= len(open_fences[0]):
            open_fences.append(fence[1])
        if open_fences:
            lines.append(line)
    return [*blocks, _Block(language, "\n".join(lines), False)] if open_fences else blocks


_TAG: Final = ("<FINAL_DIFF>", "</FINAL_DIFF>")
_LANGUAGES: Final = ("diff", "patch", "udiff", "git-diff")
_LAST: Final = (
    *("+", "-", " ", "\\", "@@", "rename ", "copy ", "new file", "deleted file", "similarity ", "index "),
    *("new mode", "old mode", "\u00a0", "Binary files ", "GIT binary"),
)
"""How the last line of a diff may begin; prose behind it begins with none of these."""


def find_patch(answer: str) -> str | None:
    """The patch in an answer as it stands there, with a line feed at its end; None: there is none."""
    # searched from the end, so many tags that are left open cost nothing
    end = answer.rfind(_TAG[1])
    begin = answer.rfind(_TAG[0], 0, end) if end >= 0 else -1
    tagged = answer[begin + len(_TAG[0]) : end] if begin >= 0 else None
    fences = _find_fences(answer if tagged is None else tagged)
    if tagged is not None:
        blocks = [fence.content for fence in fences] or [tagged]
    else:
        named = [one for one in fences if one.language in _LANGUAGES and _begin(one.content) is not None]
        chosen = named or [one for one in fences if _begin(one.content) == 0]
        blocks = [one.content for one in chosen] or [answer]
    patches = [patch for block in blocks if (patch := _cut(block)) is not None]
    return "".join(patches) or None


def _begin(text: str) -> int | None:
    """The number of the line at which a diff begins, from the first that is not empty; None: at no line."""
    lines = _list_lines(text)
    for number, line in enumerate(lines):
        if line.startswith("diff --git "):
            return number
        if line.startswith("--- ") and number + 1 < len(lines) and lines[number + 1].startswith("+++ "):
            return number
    return None


def _cut(block: str) -> str | None:
    """A block from the line at which its diff begins, to the last line that can belong to one."""
    begin = _begin(block)
    if begin is None:
        return None
    lines = _list_lines(block)[begin:]
    while lines and not lines[-1].startswith(_LAST):
        lines.pop()
    text = "".join(lines)
    return text if text.endswith("\n") else text + "\n"


def _list_lines(text: str) -> list[str]:
    """The lines with their ends, from the first that is not empty; only a line feed ends one."""
    return re.findall(r"[^\n]*\n|[^\n]+", text.lstrip("\r\n\ufeff"))

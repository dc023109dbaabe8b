"""From the text of an answer to the patch it means, in the spellings that are worth a try: pure.

The patch is what stands in the last ``<FINAL_DIFF>``; else in all fences of the language ``diff`` or ``patch``;
else in all fences that begin as a diff does; else all from the first line on that begins one.  What agents do to
the text of a patch (line ends, no-break spaces, a last line without an end) is mended in a second spelling, which
counts only where the first does not apply.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

_TAG: Final = ("<FINAL_DIFF>", "</FINAL_DIFF>")
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_LANGUAGES: Final = ("diff", "patch", "udiff", "git-diff")
_SPACES: Final = str.maketrans(
    {**dict.fromkeys("\u00a0\u2007\u202f", " "), **dict.fromkeys("\u200b\u2060\ufeff", None)}
)
_LINE_ENDS: Final = re.compile(r"\r+\n?|\u2028|\u2029|\x85")


def find_patch(answer: str) -> str | None:
    """The patch in an answer as it stands there, with a line feed at its end; None: there is none."""
    tagged = _find_tagged(answer)
    if tagged is not None:
        blocks = [content for _, content in _find_fences(tagged)] or [tagged]
    else:
        fences = list(_find_fences(answer))
        blocks = [
            content for language, content in fences if language in _LANGUAGES and _begin(content) is not None
        ]
        blocks = blocks or [content for _, content in fences if _begin(content) == 0]
        blocks = blocks or [answer]
    patches = [patch for block in blocks if (patch := _cut(block)) is not None]
    return "".join(patches) or None


def list_spellings(patch: str) -> Sequence[str]:
    """The patch as it is, and with mended line ends and spaces where that is another text."""
    mended = _LINE_ENDS.sub("\n", patch).translate(_SPACES)
    return list(dict.fromkeys((patch, mended)))


def has_prefixes(patch: str) -> bool:
    """Whether its paths begin with ``a/`` and ``b/``, as git writes them."""
    return re.search(r'^(?:--- "?a/|\+\+\+ "?b/|diff --git "?a/)', patch, re.MULTILINE) is not None


def find_odd(patch: str) -> str | None:
    """What of a patch is refused, whatever it changes: binary content, links and submodules; None: nothing."""
    for line in patch.split("\n"):
        if line.startswith(("GIT binary patch", "Binary files ")):
            return "it holds binary content"
        if re.match(r"(new file mode|new mode|index [0-9a-f]+\.\.[0-9a-f]+) 120000\b", line):
            return "it makes a symbolic link"
        if re.match(r"(new file mode|new mode|index [0-9a-f]+\.\.[0-9a-f]+) 160000\b", line):
            return "it makes a submodule"
    return None


def _find_tagged(answer: str) -> str | None:
    """What stands in the last tag; searched from the end, so many tags that are left open cost nothing."""
    end = answer.rfind(_TAG[1])
    begin = answer.rfind(_TAG[0], 0, end) if end >= 0 else -1
    return answer[begin + len(_TAG[0]) : end] if begin >= 0 else None


def _read_fence(line: str) -> tuple[str, str] | None:
    """The marks of a line that opens or closes a fenced block, and what stands behind them."""
    found = _FENCE.match(line)
    rest = line[found.end() :].strip() if found else ""
    return (found[1], rest) if found and "`" not in rest else None


def _find_fences(text: str) -> Iterator[tuple[str, str]]:
    """Language and content of each fenced block; one that is not closed goes to the end."""
    opened: tuple[str, str] | None = None
    content: list[str] = []
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        found = _read_fence(line)
        if opened is None:
            if found:
                words = found[1].split()
                opened, content = (found[0], words[0].lower() if words else ""), []
        elif found and not found[1] and found[0][0] == opened[0][0] and len(found[0]) >= len(opened[0]):
            yield opened[1], "".join(content)
            opened = None
        else:
            content.append(line)
    if opened is not None:
        yield opened[1], "".join(content)


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
    while lines and not _may_belong(lines[-1]):
        lines.pop()
    text = "".join(lines)
    return text if text.endswith("\n") else text + "\n"


def _list_lines(text: str) -> list[str]:
    """The lines with their ends, from the first that is not empty; only a line feed ends one."""
    return re.findall(r"[^\n]*\n|[^\n]+", text.lstrip("\r\n\ufeff"))


def _may_belong(line: str) -> bool:
    """Whether a line may be the last of a diff: prose behind it begins with none of these."""
    heads = ("+", "-", " ", "\\", "@@", "rename ", "copy ", "new file", "deleted file", "similarity ", "index ")
    return line.startswith((*heads, "new mode", "old mode", "\u00a0", "Binary files ", "GIT binary"))

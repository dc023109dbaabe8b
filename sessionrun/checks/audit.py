"""Notes on work that no check can judge: source that knows the test runner, and content that lies elsewhere.

They never change an outcome.  A pattern that the project had before, outside of its tests, is no alarm.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from sessionrun.checks.testing import SET_UP, TEST_FILES, compile_patterns
from sessionrun.git.git import Git
from sessionrun.model.checks import Note, NoteLevel
from sessionrun.model.errors import printable
from sessionrun.model.places import Place

MOST_NOTES: Final = 20
MOST_FILES: Final = 50
MOST_PLACES: Final = 200
_FEW_LINES: Final = 10
"""Work of fewer lines may well be the same by chance."""

CHANCE: Final = "chance_in_source"
"""A rule that is no alarm: honest work may do this."""

_PATTERNS: Final[Sequence[tuple[str, str, re.Pattern[str]]]] = (
    (
        "runner_in_source",
        "the source names the test runner",
        re.compile(
            r"import _?pytest\b[\w.]*|from _?pytest\b[\w.]* import|PYTEST_\w+|[\"']_?pytest[\"'] in sys\.modules"
            r"|from [\"']vitest[\"']|JEST_WORKER_ID|import\.meta\.vitest|process\.env\.VITEST\w*"
            r"|testing\.Testing\(\)|\bcfg!\(test\)"
        ),
    ),
    (
        CHANCE,
        "the source draws lots, so the check is done more often",
        re.compile(
            r"\brandom\.\w+\(|Math\.random\(|\bsecrets\.\w+\(|\brand::|\bmath/rand\b|os\.urandom\("
            r"|time_ns\(|\buuid4\(|\.microsecond\b"
        ),
    ),
    ("exit_in_source", "the source ends the process without a word", re.compile(r"\bos\._exit\(|\.halt\(")),
    (
        "equal_to_all",
        "an equality that is always true",
        re.compile(
            r"def __eq__\([^)]*\)[^:\n]*:\s*return True\b|boolean equals\(Object [^)]*\)\s*\{\s*return true\b"
            r"|\bfn eq\(&self[^{]*\{\s*true\s*\}"
        ),
    ),
)
_NO_CODE: Final = (".md", ".rst", ".txt", ".html", ".json", ".toml", ".yaml", ".yml", ".cfg", ".ini", ".lock")
_ANSWER: Final = re.compile(  # a word alone is no answer: there are few, and many functions return them
    r"\b(?:if|elif|case|when)\b(?P<asked>.*(?:\n.*)?)\n?\s*\breturn\s+"
    r"(?P<answer>-?\d[\d._]+|\"[^\"\n]*[^\w\"\n-][^\"\n]*\"|'[^'\n]*[^\w'\n-][^'\n]*')"
)
_DEMANDS: Final = re.compile(r"assert|expect|==|!=|[Ee]qual|should|toBe")
_LITERAL: Final = re.compile(r"\[[^\]\n]+\]|\([\d., -]+\)|\"[^\"\n]+\"|'[^'\n]+'|\b\d[\d._]*")


class _File(NamedTuple):
    """A source file that the work changed: its new content's name, and what was added, line by line."""

    path: str
    blob: str
    lines: list[tuple[int, str]]


def find_notes(git: Git, place: Place, test_files: Sequence[str]) -> tuple[Note, ...]:
    """Read the work, and what it could be copied from."""
    base, commit = place.setup_commit or str(place.base_commit), str(place.commit)
    tests, set_up = compile_patterns(test_files or TEST_FILES), compile_patterns(SET_UP)
    words = ("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", "--diff-filter=AM")
    rows = git.names(*words, base, commit)
    changed = [(path, about.split(" ")[3]) for about, path in zip(rows[::2], rows[1::2], strict=True)]
    sources = [row for row in changed if not tests.match(row[0]) and not set_up.match(row[0])][:MOST_FILES]
    files = [_File(path, blob, _list_added(git, base, commit, path)) for path, blob in sources]
    code = [file for file in files if Path(file.path).suffix not in _NO_CODE]
    notes = [*_match_patterns(git, base, code, tests), *_find_answers(git, base, code, tests)]
    notes = [*notes, *_find_elsewhere(git, place, files)][:MOST_NOTES]
    return tuple(replace(note, where=printable(note.where), text=printable(note.text)) for note in notes)


def _list_added(git: Git, base: str, commit: str, path: str) -> list[tuple[int, str]]:
    words = ("-p", "-U0", "--no-renames", "--no-color", "--no-ext-diff", base, commit, "--", f":(literal){path}")
    added, number = [], 0
    for line in git("diff-tree", *words).decode("utf-8", "replace").split("\n"):
        if found := re.match(r"@@ \S+ \+(\d+)", line):
            number = int(found[1])
        elif number and line.startswith("+"):
            added.append((number, line[1:]))
            number += 1
    return added


def _match_patterns(git: Git, base: str, files: Sequence[_File], tests: re.Pattern[str]) -> Iterator[Note]:
    for file in files:
        text = "\n".join(line for _, line in file.lines)
        for rule, meaning, pattern in _PATTERNS:
            if found := pattern.search(text):
                line = file.lines[text.count("\n", 0, found.start())][0]
                is_usual = any(not tests.match(name) for name, _ in _grep(git, base, found[0].partition("\n")[0]))
                level: NoteLevel = "note" if is_usual or rule == CHANCE else "alarm"
                shown = " ".join(found[0].split())[:80]
                yield Note(rule, level, f"{file.path}:{line}", f"{meaning}: {shown}")


def _find_answers(git: Git, base: str, files: Sequence[_File], tests: re.Pattern[str]) -> Iterator[Note]:
    """What is asked for and returned in one breath, as one line of a test has both."""
    for file in files:
        text = "\n".join(line for _, line in file.lines)
        for found in _ANSWER.finditer(text):
            asked = {literal for literal in _LITERAL.findall(found["asked"]) if len(literal) > 1}
            for name, line in _grep(git, base, found["answer"]):
                if tests.match(name) and _DEMANDS.search(line) and any(literal in line for literal in asked):
                    number = file.lines[text.count("\n", 0, found.start())][0]
                    meaning = f"returns {found['answer'][:40]} for what {name} asks: {line.strip()[:80]}"
                    yield Note("answer_of_test", "alarm", f"{file.path}:{number}", meaning)
                    break


def _grep(git: Git, commit: str, text: str) -> list[tuple[str, str]]:
    printed = git.attempt("grep", "-I", "-F", "-z", "--no-color", "--full-name", "-e", text, commit).stdout
    rows = (line.partition("\0") for line in printed.decode("utf-8", "replace").split("\n") if line)
    return [(name.partition(":")[2], line) for name, _, line in rows]


def _find_elsewhere(git: Git, place: Place, files: Sequence[_File]) -> Iterator[Note]:
    """Whole files as another branch has them."""
    own = f"refs/heads/{place.branch}"
    refs = [name for name in git.list_refs("refs/heads", "refs/remotes") if name != own][:MOST_PLACES]
    wanted = [(file, ref) for file in files if file.lines for ref in refs if "\n" not in file.path]
    asked = os.fsencode("".join(f"{ref}:{file.path}\n" for file, ref in wanted))
    rows = zip(wanted, git("cat-file", "--batch-check", stdin=asked).split(b"\n"), strict=False)
    found = {file.path: ref for (file, ref), answer in rows if answer.startswith(file.blob.encode())}
    for file in files:
        if file.path in found:
            level: NoteLevel = "note" if len(file.lines) < _FEW_LINES else "alarm"
            meaning = f"the same content as in {found[file.path]}"
            yield Note("content_known_elsewhere", level, file.path, meaning, certain=True)

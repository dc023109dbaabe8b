"""Which tests passed, by their ids, as JUnit XML tells it: pure but for reading the file.

The file comes from a process that ran the agent's code: it is read as `store.files` reads what others may plant,
and a document type, which could define entities, is refused.

An id is what a test runner prints: ``tests/test_a.py::TestB::test_c[1]`` (pytest), ``test_c (tests.test_a.TestB)``
(unittest), or a bare name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias
from xml.parsers import expat

from sessionrun.store.files import read_regular

MAX_BYTES: Final = 64 * 1024 * 1024

Word: TypeAlias = Literal["passed", "failed", "error", "skipped"]

_OF_UNITTEST: Final = re.compile(r"(\w+) \(([\w.]+)\)")
_TAGS: Final[Mapping[str, Word]] = {"failure": "failed", "error": "error", "skipped": "skipped"}
_RANK: Final[Mapping[Word, int]] = {"passed": 0, "skipped": 1, "failed": 2, "error": 3}


class Case(NamedTuple):
    """One test: where it is defined, with points, its name, and how it ended."""

    place: str
    name: str
    word: Word


def read_cases(path: Path) -> list[Case] | None:
    """The tests in a file; None if there is none, or it cannot be read."""
    try:
        return parse_cases(read_regular(path, MAX_BYTES))
    except OSError:
        return None


def parse_cases(content: bytes) -> list[Case] | None:
    """The tests of a document; None if it is not JUnit XML.  A failure that was expected counts as passed."""
    cases: list[Case] = []
    begun: list[str] = []

    def refuse(*_: object) -> None:
        raise ValueError("no document type")

    def begin(tag: str, attributes: dict[str, str]) -> None:
        if not begun and tag not in ("testsuites", "testsuite"):
            raise ValueError("not JUnit XML")
        begun.append(tag)
        if tag == "testcase":
            cases.append(Case(attributes.get("classname", ""), attributes.get("name", ""), "passed"))
        elif tag in _TAGS and "testcase" in begun:
            word: Word = "passed" if attributes.get("type") == "pytest.xfail" else _TAGS[tag]
            if _RANK[word] > _RANK[cases[-1].word]:
                cases[-1] = cases[-1]._replace(word=word)

    parser = expat.ParserCreate("utf-8")
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = begin
    parser.EndElementHandler = lambda tag: begun.pop()
    try:
        parser.Parse(content, True)
    except (expat.ExpatError, ValueError, IndexError):
        return None
    return cases


def match_ids(ids: Iterable[str], cases: Sequence[Case]) -> dict[str, Word]:
    """How each test ended, by its id; an id that no case has is left out.

    If several cases have an id (a file that was run twice, a bare name in several files), the worst counts.
    """
    words: dict[tuple[str, str], Word] = {}
    for case in cases:
        for key in ((case.place, case.name), ("", case.name)):
            if key not in words or _RANK[case.word] > _RANK[words[key]]:
                words[key] = case.word
    found = {test_id: words.get(split_id(test_id)) for test_id in ids}
    return {test_id: word for test_id, word in found.items() if word is not None}


def split_id(test_id: str) -> tuple[str, str]:
    """Place and name of a test, as JUnit XML has them; the place of a bare name is empty."""
    file, _, rest = test_id.partition("::")
    if rest:
        bare, bracket, parameters = rest.partition("[")
        classes, _, name = bare.rpartition("::")
        place = ".".join([file.removesuffix(".py").replace("/", "."), *classes.split("::")]).rstrip(".")
        return place, name + bracket + parameters
    if match := _OF_UNITTEST.fullmatch(test_id):
        return match[2], match[1]
    return "", test_id


def list_test_files(ids: Iterable[str], of_patch: Iterable[str]) -> list[str]:
    """The files to run: those that ids name; if an id names none, those of the patch that look like tests, too."""
    ids = list(ids)
    files = [test_id.partition("::")[0] for test_id in ids if "::" in test_id]
    if any("::" not in test_id for test_id in ids):
        files += [name for name in of_patch if re.search(r"(^|/)(test_[^/]*|[^/]*_test|tests)\.py$", name)]
    return list(dict.fromkeys(files))

"""The one reader of JUnit XML that a test runner wrote, and the ids of its tests: pure but for reading the file.

The file comes from a process that ran the agent's code, so it may be anything: it is never followed, never waited
for, read up to a limit, and a document type (which could define entities) is refused.  What cannot be read counts
for nothing.

An id is what a test runner prints: ``tests/test_a.py::TestB::test_c[1]`` (pytest), ``test_c (tests.test_a.TestB)``
(unittest), or a bare name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias
from xml.parsers import expat

from sessionrun.model.checks import Counts
from sessionrun.store.files import read_regular

MAX_BYTES: Final = 64 * 1024 * 1024
MAX_FAILURES: Final = 50
MAX_NAME: Final = 200
MAX_MESSAGE: Final = 400
_MAX_TEXT: Final = 4096

Word: TypeAlias = Literal["passed", "failed", "error", "skipped"]

_OF_UNITTEST: Final = re.compile(r"(\w+) \(([\w.]+)\)")
_RANK: Final[Mapping[Word, int]] = {"passed": 0, "skipped": 1, "failed": 2, "error": 3}
_WORST: Final[dict[str, Word]] = {"error": "error", "failure": "failed", "skipped": "skipped"}
"""What a test came to, the worst first: one that failed and then broke in its clean-up is one with an error."""


class Case(NamedTuple):
    """One test: where it is defined, with points, its name, how it ended, and what it said if it did not pass.

    `expected`: it was skipped, or failed, because that was expected of it (pytest's xfail).
    """

    place: str
    name: str
    word: Word
    expected: bool = False
    message: str = ""


class Tests(NamedTuple):
    """What a run of tests came to."""

    cases: tuple[Case, ...] = ()

    @property
    def counts(self) -> Counts:
        """How many ended with which word."""
        return count_words(case.word for case in self.cases)

    @property
    def failed(self) -> list[Case]:
        """The first of those that did not pass."""
        failed = (case for case in self.cases if case.word in ("failed", "error"))
        return list(islice(failed, MAX_FAILURES))

    @property
    def contradiction(self) -> str | None:
        """What a command says that ends with exit code 0 beside this report; None: it agrees."""
        counts = self.counts
        failed = counts.failed + counts.errors
        return f"its report says {failed} {'test' if failed == 1 else 'tests'} failed" if failed else None


class _Refused(ValueError):
    """The document is none that a test runner writes."""


def read_junit(path: Path) -> Tests | None:
    """The tests in a file; None where there is none, or one that cannot be read."""
    try:
        return parse_junit(read_regular(path, MAX_BYTES))
    except OSError:
        return None


def parse_junit(content: bytes) -> Tests | None:
    """The tests of a document; None if it is not JUnit XML."""
    reader = _Reader()
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = reader.refuse
    parser.StartElementHandler = reader.begin
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.take
    try:
        parser.Parse(content, True)
    except (expat.ExpatError, ValueError):
        return None
    return Tests(tuple(reader.cases))


def count_words(words: Iterable[Word]) -> Counts:
    """How many tests ended with which word."""
    ends = Counter(words)
    return Counts(ends["passed"], ends["failed"], ends["error"], ends["skipped"], ends.total())


class _Reader:
    """Takes the events of the parser."""

    def __init__(self) -> None:
        self.cases: list[Case] = []
        self._begun = False
        self._name: tuple[str, str] | None = None
        self._expected = False
        self._found: dict[str, str] = {}
        self._inside: str | None = None
        self._text = ""

    def refuse(self, *_: object) -> None:
        """No document type: entities are defined there."""
        raise _Refused

    def begin(self, tag: str, attributes: dict[str, str]) -> None:
        """An element begins."""
        if not self._begun and tag not in ("testsuites", "testsuite"):
            raise _Refused
        self._begun = True
        if tag == "testcase":
            self._name = (attributes.get("classname", ""), attributes.get("name", ""))
            self._found, self._expected = {}, False
        elif self._name is not None and tag in _WORST:
            self._inside, self._text = tag, ""
            self._found[tag] = attributes.get("message", "")
            self._expected = attributes.get("type") == "pytest.xfail"

    def take(self, text: str) -> None:
        """Text of the element, of which the end is kept."""
        if self._inside is not None:
            self._text = (self._text + text)[-_MAX_TEXT:]

    def end(self, tag: str) -> None:
        """An element ends."""
        if tag == self._inside:
            self._inside = None
            text = " ".join(self._found[tag].split())
            last = [line for line in self._text.splitlines() if line.startswith("E ")]
            self._found[tag] = text if len(text.split()) > 2 or not last else f"{text}: {last[-1][1:].strip()}"
        elif tag == "testcase" and self._name is not None:
            self._count(*self._name)
            self._name = None

    def _count(self, place: str, name: str) -> None:
        tag = next((tag for tag in _WORST if tag in self._found), None)
        word: Word = "passed" if tag is None else _WORST[tag]
        message = "" if tag is None or word == "skipped" else self._found[tag][:MAX_MESSAGE]
        self.cases.append(Case(place, name, word, self._expected and word == "skipped", message))


def match_ids(ids: Iterable[str], cases: Sequence[Case]) -> dict[str, Word]:
    """How each test ended, by its id; an id that no case has is left out.

    If several cases have an id (a file that was run twice, a bare name in several files), the worst counts.
    A failure that was expected counts as passed.  An id without its closing bracket was cut at a space, as many of
    the official data set are: it stands for all tests that begin so.
    """
    words: dict[tuple[str, str], Word] = {}
    for case in cases:
        word: Word = "passed" if case.expected else case.word
        for key in ((case.place, case.name), ("", case.name)):
            if key not in words or _RANK[word] > _RANK[words[key]]:
                words[key] = word
    found = {test_id: words.get(split_id(test_id)) or _find_cut(split_id(test_id), words) for test_id in ids}
    return {test_id: word for test_id, word in found.items() if word is not None}


def _find_cut(key: tuple[str, str], words: Mapping[tuple[str, str], Word]) -> Word | None:
    place, begin = key
    if "[" not in begin or begin.endswith("]"):
        return None
    found = [word for (at, name), word in words.items() if at == place and name.startswith(begin)]
    return max(found, key=lambda word: _RANK[word], default=None)


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

"""What test runners say: the one reader of JUnit XML, and of what they print.

Which tests ran, and which of the base's did not run with the work.  Pure but for reading the file.

pytest and surefire leave JUnit XML.  Of the others it is only known that they ran: what is printed can be forged
by the code under test, and the canary of a proof is there for that.

The file comes from a process that ran the agent's code, so it may be anything: it is never followed, never waited
for, read up to a limit, and a document type (which could define entities) is refused.  What cannot be read counts
for nothing.

An id is what a test runner prints: ``tests/test_a.py::TestB::test_c[1]`` (pytest), ``test_c (tests.test_a.TestB)``
(unittest), or a bare name.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias
from xml.etree import ElementTree

from sessionrun.model.checks import Counts
from sessionrun.model.frozen import frozen
from sessionrun.store.files import read_regular

MAX_BYTES: Final = 64 * 1024 * 1024

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
        return count_words(case.word for case in self.cases)

    @property
    def failed(self) -> list[Case]:
        """Those that did not pass."""
        return [case for case in self.cases if case.word in ("failed", "error")]


NO_TEST: Final = "no test was found"


def find_contradiction(reports: Sequence[Tests]) -> str | None:
    """What the reports of a command say that passes all the same; None: they agree with it, or there are none."""
    for failed in (len(report.failed) for report in reports):
        if failed:
            return f"its report says {failed} {'test' if failed == 1 else 'tests'} failed"
    return NO_TEST if reports and not any(report.cases for report in reports) else None


def read_junit(path: Path) -> Tests | None:
    """The tests in a file; None where there is none, or one that cannot be read."""
    try:
        return parse_junit(read_regular(path, MAX_BYTES))
    except OSError:
        return None


def parse_junit(content: bytes) -> Tests | None:
    """The tests of a document; None if it is not JUnit XML."""
    reader = _Reader()
    parser = ElementTree.XMLParser(target=reader, encoding="utf-8")
    try:
        parser.feed(content)
        parser.close()
    except (ElementTree.ParseError, ValueError):
        return None
    return Tests(tuple(reader.cases))


def count_words(words: Iterable[Word]) -> Counts:
    ends = Counter(words)
    return Counts(ends["passed"], ends["failed"], ends["error"], ends["skipped"], ends.total())


class _Reader:
    """Collects the tests; of the document, which may be of any shape, it keeps no element."""

    def __init__(self) -> None:
        self.cases: list[Case] = []
        self._begun = False
        self._parts: dict[str, dict[str, str]] = {}
        self._text: deque[str] = deque(maxlen=1000)
        self.data = self._text.append  # pieces of text: a line, or its end

    def doctype(self, *_: object) -> None:
        """No document type: entities are defined there."""
        raise ValueError("it has a document type")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if not self._begun and tag not in ("testsuites", "testsuite"):
            raise ValueError("no test runner writes this")
        self._begun = True
        if tag == "testcase":
            self._parts = {tag: attributes}
        elif self._parts and tag in _WORST:
            self._parts[tag] = attributes
            self._text.clear()

    def end(self, tag: str) -> None:
        if tag in self._parts:
            self._parts[tag]["text"] = "".join(self._text)
            if tag == "testcase":
                self.cases.append(_read_case(self._parts))
                self._parts = {}


def _read_case(ends: Mapping[str, Mapping[str, str]]) -> Case:
    tag = next((tag for tag in _WORST if tag in ends), None)
    name = ends["testcase"].get("classname", ""), ends["testcase"].get("name", "")
    if tag is None:
        return Case(*name, "passed")
    if tag == "skipped":
        return Case(*name, "skipped", expected=ends[tag].get("type") == "pytest.xfail")
    text = " ".join(ends[tag].get("message", "").split())
    last = [line for line in ends[tag].get("text", "").splitlines() if line.startswith("E ")]
    text = text if len(text.split()) > 2 or not last else f"{text}: {last[-1][1:].strip()}"
    return Case(*name, _WORST[tag], message=text[:400])


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
    found: dict[str, Word] = {}
    for test_id in ids:
        place, begin = split_id(test_id)
        ends = [words[place, begin]] if (place, begin) in words else []
        if not ends and "[" in begin and not begin.endswith("]"):
            ends = [word for (at, name), word in words.items() if at == place and name.startswith(begin)]
        if ends:
            found[test_id] = max(ends, key=_RANK.__getitem__)
    return found


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


_SUMMARIES: Final[Mapping[str, re.Pattern[str]]] = {
    runner: re.compile(line, re.MULTILINE)
    for runner, line in {
        "pytest": r"^=*[ ]?\d+ (?:passed|failed|skipped|error|xfailed|xpassed|deselected|warning).* in [\d.]+s",
        "unittest": r"^Ran \d+ tests? in ",
        "cargo": r"^test result: ",
        "jest": r"^Tests: +.*\d+ total",
        "vitest": r"^ +Tests +\d.*\(\d+\)",
        "node": r"^(?:#|\u2139) (?:pass|fail) \d+$",
        "surefire": r"Tests run: \d+, Failures: \d+, Errors: \d+, Skipped: \d+\s*$",
        "go": r"^(?:ok|FAIL) *\t\S+\t(?:[\d.]+s|\(cached\))",
    }.items()
}
"""By the name of a runner, a line by which it says that tests ran."""

REPORTING: Final = frozenset(("pytest", "surefire"))
"""These leave a report beside what they print."""


def find_runners(output: str) -> frozenset[str]:
    """The runners that say in what was printed that they ran tests."""
    text = re.sub(r"\x1b\[[\d;]*m", "", output)  # without colours
    return frozenset(runner for runner, line in _SUMMARIES.items() if line.search(text))


@frozen
class RanTests:
    """The tests of a check: how each ended, by its name, as far as there are reports; and the runners that ran."""

    words: Mapping[str, str] = field(default_factory=dict)
    runners: frozenset[str] = frozenset()

    def list_ran(self) -> list[str]:
        """The names of those that were not skipped."""
        return [name for name, word in self.words.items() if word != "skipped"]

    def plus(self, more: RanTests) -> RanTests:
        """Those of both; of a test that both have the later end counts."""
        return RanTests({**self.words, **more.words}, self.runners | more.runners)


def find_missing(base: RanTests, work: RanTests) -> str | None:
    """In one line which tests ran on the base and not with the work, by their reports; None: all of them did."""
    before, now = base.list_ran(), set(work.list_ran())
    missing = [name for name in before if name not in now]
    # values of a test may be made by the source: so many of them have to run, under any name
    spare = Counter(map(_strip, now - set(before)))
    lost = []
    for name in missing:
        if _strip(name) != name and spare[_strip(name)]:
            spare[_strip(name)] -= 1
        else:
            lost.append(name)
    return f"{len(lost)} of {len(before)} tests did not run with the work: {lost[0]}" if lost else None


def _strip(name: str) -> str:
    """The name of a test without the values with which it ran."""
    place, mark, rest = name.partition("::")
    return place + mark + rest.partition("[")[0]

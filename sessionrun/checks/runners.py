"""What test runners say: the one reader of JUnit XML, and of what they print.

Which tests ran, and which of the base's did not run with the work.  Pure but for reading the file.

pytest and surefire leave JUnit XML.  cargo and go print names.  Of the others only the numbers in their last lines
are known.  What is printed can be forged by the code under test; the canary of a proof is there for that.

The file comes from a process that ran the agent's code, so it may be anything: it is never followed, never waited
for, read up to a limit, and a document type (which could define entities) is refused.  What cannot be read counts
for nothing.

An id is what a test runner prints: ``tests/test_a.py::TestB::test_c[1]`` (pytest), ``test_c (tests.test_a.TestB)``
(unittest), or a bare name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias
from xml.parsers import expat

import orjson

from sessionrun.model.checks import Counts
from sessionrun.model.reports import RanTests
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


class _Summary(NamedTuple):
    """The lines by which a runner says how many tests ran, and the numbers in them that add up to that."""

    line: re.Pattern[str]
    ran: re.Pattern[str]
    skipped: re.Pattern[str] | None = None


def _compile(line: str, ran: str, skipped: str | None = None) -> _Summary:
    return _Summary(re.compile(line, re.MULTILINE), re.compile(ran), re.compile(skipped) if skipped else None)


_SUMMARIES: Final[Mapping[str, _Summary]] = {
    "pytest": _compile(
        r"^=*[ ]?\d+ (?:passed|failed|skipped|error|xfailed|xpassed|deselected|warning).* in [\d.]+s",
        r"(\d+) (?:passed|failed|xpassed)",
    ),
    "unittest": _compile(r"^(?:Ran \d+ tests? in |OK \(|FAILED \().*$", r"^Ran (\d+) ", r"skipped=(\d+)"),
    "cargo": _compile(r"^test result: .*$", r"(\d+) (?:passed|failed)"),
    "jest": _compile(r"^Tests: +.*\d+ total", r"(\d+) (?:passed|failed)"),
    "vitest": _compile(r"^ +Tests +\d.*\(\d+\)", r"(\d+) (?:passed|failed)"),
    "node": _compile(r"^(?:#|\u2139) (?:pass|fail) \d+$", r"(\d+)"),
    "surefire": _compile(
        r"Tests run: \d+, Failures: \d+, Errors: \d+, Skipped: \d+\s*$", r"run: (\d+)", r"Skipped: (\d+)"
    ),
    "go": _compile(r"^(?:ok|FAIL) *\t\S+\t(?:[\d.]+s|\(cached\))", r"(?!)"),
}
"""By the name of the runner.  go without ``-v`` prints no number: it is only known that it ran."""

_REPORTING: Final = frozenset(("pytest", "surefire"))
"""These leave a report beside what they print."""

_COLOURS: Final = re.compile(r"\x1b\[[\d;]*m")
_CARGO: Final = re.compile(
    r"^(?:\s+(?:Running|Doc-tests) (.+)|test (.+) \.\.\. (ok|FAILED|ignored)\b.*)$", re.MULTILINE
)
_GO: Final = re.compile(r"^(?: *--- (PASS|FAIL|SKIP): (\S+) .*|(?:ok|FAIL) *\t(\S+).*)$", re.MULTILINE)
_WORDS: Final[Mapping[str, Word]] = {
    **dict.fromkeys(("ok", "PASS", "pass"), "passed"),
    **dict.fromkeys(("FAILED", "FAIL", "fail"), "failed"),
    **dict.fromkeys(("ignored", "SKIP", "skip"), "skipped"),
}
_BINARY: Final = re.compile(r"^unittests |\s*\(.*")
_VARIANT: Final = re.compile(r"\[.*|^((?:Test|Fuzz|Example)\w*)/.*", re.DOTALL)
"""Of a test's name: what says with which values it ran."""


def parse_output(output: str) -> RanTests:
    """What runners print that name tests, or count them."""
    text = _COLOURS.sub("", output)
    numbers = {}
    for runner, summary in _SUMMARIES.items():
        lines = [found[0] for found in summary.line.finditer(text)]
        if lines:
            numbers[runner] = sum(_add_up(summary.ran, line) for line in lines) - sum(
                _add_up(summary.skipped, line) for line in lines
            )
    words = dict(_find_in_cargo(text)) if "cargo" in numbers else {}
    if "go" in numbers or '"Action":"' in text:
        words |= {**dict(_find_in_go(text)), **dict(_find_in_json(text))}
    return RanTests(words, numbers)


def _add_up(pattern: re.Pattern[str] | None, line: str) -> int:
    return 0 if pattern is None else sum(int(found[1]) for found in pattern.finditer(line))


def _find_in_cargo(text: str) -> Iterator[tuple[str, Word]]:
    binary = ""
    for begins, name, word in _CARGO.findall(text):
        if begins:
            binary = _BINARY.sub("", begins)
        else:  # a test in a comment has the number of its line, which changes with the source
            yield f"{binary}::{re.sub(r' [(]line [0-9]+[)]', '', name)}", _WORDS[word]


def _find_in_go(text: str) -> Iterator[tuple[str, Word]]:
    waiting: list[tuple[str, Word]] = []
    for word, name, package in _GO.findall(text):
        if name:
            waiting.append((name, _WORDS[word]))
        else:  # the line of a package stands behind those of its tests
            yield from ((f"{package}::{name}", word) for name, word in waiting)
            waiting = []


def _find_in_json(text: str) -> Iterator[tuple[str, Word]]:
    """Of ``go test -json``."""
    for line in text.splitlines():
        if line.startswith("{") and '"Action":"' in line:
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if record.get("Test") and record.get("Action") in _WORDS:
                yield f"{record.get('Package')}::{record['Test']}", _WORDS[record["Action"]]


def find_missing(base: RanTests, work: RanTests) -> str | None:
    """In one line which tests ran on the base and not with the work; None: all of them did.

    A check may show what its runner prints only if it fails.  Then the canary has to tell.
    """
    if work.is_empty and not (base.numbers.keys() - work.numbers.keys()) & _REPORTING:
        return None
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
    if lost:
        return f"{len(lost)} of {len(before)} tests did not run with the work: {lost[0]}"
    for runner, number in base.numbers.items():
        if (ran := work.numbers.get(runner)) is None:
            return f"{runner} reports nothing with the work"
        if ran < number:
            return f"{number - ran} of {number} tests of {runner} did not run with the work"
    return None


def _strip(name: str) -> str:
    place, mark, rest = name.partition("::")
    return place + mark + _VARIANT.sub(r"\1", rest)


def merge(printed: RanTests, reports: Iterable[RanTests]) -> RanTests:
    """The tests of several commands of a check; a report is better than what its runner printed."""
    words = dict(printed.words)
    reported: Counter[str] = Counter()
    for part in reports:
        words.update(part.words)
        reported.update(part.numbers)
    return RanTests(words, {**printed.numbers, **reported})

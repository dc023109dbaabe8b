"""Which tests ran, by what runners report and print, and which of the base's did not run with the work.  Pure.

pytest and surefire leave JUnit XML.  cargo and go print names.  Of the others only the numbers in their last lines
are known.  What is printed can be forged by the code under test; the canary of a proof is there for that.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import orjson

from sessionrun.model.reports import RanTests
from sessionrun.runtime.jobs.check.junit import Word


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

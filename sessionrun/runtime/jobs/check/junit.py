"""Counts tests in JUnit XML that a test runner wrote while a CHECK ran: pure but for reading the file.

The file comes from a process that ran the agent's code, so it may be anything: it is never followed, never waited
for, read up to a limit, and a document type (which could define entities) is refused.  What cannot be read counts
for nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple
from xml.parsers import expat

from sessionrun.model.checks import Counts
from sessionrun.store.files import read_regular

MAX_BYTES: Final = 16 * 1024 * 1024
MAX_FAILURES: Final = 50
MAX_NAME: Final = 200
MAX_MESSAGE: Final = 400
_MAX_TEXT: Final = 4096
_WORST: Final = ("error", "failure", "skipped")
"""What a test came to, the worst first: one that failed and then broke in its clean-up is one with an error."""


class FailedTest(NamedTuple):
    """The name of a test that did not pass, and what it said."""

    name: str
    message: str


class Tests(NamedTuple):
    """What a run of tests came to; `failed` are the first of those that did not pass."""

    counts: Counts
    failed: tuple[FailedTest, ...] = ()


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
    return Tests(Counts(**reader.counts, total=sum(reader.counts.values())), tuple(reader.failed))


class _Reader:
    """Takes the events of the parser."""

    def __init__(self) -> None:
        self.counts = {"passed": 0, "failed": 0, "errors": 0, "skipped": 0}
        self.failed: list[FailedTest] = []
        self._begun = False
        self._name: str | None = None
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
            name = [attributes.get(key, "") for key in ("classname", "name")]
            self._name, self._found = "::".join(part for part in name if part), {}
        elif self._name is not None and tag in _WORST:
            self._inside, self._text = tag, ""
            self._found[tag] = attributes.get("message", "")

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
            self._count(self._name)
            self._name = None

    def _count(self, name: str) -> None:
        worst = next((tag for tag in _WORST if tag in self._found), None)
        self.counts[{"error": "errors", "failure": "failed", "skipped": "skipped", None: "passed"}[worst]] += 1
        if worst in ("error", "failure") and len(self.failed) < MAX_FAILURES:
            self.failed.append(FailedTest(name[:MAX_NAME], self._found[worst][:MAX_MESSAGE]))

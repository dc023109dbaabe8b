"""The ids of tests, and how each ended by a report's cases.  Pure.

An id is what a test runner prints: ``tests/test_a.py::TestB::test_c[1]`` (pytest), ``test_c (tests.test_a.TestB)``
(unittest), or a bare name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sessionrun.runtime.jobs.check.junit import Case, Word

_OF_UNITTEST: Final = re.compile(r"(\w+) \(([\w.]+)\)")
_RANK: Final[Mapping[Word, int]] = {"passed": 0, "skipped": 1, "failed": 2, "error": 3}


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

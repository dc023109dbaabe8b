"""Frozen record of tests that judge the work of a task and that its agent does not see.  Pure; part of `model`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from sessionrun.model.frozen import frozen

TEST_COMMAND: Final = "python -m pytest"


@frozen
class HiddenTests:
    """A patch that brings tests, and the ids of those tests that then have to pass.

    `fail_to_pass` fail on the base, `pass_to_pass` pass there.  The shell `command` runs the tests of the files or
    the ids that are appended to it, for at most `timeout_s` seconds each time (None: any time).
    """

    patch: str
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    command: str = TEST_COMMAND
    timeout_s: float | None = None


_LISTS: Final = ("fail_to_pass", "pass_to_pass")


def hidden_from_record(record: Mapping[str, Any]) -> HiddenTests:
    """Rebuild the tests from their record, without keys that a later version added."""
    known = {field.name for field in fields(HiddenTests)}
    values: dict[str, Any] = {
        name: tuple(value) if name in _LISTS else value for name, value in record.items() if name in known
    }
    return HiddenTests(**values)

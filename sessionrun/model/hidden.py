"""Frozen record of tests that judge the work of a task and that its agent does not see.  Pure; part of `model`."""

from __future__ import annotations

from typing import Final

from sessionrun.model.frozen import frozen

TEST_COMMAND: Final = "python -m pytest"


@frozen
class HiddenTests:
    """A patch that brings tests, and the ids of those tests that then have to pass.

    They replace the check in a PROVE, where only the source of the work counts.  The agent learns nothing of
    what they come to, so no round follows.  Before that a CHECK runs those of `pass_to_pass` that are there
    without the patch.  `fail_to_pass` fail on the base, `pass_to_pass` pass there.  The shell `command` runs the
    tests of the files or ids that are appended to it, for at most `timeout_s` seconds each time (None: any time).
    """

    patch: str
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    command: str = TEST_COMMAND
    timeout_s: float | None = None

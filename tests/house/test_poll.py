"""What a poll imports, seen from outside: the one rule of the rooms that users feel."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import Command

from .test_rooms import NOT_FOR_READERS, belongs


@pytest.mark.parametrize(
    "words", ["status", "status --json", "list --json", "list --totals --json", "results", "logs"]
)
def test_what_a_poll_really_imports(sessionrun: Command, words: str) -> None:
    session_id = sessionrun.start({"prompts": ["true"]})
    sessionrun.wait(session_id)
    argv = [sys.executable, "-X", "importtime", *sessionrun.argv[1:], *words.split()]
    done = subprocess.run(argv, cwd=sessionrun.cwd, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "sessionrun.store.session" in imported
    assert not {name for name in imported if belongs(name, *NOT_FOR_READERS)}
    for name in (
        "logging",
        "socket",
        "tomllib",
        "sessionrun.engine.fold",
        "sessionrun.model.events",
    ):
        assert name not in imported
    assert "msgspec" not in imported or words in ("results", "logs"), "they read files of jobs"

"""The CHECK of a task whose agent was given a brief: its answer becomes files, commands run, the agent judges.

All that is one process of its own, so that its output is what the next round is told and a slow disk never holds
up the supervisor.  It reads ``request.json`` in its job's folder and leaves ``answer.json`` there.  Done again it
does the same once more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sessionrun.model.brief import Brief
from sessionrun.store.jobfiles import load_record, load_record_if_any

REQUEST: Final = "request.json"
ANSWER: Final = "answer.json"
APPLIED: Final = "applied.json"
"""In the folder of a round's first CHECK: the answer was written, and these are the lines of its files."""


@dataclass(frozen=True, slots=True)
class Verification:
    """How the agent is asked for its verdict; `output` is the format of what it prints."""

    system: str
    files: tuple[str, ...]
    argv: tuple[str, ...]
    prompt_file: str
    on_stdin: bool
    output: str


@dataclass(frozen=True, slots=True)
class Request:
    """What a CHECK is to do in `directory`.

    `answer` is the file with the agent's answer, None for an agent that edits files itself; `earlier` are files
    that it was shown because other tasks wrote them.  `applied` is the file that holds what was written of the
    answer, once it was: a check that is done again does not make the same edits twice.
    """

    directory: str
    prompt: str
    applied: str = ""
    brief: Brief | None = None
    answer: str | None = None
    commands: tuple[str, ...] = ()
    verification: Verification | None = None
    earlier: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """What a CHECK came to: the files it wrote with their lines, and in one line what is wrong, if anything is."""

    written: Mapping[str, int] = field(default_factory=dict)
    problem: str | None = None
    verdict: str | None = None
    earlier: tuple[str, ...] = ()


def command_line(folder: Path) -> tuple[str, ...]:
    """The argument list of a CHECK whose request is in `folder`."""
    return (sys.executable, str(Path(__file__).resolve().with_name("job.py")), os.fspath(folder))


def load_request(folder: Path) -> Request:
    """Read a request.

    Raises:
        JobFileError: it cannot be used.
    """
    return load_record(folder / REQUEST, Request)


def load_report(folder: Path) -> Report | None:
    """What a finished CHECK came to; None when it did not come so far.

    Raises:
        JobFileError: a report is there and cannot be used.
    """
    return load_record_if_any(folder / ANSWER, Report)

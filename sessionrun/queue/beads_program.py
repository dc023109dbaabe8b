"""Runs the program of Beads, `bd` or its port `br`: words in, JSON out, and a refusal in its own words.

Must not know what a task is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from sessionrun.model.errors import InputError, StoreError
from sessionrun.store import programs
from sessionrun.store.files import usual_umask

PROGRAMS: Final = ("bd", "br")
"""The names it is looked for by, in this order."""

TIMEOUT_S: Final = 10.0
"""An answer takes far less than a second; a program that hangs must not hold up the queue."""

MAX_ARGUMENT: Final = 100_000
"""Bytes: Linux lets no argument be longer than 128 KiB."""


class Refusal(Exception):
    """The program ended with an error; the text is what it said, on one line."""


def lacks_option(refusal: Refusal) -> bool:
    """Whether this version does not know an option or a command that it was given."""
    return _says(refusal, "unknown flag", "unknown command", "unexpected argument", "unrecognized")


def finds_nothing(refusal: Refusal) -> bool:
    """Whether the program knows no bead of the id that it was given."""
    return _says(refusal, "not found", "no issue found", "no issues found")


def _says(refusal: Refusal, *words: str) -> bool:
    return any(word in str(refusal).lower() for word in words)


class Program:
    """The program, and the directory whose beads it is asked for."""

    def __init__(self, path: str, top: Path) -> None:
        self.path = path
        self.top = top
        self.kind = os.path.basename(path)

    def ask(self, *words: str) -> Any:
        """Run a command with `--json`; return what it printed, None for nothing.

        Raises:
            Refusal: it ended with an error.
            StoreError: it does not run, does not end, or prints no JSON.
        """
        printed = self.run(words[0], "--json", *words[1:]).strip()
        try:
            return json.loads(printed) if printed else None
        except ValueError:
            raise StoreError(f"{self.kind} {words[0]}: what it printed is not JSON: {printed[:80]!r}") from None

    def run(self, *words: str) -> str:
        """Run a command; return its standard output.

        Raises:
            Refusal: it ended with an error.
            StoreError: it does not run, or does not end.
        """
        try:
            longest = max(len(word.encode()) for word in words)
        except UnicodeEncodeError:
            raise InputError("a title, text or reason is not UTF-8") from None
        if longest > MAX_ARGUMENT:
            raise InputError(f"{self.kind} takes no text of more than {MAX_ARGUMENT} bytes")
        code, out, err = self.execute(words)
        if code != 0:
            raise Refusal(_read_message(out, err) or f"exit code {code}")
        return out

    def execute(self, words: Sequence[str]) -> tuple[int, str, str]:
        """Run a command; return its exit code and what it printed on standard output and standard error.

        Raises:
            StoreError: it does not run, or does not end.
        """
        environ = {**os.environ, "BEADS_NO_DAEMON": "1", "NO_COLOR": "1"}
        try:
            argv = [self.path, *words]
            done = programs.run(argv, cwd=self.top, environ=environ, limit_s=TIMEOUT_S, umask=usual_umask())
            return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            why = f"did not end within {TIMEOUT_S:g} s, and was stopped: run it in {self.top} to see why"
            raise StoreError(f"{self.kind} {words[0]} {why}") from None
        except OSError as error:
            raise StoreError(f"{self.path}: {error.strerror}") from error


def find_program(top: Path, path: str | None) -> Program | None:
    """Return the program for a directory; None if it is not on `path`."""
    found = (shutil.which(name, path=path) for name in PROGRAMS)
    program = next((one for one in found if one is not None), None)
    return None if program is None else Program(os.path.abspath(program), top)


def _read_message(out: str, err: str) -> str:
    for text in (err, out):
        start = text.find("{")
        try:
            record = json.loads(text[start:]) if start >= 0 else None
        except ValueError:
            continue
        problem = record.get("error") if isinstance(record, dict) else None
        message = problem.get("message") if isinstance(problem, dict) else problem
        if isinstance(message, str) and message:
            return " ".join(message.split())
    lines = _tell(err) or _tell(out)
    return " ".join(lines[0].split()).removeprefix("Error: ") if lines else ""


def _tell(text: str) -> Sequence[str]:
    return [line for line in text.splitlines() if line.strip()]

"""Runs one program or script in a session of its own; its end takes all with it that it has started."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple

from sessionrun.model.words import NO_PROGRAM
from sessionrun.store import processes
from sessionrun.walls.argv import Walls

SHELL: Final = "/bin/sh"

END_S: Final = 30.0
"""How long what was killed is waited for: it may write for a moment, inside of walls, too."""

ALONE: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "alone.py")
"""The program that runs a script and ends all of it when its standard input ends: when we are killed."""


class Ended(NamedTuple):
    """How a script ended: its exit code (None: its time was up), and in words why it did not pass, else None."""

    code: int | None
    why: str | None

    @property
    def no_program(self) -> str | None:
        """Why there was nothing to run; None: there was."""
        return NO_PROGRAM.get(self.code or 0)


def word_end(code: int) -> str:
    """How a program ended, from its code as `Popen.returncode` has it."""
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


class Shell(NamedTuple):
    """Where scripts run, one after the other, and their variables; with `walls` they run inside."""

    directory: Path
    environ: Mapping[str, str]
    walls: Walls | None = None

    def run(self, script: str, output: IO[bytes], limit_s: float | None) -> Ended:
        """Run a script to the first command that fails, below a line with the script; end all that it leaves.

        It ends when this process is killed, too, and all that it started with it.  `limit_s` is how long it may
        take (seconds); None: as long as it needs.

        Raises:
            OSError: the shell cannot be started.
        """
        output.write(f"$ {script}\n".encode("utf-8", "surrogateescape"))
        output.flush()
        argv: Sequence[str]
        if self.walls is None:
            argv, stdin = (sys.executable, "-I", "-S", ALONE, SHELL, script), subprocess.PIPE
        else:
            argv, stdin = self.walls.wrap(os.fspath(self.directory), SHELL, "-ec", script), subprocess.DEVNULL
        code, _ = run_alone(argv, self.directory, self.environ, output, limit_s, stdin=stdin)
        if code is None:
            return Ended(None, f"not done after {limit_s:g} s")
        return Ended(code, word_end(code) if code else None)


def run_alone(
    argv: Sequence[str],
    directory: Path,
    environ: Mapping[str, str],
    output: IO[bytes],
    limit_s: float | None,
    *,
    stdin: int = subprocess.DEVNULL,
) -> tuple[int | None, bool]:
    """Run a program and end all that it leaves, in whatever session: a daemon must not outlive its room.

    Returns how it ended, as `Popen.returncode` has it (None: its time was up), and whether all of it is gone.
    """
    marker = uuid.uuid4().hex
    process = subprocess.Popen(
        argv,
        cwd=directory,
        env={**environ, processes.SCRIPT_MARKER: marker},
        stdin=stdin,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    leader = processes.Identity(process.pid, processes.start_time(process.pid, zombie=True) or 0)
    code: int | None = None
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        is_gone = processes.kill_tree(leader, marker, END_S)
        if is_gone:
            process.wait()
        if process.stdin is not None:
            process.stdin.close()
    return code, is_gone

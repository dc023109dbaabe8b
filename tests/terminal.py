"""A command on a terminal of its own, for tests: a pty with a controlling process, as a person has it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

COLUMNS = 80
PATIENCE_S = 60.0


class Terminal:
    """Runs a command with a new terminal as its standard input, output and error."""

    def __init__(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(cwd)
                os.execve(argv[0], list(argv), {**os.environ, **(env or {})})
            finally:
                os._exit(127)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
        self.output = b""
        self._status: int | None = None

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def read_until(self, wanted: bytes) -> bytes:
        """Read until `wanted` was printed; return all output so far."""
        deadline = time.monotonic() + PATIENCE_S
        while wanted not in self.output:
            assert time.monotonic() < deadline, f"no {wanted!r} in {self.output!r}"
            if not self._read(0.2):
                assert wanted in self.output, f"it ended without {wanted!r}: {self.output!r}"
        return self.output

    def type(self, keys: bytes) -> None:
        os.write(self.fd, keys)

    def finish(self) -> int:
        """Read to the end; return the exit code (negative: the signal)."""
        deadline = time.monotonic() + PATIENCE_S
        while self._read(0.2):
            assert time.monotonic() < deadline, f"it does not end: {self.output!r}"
        _, status = os.waitpid(self.pid, 0)
        self._status = status
        return os.waitstatus_to_exitcode(status)

    def screen(self) -> list[str]:
        """The lines that stay; of what was drawn over itself, the last."""
        rows, row = [""], 0
        for part in re.findall(r"\x1b\[\??[\d;]*[a-zA-Z]|[\r\n]|[^\x1b\r\n]+", self.output.decode()):
            if part == "\n":
                row += 1
                rows += [""] * (row == len(rows))
            elif part == "\x1b[2K":
                rows[row] = ""
            elif part.startswith("\x1b") and part.endswith("A"):
                row -= int(part[2:-1] or 1)
            elif part != "\r" and not part.startswith("\x1b"):
                rows[row] += part
        return [line.rstrip() for line in rows]

    def close(self) -> None:
        """Close the terminal's window: its processes get SIGHUP."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def reaped(self, status: int) -> None:
        """The test itself waited for the process."""
        self._status = status

    def _read(self, timeout_s: float) -> bool:
        """Read what there is; False when nobody is left to write."""
        readable, _, _ = select.select([self.fd], [], [], timeout_s)
        if not readable:
            return True
        try:
            chunk = os.read(self.fd, 65536)
        except OSError:  # Linux says EIO when the last writer is gone
            return False
        self.output += chunk
        return bool(chunk)

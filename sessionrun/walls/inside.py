"""Programs one after another inside of the same walls, for our git: to build walls takes longer than it does.

`inner` is asked at a socket, which also carries the descriptors of what a program reads and prints.  When the
answer comes, all that the program has started is dead: between two programs nothing inside can change a file.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.store import programs
from sessionrun.walls.argv import Walls
from sessionrun.walls.inner import ASKED

_SIZE: Final = 4
_LEAVE_S: Final = 5.0


class Inside:
    """Walls in which programs run; they are built for the first one, and go with this object.

    What programs read and print lies in `folder`, in files without a name.  In the system's directory Python first
    tries whether it can write; if it is killed then, that file stays.
    """

    def __init__(self, walls: Walls, folder: Path) -> None:
        self._walls = walls
        self._folder = folder
        self._running: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._errors = tempfile.TemporaryFile(dir=folder)

    def run(
        self,
        argv: Sequence[str],
        *,
        environ: Mapping[str, str],
        limit_s: float | None,
        cwd: Path,
        stdin: bytes | int | None = None,
        stdout: int = subprocess.PIPE,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a program to its end, as `programs.run` does; its code is 128 more than a signal that ended it.

        Raises:
            OSError: the walls cannot be built.
            ValueError: there is a NUL character in a word.
            subprocess.TimeoutExpired: its time was up; all inside is ended.
        """
        with ExitStack() as files:
            output, errors = (files.enter_context(tempfile.TemporaryFile(dir=self._folder)) for _ in range(2))
            if isinstance(stdin, int):
                source = stdin
            else:
                given = files.enter_context(tempfile.TemporaryFile(dir=self._folder))
                given.write(stdin or b"")
                given.seek(0)
                source = given.fileno()
            fds = [source, output.fileno() if stdout == subprocess.PIPE else stdout, errors.fileno()]
            words = [str(cwd), str(len(argv)), *argv, *(f"{name}={value}" for name, value in environ.items())]
            if any("\0" in word for word in words):
                raise ValueError("embedded null byte")
            code = self._ask("\0".join(words), fds, environ, limit_s)
            for stream in (output, errors, self._errors):
                stream.seek(0)
            why = errors.read() or self._errors.read()
            self._errors.seek(0)
            self._errors.truncate()  # it is of this program alone
            return subprocess.CompletedProcess(argv, code, output.read(), why)

    def _ask(self, text: str, fds: list[int], environ: Mapping[str, str], limit_s: float | None) -> int:
        process, end = self._start(environ)
        request, deadline = os.fsencode(text), None if limit_s is None else time.monotonic() + limit_s
        try:
            with programs.hold(process.pid):
                end.settimeout(limit_s)
                socket.send_fds(end, [len(request).to_bytes(_SIZE, "big")], fds)
                end.sendall(request)
                end.settimeout(None if deadline is None else max(deadline - time.monotonic(), 0.001))
                answer = end.recv(_SIZE)
        except TimeoutError:
            self._stop()
            raise subprocess.TimeoutExpired(text.split("\0")[2:3], limit_s or 0.0) from None
        except (BrokenPipeError, ConnectionResetError):
            answer = b""
        except BaseException:
            self._stop()
            raise
        if not answer:  # it was killed, or could not be built
            code = process.wait()
            self._stop()
            return code or 1
        return int(answer)

    def _start(self, environ: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
        if self._running is not None and self._running[0].poll() is None:
            return self._running
        self._stop()  # it may have ended with the thread that started it: bubblewrap dies with that
        end, other = socket.socketpair()
        with other:
            argv = replace(self._walls, stdin=f"{ASKED}{other.fileno()}").wrap("/")
            process = subprocess.Popen(
                argv,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(other.fileno(),),
                start_new_session=True,
            )
        self._running = process, end
        weakref.finalize(self, _leave, process, end)
        return process, end

    def _stop(self) -> None:
        if self._running is not None:
            process, end = self._running
            self._running = None
            if process.returncode is None:  # else another process may have its number
                programs.kill(process)
            end.close()


def _leave(process: subprocess.Popen[bytes], end: socket.socket) -> None:
    """Nothing runs inside now: what waits there to be asked ends by itself."""
    end.close()
    try:
        process.wait(_LEAVE_S)
    except subprocess.TimeoutExpired:
        programs.kill(process)

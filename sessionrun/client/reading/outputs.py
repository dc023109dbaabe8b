"""Reading output files of any size: in pieces, from the front or from the end, or line by line as they grow.

A task may replace its own output file: a link, FIFO or directory in its place counts as no output.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sessionrun.model.errors import StoreError
from sessionrun.store.files import NotRegular, open_regular
from sessionrun.store.session import SessionDir

if TYPE_CHECKING:
    from sessionrun.model.spec import OutputFormat

CHUNK_BYTES: Final = 256 * 1024
MAX_LINE: Final = 1024 * 1024
"""A line longer than this is passed on in pieces."""


def read_answer(session: SessionDir, task: Mapping[str, Any]) -> str:
    """The whole answer of a task until now; bytes that are not UTF-8 become visible escapes."""
    return read_text(session.path / task["output"])


def read_text(path: Path, lines: int | None = None) -> str:
    """The same of a file, or of its last `lines` lines."""
    return b"".join(iterate_tail(path, lines)).decode("utf-8", "backslashreplace")


def iterate_chunks(path: Path, offset: int = 0) -> Iterator[bytes]:
    """The file's bytes from `offset` on; nothing when it does not exist."""
    fd = open_output(path)
    if fd is None:
        return
    try:
        while chunk := os.pread(fd, CHUNK_BYTES, offset):
            yield chunk
            offset += len(chunk)
    finally:
        os.close(fd)


def iterate_tail(path: Path, lines: int | None) -> Iterator[bytes]:
    """The file's last `lines` lines; None: all."""
    return iterate_chunks(path, 0 if lines is None else find_tail(path, lines))


def decode(chunks: Iterable[bytes]) -> Iterator[str]:
    """Decode piece by piece; bytes that are not UTF-8 become visible escapes."""
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    for chunk in chunks:
        yield decoder.decode(chunk)
    yield decoder.decode(b"", final=True)


def find_tail(path: Path, lines: int) -> int:
    """The offset at which the last `lines` lines begin, read from the end (a last line may lack its LF)."""
    fd = open_output(path)
    if fd is None:
        return 0
    try:
        end = os.fstat(fd).st_size
        if lines == 0:
            return end
        missing = lines
        position = end
        while position > 0:
            size = min(CHUNK_BYTES, position)
            position -= size
            chunk = os.pread(fd, size, position)
            at = len(chunk) - 1 if position + size == end and chunk.endswith(b"\n") else len(chunk)
            while (at := chunk.rfind(b"\n", 0, at)) >= 0:
                missing -= 1
                if not missing:
                    return position + at + 1
        return 0
    finally:
        os.close(fd)


def open_output(path: Path) -> int | None:
    """A descriptor of the file; None if there is none, or something else lies there."""
    try:
        return open_regular(path)
    except (FileNotFoundError, NotRegular):
        return None


# --- as they grow ---


def _keep(line: bytes) -> str:
    return line.decode("utf-8", "surrogateescape")


class Line(NamedTuple):
    """A line of a task's output with its end; bytes that are not UTF-8 are surrogates in `text`."""

    task: str
    stream: str
    text: str


class OutputReader:
    """Reads one output file as it grows and gives out whole lines."""

    def __init__(
        self, path: Path, task: str, stream: str, show: Callable[[bytes], str] = _keep, lines: int | None = None
    ) -> None:
        self.path, self._task, self._stream, self._show = path, task, stream, show
        self._offset, self._rest = 0 if lines is None else find_tail(path, lines), b""
        self.has_moved = False
        """Whether the last call of `read_on` found anything new."""

    def read_on(self) -> Iterator[Line]:
        before = self._offset
        if find_tail(self.path, 0) < before:  # another attempt began the file anew
            yield from self.finish()
            self._offset = 0
        for chunk in iterate_chunks(self.path, self._offset):
            self._offset += len(chunk)
            *whole, self._rest = (self._rest + chunk).split(b"\n")
            for line in whole:
                yield from self._give(line + b"\n")
            if len(self._rest) > MAX_LINE:
                yield from self.finish()
        self.has_moved = self._offset != before

    def finish(self) -> Iterator[Line]:
        """Give out a last line that has no LF."""
        if self._rest:
            line, self._rest = self._rest, b""
            yield from self._give(line)

    def _give(self, line: bytes) -> Iterator[Line]:
        text = self._show(line)
        if text:
            yield Line(self._task, self._stream, text)


def open_outputs(session: SessionDir, task: dict[str, Any], lines: int | None = None) -> list[OutputReader]:
    """Readers of a task's output, as readable text, and of its standard error.

    They begin at the front or, with `lines`, that many lines before the end.
    """
    show: Callable[[bytes], str] = _keep
    output = session.path / task["output"]
    if task["raw"]:
        from sessionrun.agents import table
        from sessionrun.session.history import load_spec_now

        spec = load_spec_now(session)
        output = session.path / task["raw"]
        agent = spec.agents.get(task["agent"])
        if agent is None:
            raise StoreError(f"{session.status_path} is damaged: there is no agent {task['agent']!r:.80}")
        format_ = agent.output
        show = lambda line: table.render_events(format_, line)  # noqa: E731
    errors = OutputReader(session.path / task["stderr"], task["id"], "stderr", lines=lines)
    return [OutputReader(output, task["id"], "stdout", show, lines), errors]


def read_steps(path: Path, format_: OutputFormat, lines: int) -> list[tuple[str, float | None]]:
    """What an agent's stream says in its last `lines` lines that it did: a line each, and the seconds it took.

    The seconds of a call are those until its result; None: the stream has no times, or no result.
    """
    from sessionrun.agents import table
    from sessionrun.agents.reading import read_lines

    done: list[tuple[str, float | None]] = []
    calls: dict[str, tuple[int, float]] = {}
    try:
        with open(path, "rb", opener=open_regular) as stream:
            stream.seek(find_tail(path, lines))
            for step in (step for line in read_lines(stream) for step in table.list_steps(format_, line)):
                if step.line:
                    done.append((step.line.rstrip("\n"), None))
                if step.key is not None and step.begun is not None:
                    calls[step.key] = len(done) - 1, step.begun
                if step.key in calls and step.ended is not None:
                    place, begun = calls.pop(step.key)
                    done[place] = done[place][0], max(0.0, step.ended - begun)
    except (FileNotFoundError, NotRegular):
        return []
    return done


def open_step(
    session: SessionDir, task: dict[str, Any], step: str, round_number: int | None = None, lines: int | None = None
) -> list[OutputReader]:
    """Readers of all that a step of a task printed: see `telling.list_step`.  None where it did not begin."""
    from sessionrun.client.reading.telling import list_step  # it reads files of jobs, which a poll does not

    paths = list_step(session, task, step, round_number, whole=True)
    streams = ((path, "stderr" if path.name == "stderr" else "stdout") for path in paths)
    return [OutputReader(path, task["id"], stream, lines=lines) for path, stream in streams]

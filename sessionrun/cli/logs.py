"""`logs`: the output of tasks as it is, or as it comes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from sessionrun.cli.options import Count, json_option, place_lines, results_dir_option, session_argument
from sessionrun.cli.render import escape
from sessionrun.client.lookup import choose_tasks, open_session
from sessionrun.client.outputs import find_tail, iterate_chunks
from sessionrun.client.view import load_view
from sessionrun.client.waiting import POLL_LAST_S, Watch, gone_words
from sessionrun.model.errors import SessionGone
from sessionrun.store.session import SessionDir

MAX_LINE: Final = 1024 * 1024
"""A line longer than this is passed on in pieces."""


@click.command("logs")
@session_argument
@click.argument("tasks", nargs=-1, metavar="[TASK]...")
@click.option("-f", "--follow", is_flag=True, help="Go on until the tasks have ended.")
@click.option("-n", "--lines", type=Count(), metavar="N", help="Begin N lines before the end.")
@json_option
@results_dir_option
def command(
    session_id: str,
    tasks: tuple[str, ...],
    follow: bool,
    lines: int | None,
    as_json: bool,
    results_dir: Path | None,
) -> None:
    """Print the output of session ID's tasks, each line with its task when there are several.

    With --json, one object per line: `task`, `stream` (stdout or stderr) and `text`.
    """
    session = open_session(results_dir, session_id)
    view = load_view(session)
    chosen = choose_tasks(view, tasks)
    if not as_json:
        for line in place_lines(view):
            click.echo(line, err=True)
    form = _format_json if as_json else _format_tagged if len(chosen) > 1 else _format_plain
    readers = [reader for task in chosen for reader in _readers(session, task, lines, form)]
    watch = Watch()
    while True:
        view = load_view(session)  # before reading: what is written until then is read below
        moved = sum(reader.read_on() for reader in readers)
        running = any(task["status"] != "completed" for task in choose_tasks(view, tasks))
        if not follow or not running or watch.is_gone(view):
            break
        sys.stdout.flush()
        if not moved:
            time.sleep(POLL_LAST_S)
    for reader in readers:
        reader.finish()
    sys.stdout.flush()
    if follow and running:
        raise SessionGone(gone_words(view))


Format = Callable[[str, str, str], bytes]
"""From a task, a stream's name and a line (bytes that are no UTF-8 as surrogates) to what is printed."""


class _Reader:
    """Reads one output file as it grows and gives out whole lines."""

    def __init__(self, path: Path, task: str, stream: str, form: Format, show: Callable[[bytes], str]) -> None:
        self._path, self._task, self._stream = path, task, stream
        self._format, self._show = form, show
        self._offset, self._rest = 0, b""

    def skip_to_tail(self, lines: int) -> None:
        """Begin `lines` lines before the end."""
        self._offset = find_tail(self._path, lines)

    def read_on(self) -> bool:
        """Give out what is new; whether there was any."""
        before = self._offset
        if find_tail(self._path, 0) < before:  # another attempt began the file anew
            self.finish()
            self._offset = 0
        for chunk in iterate_chunks(self._path, self._offset):
            self._offset += len(chunk)
            *whole, self._rest = (self._rest + chunk).split(b"\n")
            for line in whole:
                self._give(line + b"\n")
            if len(self._rest) > MAX_LINE:
                self.finish()
        return self._offset != before

    def finish(self) -> None:
        """Give out a last line that has no LF."""
        if self._rest:
            self._give(self._rest)
            self._rest = b""

    def _give(self, line: bytes) -> None:
        text = self._show(line)
        if text:
            sys.stdout.buffer.write(self._format(self._task, self._stream, text))


def _readers(session: SessionDir, task: dict[str, Any], lines: int | None, form: Format) -> list[_Reader]:
    """Readers of a task's output, its stream rendered for people, and of its standard error."""
    show: Callable[[bytes], str] = _decode
    output = session.path / task["output"]
    if task["raw"]:
        from sessionrun.agents import table

        spec = session.load_spec()
        output = session.path / task["raw"]
        format_ = spec.agents[task["agent"]].output
        show = lambda line: table.render_events(format_, line)  # noqa: E731
    readers = [
        _Reader(output, task["id"], "stdout", form, show),
        _Reader(session.path / task["stderr"], task["id"], "stderr", form, _decode),
    ]
    if lines is not None:
        for reader in readers:
            reader.skip_to_tail(lines)
    return readers


def _decode(line: bytes) -> str:
    return line.decode("utf-8", "surrogateescape")


def _format_plain(task: str, stream: str, text: str) -> bytes:
    return _encode(text)


def _format_tagged(task: str, stream: str, text: str) -> bytes:
    lines = text.removesuffix("\n").split("\n")
    return b"".join(b"[%b] %b\n" % (task.encode(), _encode(line)) for line in lines)


def _format_json(task: str, stream: str, text: str) -> bytes:
    import orjson

    plain = _to_bytes(text).decode("utf-8", "backslashreplace")
    return orjson.dumps({"task": task, "stream": stream, "text": plain}, option=orjson.OPT_APPEND_NEWLINE)


def _encode(text: str) -> bytes:
    """The bytes as the task wrote them, but on a terminal harmless."""
    if sys.stdout.isatty():
        return escape(text).encode(sys.stdout.encoding, "backslashreplace")
    return _to_bytes(text)


def _to_bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a pair, out of an agent's JSON
        return text.encode("utf-8", "backslashreplace")

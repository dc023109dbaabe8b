"""`logs`: the output of tasks as it is, or as it comes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from sessionrun.cli.options import Count, json_option, place_lines, results_dir_option, session_argument
from sessionrun.cli.render import OUTPUT_VERSION, escape
from sessionrun.client.logs import Line, open_outputs
from sessionrun.client.lookup import choose_tasks, open_session
from sessionrun.client.view import load_view
from sessionrun.client.waiting import POLL_LAST_S, Watch, gone_words
from sessionrun.model.errors import SessionGone


@click.command("logs")
@session_argument
@click.argument("tasks", nargs=-1, metavar="[TASK]...")
@click.option("-f", "--follow", is_flag=True, help="Go on until the tasks have ended.")
@click.option("-n", "--lines", type=Count(), metavar="N", help="Begin N lines before the end of each file.")
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

    With --json, one object per line: `id` of the task, `stream` (stdout or stderr) and `text`.
    """
    session = open_session(results_dir, session_id)
    view = load_view(session)
    chosen = choose_tasks(view, tasks)
    if not as_json:
        for line in place_lines(view):
            click.echo(line, err=True)
    form = _format_json if as_json else _format_tagged if len(chosen) > 1 else _format_plain
    readers = [reader for task in chosen for reader in open_outputs(session, task, lines)]
    watch = Watch()
    while True:
        view = load_view(session)  # before reading: what is written until then is read below
        for reader in readers:
            _write(reader.read_on(), form)
        running = any(task["status"] != "completed" for task in choose_tasks(view, tasks))
        if not follow or not running or watch.is_gone(view):
            break
        sys.stdout.flush()
        if not any(reader.has_moved for reader in readers):
            time.sleep(POLL_LAST_S)
    for reader in readers:
        _write(reader.finish(), form)
    sys.stdout.flush()
    if follow and running:
        raise SessionGone(gone_words(view))


def _write(lines: Iterable[Line], form: Callable[[Line], bytes]) -> None:
    for line in lines:
        sys.stdout.buffer.write(form(line))


def _format_plain(line: Line) -> bytes:
    return _encode(line.text)


def _format_tagged(line: Line) -> bytes:
    lines = line.text.removesuffix("\n").split("\n")
    return b"".join(b"[%b] %b\n" % (line.task.encode(), _encode(part)) for part in lines)


def _format_json(line: Line) -> bytes:
    import orjson

    plain = _to_bytes(line.text).decode("utf-8", "backslashreplace")
    record = {"schema_version": OUTPUT_VERSION, "id": line.task, "stream": line.stream, "text": plain}
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


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

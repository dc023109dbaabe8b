"""`logs`: the output of tasks as it is, or as it comes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final
from zlib import crc32

import click

from sessionrun.cli.options import Answer, Count, flag, session_verb, valued
from sessionrun.cli.render import encode, escape, is_json, versioned, warn
from sessionrun.cli.standing import place_lines
from sessionrun.client.reading.outputs import Line, open_outputs, open_step
from sessionrun.client.reading.view import choose_tasks, load_view
from sessionrun.client.reading.waiting import POLL_LAST_S, Watch, gone_words
from sessionrun.model.errors import InputError, SessionGone
from sessionrun.store.session import SessionDir

_STEP_HELP: Final = "What this step of the tasks printed, whole, instead of the agents' output."
_NOTHING: Final = {
    "check": "there is no output of a check",
    "setup": "there is no output of setup commands",
    "proof": "there is no output of a proof",
    "gate": "no gate has kept the work from landing: there is no output",
}
_COLORS: Final = ("cyan", "magenta", "yellow", "blue", "green")


@session_verb("logs", "follow", "as_json", headed=False)
@flag("-f --follow", "Go on until the tasks have ended.")
@valued("-n --lines", Count(), "Begin N lines before the end of each file.")
@click.option("--check", "step", flag_value="check", help=_STEP_HELP)
@click.option("--setup", "step", flag_value="setup", help=_STEP_HELP)
@click.option("--proof", "step", flag_value="proof", help=_STEP_HELP)
@click.option("--gate", "step", flag_value="gate", help=_STEP_HELP)
@valued("--round round_number", Count(1), "With --check: of round N, not the last.")
def command(
    session: SessionDir,
    tasks: tuple[str, ...],
    *,
    follow: bool,
    lines: int | None,
    step: str | None,
    round_number: int | None,
) -> Answer:
    """Print the output of session ID's tasks, each line with its task when there are several.

    With --json, one object per line: `id` of the task, `stream` (stdout or stderr) and `text`.
    """
    if round_number is not None and step != "check":
        raise InputError("--round is for --check: only a check is done in each round")
    view = load_view(session)
    chosen = choose_tasks(view, tasks)
    if not is_json():
        for line in place_lines(view):
            click.echo(line, err=True)
    form = _format_json if is_json() else _choose_tags(tagged=len(chosen) > 1)
    opened = [reader for task in chosen for reader in open_outputs(session, task, lines)] if step is None else []
    readers = {reader.path: reader for reader in opened}
    watch = Watch()
    while True:
        view = load_view(session)  # before reading: what is written until then is read below
        if step is not None:  # a further round or attempt has files of its own
            now = choose_tasks(view, tasks)
            fresh = [reader for task in now for reader in open_step(session, task, step, round_number, lines)]
            readers = {reader.path: reader for reader in fresh} | readers
        for reader in readers.values():
            sys.stdout.buffer.writelines(map(form, reader.read_on()))
        running = any(task["status"] != "completed" for task in choose_tasks(view, tasks))
        if not follow or not running or watch.is_gone(view):
            break
        sys.stdout.flush()
        if not any(reader.has_moved for reader in readers.values()):
            time.sleep(POLL_LAST_S)
    for reader in readers.values():
        sys.stdout.buffer.writelines(map(form, reader.finish()))
    sys.stdout.flush()
    if not readers:
        warn(f"{_NOTHING[step or '']} of {'these tasks' if len(chosen) > 1 else 'this task'}")
    if follow and running:
        raise SessionGone(gone_words(view))
    return Answer(None)


def _choose_tags(*, tagged: bool) -> Callable[[Line], bytes]:
    """What makes a line of text of a line: behind the name of its task, if it is `tagged`."""
    is_terminal = sys.stdout.isatty()

    def form(line: Line) -> bytes:
        tag = f"[{line.task}] "
        if is_terminal:  # in a color of its own, as far as there are enough
            tag = click.style(tag, fg=_COLORS[crc32(tag.encode()) % len(_COLORS)])
        lines = line.text.removesuffix("\n").split("\n")
        return b"".join(tag.encode() + _encode(f"{part}\n") for part in lines)

    return form if tagged else lambda line: _encode(line.text)


def _format_json(line: Line) -> bytes:
    plain = _to_bytes(line.text).decode("utf-8", "backslashreplace")
    return encode(versioned({"id": line.task, "stream": line.stream, "text": plain})) + b"\n"


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

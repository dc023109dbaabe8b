"""Verbs that ask a session's processes for something: cancel, hold, release, set, continue and resume.

`retry` and `run --into` have modules of their own, and share what is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from sessionrun.cli.options import (
    Count,
    Duration,
    add_options,
    json_option,
    quiet_option,
    results_dir_option,
    sync_option,
)
from sessionrun.cli.render import print_json, session_head, warn
from sessionrun.cli.selecting import Done, act_on_each, make_wanted, selector_options, words_argument
from sessionrun.client.asking import control
from sessionrun.client.asking.control import TAKEN_TIMEOUT_S, Reply
from sessionrun.client.lookup import open_session
from sessionrun.client.reading.selection import Chosen, choose_sessions
from sessionrun.client.reading.view import describe_shortage, load_view
from sessionrun.model.errors import InputError
from sessionrun.store.session import SessionDir

EXIT_TIMEOUT: Final = 124
NOT_TAKEN: Final = "asked for; the session has not taken the request yet"

_Command = TypeVar("_Command", bound=Callable[..., Any])


def taken_timeout_option(done: str) -> Callable[[_Command], _Command]:
    """`--timeout`, of verbs that ask a session for something; `done` is what they wait for."""
    return click.option(
        "--timeout",
        type=Duration(),
        default=TAKEN_TIMEOUT_S,
        metavar="TIME",
        help=f"How long to wait until {done}; 0 = only ask.  [default: 60s]",
    )


control_options = add_options(words_argument, selector_options, taken_timeout_option("it is done"))
"""`ID [TASK]...`, selectors and `--timeout`, of every verb that asks for something to be done."""


session_argument = click.argument("session_id", metavar="ID")
"""`ID` of the one session that a verb is about."""


def tell_effect(reply: Reply, done: str) -> str:
    """What became of a request, in a line: `done` if it was taken."""
    return f"{session_head(reply.view)}: {done if reply.taken else NOT_TAKEN}"


def tell_reply(reply: Reply, done: str, *, as_json: bool, quiet: bool = False, waits: bool = True) -> int:
    """Print what became of a request to one session, `done` if it was taken; the exit code."""
    view = reply.view
    if as_json:
        print_json({"session_id": view["session_id"]} if quiet else {**view, "tasks": reply.tasks})
    elif quiet:
        click.echo(view["session_id"])
    else:
        click.echo(tell_effect(reply, done))
    return 0 if reply.taken or not waits else EXIT_TIMEOUT


def count_words(counts: Iterable[tuple[int, str]]) -> str:
    """Those counts that are not 0, for people."""
    return ", ".join(f"{count} {word}" for count, word in counts if count)


def _choose_open(
    results_dir: Path | None,
    words: tuple[str, ...],
    labels: tuple[tuple[str, str], ...],
    states: tuple[str, ...] | None,
    since: float | None,
) -> Chosen:
    return choose_sessions(results_dir, words, make_wanted(labels, states, since), only_open=True)


def ask_each(
    chosen: Chosen,
    ask: Callable[[SessionDir, tuple[str, ...]], Reply],
    describe: Callable[[Reply], str],
    *,
    waits: bool,
    as_json: bool,
) -> int:
    """Ask each of several sessions, or tasks of the only one, and print what became of it; the exit code."""

    def act(session: SessionDir) -> Done:
        reply = ask(session, chosen.tasks)
        return Done(
            {**reply.view, "tasks": reply.tasks}, describe(reply), EXIT_TIMEOUT if waits and not reply.taken else 0
        )

    return act_on_each(chosen, act, as_json=as_json)


@click.command("cancel")
@control_options
@click.option(
    "--now", is_flag=True, help="Kill at once, without grace time; also jobs that are stopping or saving work."
)
@click.option("--tree", is_flag=True, help="Also the sessions that its tasks launched, and those inside of them.")
@json_option
@results_dir_option
def cancel(now: bool, tree: bool, timeout: float, as_json: bool, **selected: Any) -> int:
    """Stop session ID, or only the given tasks, with all their processes; or several sessions.

    Tasks that have ended stay as they are; cancelling twice does no harm.
    """
    from sessionrun.cli.contact import cancel_lines

    chosen = _choose_open(**selected)
    nested: set[str] = set()

    def ask(session: SessionDir, tasks: tuple[str, ...]) -> Reply:
        names = () if session.session_id in nested else tasks
        reply = control.cancel(session, names, now=now, timeout_s=timeout)
        shortage = describe_shortage(reply.view)
        if shortage is not None:
            warn(f"{shortage}: ends of tasks are recorded once there is room")
        for line in cancel_lines(reply.view, reply.tasks):
            warn(line)
        return reply

    if len(chosen.sessions) > 1:
        control.request_all(chosen.sessions, now=now)
    if tree:
        inside = control.cancel_nested(chosen.sessions, chosen.tasks, now=now, timeout_s=timeout)
        nested = {session.session_id for session in inside}
        chosen = chosen._replace(sessions=[*chosen.sessions, *inside], several=True)
    return ask_each(chosen, ask, _tell_cancelled, waits=bool(timeout), as_json=as_json)


def _tell_cancelled(reply: Reply) -> str:
    tasks = reply.tasks
    counts = count_words(
        (
            (sum(task["outcome"] == "cancelled" for task in tasks), "cancelled"),
            (sum(task["outcome"] not in (None, "cancelled") for task in tasks), "had ended before"),
            (sum(task["status"] != "completed" for task in tasks), "still stopping"),
        )
    )
    feeds = reply.view.get("feed")
    nothing = "no task to cancel; it takes none from the queue any more" if feeds else "nothing to cancel"
    return f"{session_head(reply.view)}: {counts or nothing}"


@click.command("hold")
@control_options
@click.option("--reason", metavar="TEXT", help="What `status` shows as the reason.  [default: on request]")
@json_option
@results_dir_option
def hold(timeout: float, reason: str | None, as_json: bool, **selected: Any) -> int:
    """Start nothing more of session ID, or of the given tasks, or of several sessions, until `release`.

    What runs goes on: its check is still made, its worktree released.
    """
    ask = partial(control.hold, reason=reason, timeout_s=timeout)
    return ask_each(_choose_open(**selected), ask, _tell_held, waits=bool(timeout), as_json=as_json)


def _tell_held(reply: Reply) -> str:
    held, running = (sum(task["word"] == word for task in reply.tasks) for word in ("held", "running"))
    counts = count_words(((held, "held"), (running, "running on")))
    feed = reply.view.get("feed") or {}
    rest = "takes no more tasks from its queue" if feed.get("open") and feed["held"] else "nothing to hold"
    return tell_effect(reply, f"nothing held, {counts}" if running and not held else counts or rest)


@click.command("release")
@control_options
@json_option
@results_dir_option
def release(timeout: float, as_json: bool, **selected: Any) -> int:
    """Let session ID, or only the given tasks, or several sessions, go on after `hold`.

    Without TASK every hold that was asked for ends, and that of a soft budget.  Holds that the machine made stay.
    """
    ask = partial(control.release, timeout_s=timeout)
    return ask_each(_choose_open(**selected), ask, _tell_released, waits=bool(timeout), as_json=as_json)


def _tell_released(reply: Reply) -> str:
    before, held = _list_held(reply.before), _list_held(reply.tasks)
    feed = reply.view.get("feed") or {}
    rest = "takes tasks from its queue again" if feed.get("open") and not feed["held"] else "nothing is held"
    counts = count_words(((len(before - held), "released"), (len(held), "still held")))
    return tell_effect(reply, counts or rest)


def _list_held(tasks: Sequence[Mapping[str, Any]]) -> set[str]:
    return {task["id"] for task in tasks if task["reason_class"] == "held"}


@click.command("set")
@session_argument
@click.option(
    "--max-parallel",
    "width",
    type=Count(),
    metavar="N",
    required=True,
    help="How many tasks may run at once; 0 = no limit.",
)
@taken_timeout_option("it is done")
@json_option
@results_dir_option
def change(session_id: str, width: int, timeout: float, as_json: bool, results_dir: Path | None) -> int:
    """Change how many tasks of session ID, which runs, may run at once.

    Tasks that run go on, also if there are more of them.
    """
    reply = control.set_width(open_session(results_dir, session_id), width, timeout_s=timeout)
    limit = reply.view["max_parallel"] or "no limit"
    return tell_reply(reply, f"max_parallel: {limit}", as_json=as_json, waits=bool(timeout))


@click.command("continue")
@session_argument
@click.argument("task", metavar="TASK")
@click.argument("text", metavar="TEXT", required=False)
@click.option("--file", type=click.Path(path_type=Path), metavar="FILE", help="Read the follow-up from FILE.")
@taken_timeout_option("the session has taken it")
@sync_option
@quiet_option
@json_option
@results_dir_option
def follow_up(
    session_id: str,
    task: str,
    text: str | None,
    file: Path | None,
    sync: bool,
    timeout: float,
    quiet: bool,
    as_json: bool,
    results_dir: Path | None,
) -> int:
    """Ask more of TASK of session ID, which has ended: it goes on where it stopped, with TEXT.

    Its agent gets TEXT in the same conversation, and works on the same branch.  A TEXT of - is read from standard
    input.
    """
    from sessionrun.client.asking.continuing import continue_task

    session = open_session(results_dir, session_id)
    reply = continue_task(session, task, _read_text(text, file), timeout_s=timeout)
    if reply.taken and sync:
        from sessionrun.cli.sync import follow_run

        return follow_run(session, as_json=as_json, quiet=quiet)
    done = f"task {reply.tasks[0]['id']} goes on, attempt {reply.tasks[0]['attempt']}"
    return tell_reply(reply, done, as_json=as_json, quiet=quiet, waits=bool(timeout))


def _read_text(text: str | None, file: Path | None) -> str:
    """The follow-up, from wherever it was given.

    Raises:
        InputError: it was given twice or nowhere, or cannot be read.
    """
    from sessionrun.client.planning.inputs import read_source

    if (text is None) == (file is None):
        raise InputError("give the follow-up once: as TEXT, as - for standard input, or with --file FILE")
    if text is not None and text != "-":
        return text
    given = "-" if file is None else str(file)
    try:
        return read_source(given).text.decode()
    except UnicodeDecodeError:
        raise InputError(f"{'stdin' if given == '-' else given}: is not UTF-8; save it as UTF-8") from None


@click.command("resume")
@session_argument
@json_option
@results_dir_option
def resume(session_id: str, as_json: bool, results_dir: Path | None) -> None:
    """Let session ID go on where it was when the last of its processes was killed or the machine went down.

    Jobs that still run are adopted.  What never started is started.  If a task's end was not seen, the task is
    `lost` or `interrupted`, and runs again only on `retry`.  Agents get the environment of this command.
    """
    session = open_session(results_dir, session_id)
    resumed = control.resume(session)
    view = load_view(session)
    if as_json:
        print_json({"session_id": session.session_id, "resumed": resumed, "status": view["status"]})
    elif resumed:
        click.echo(f"{session_head(view)}: goes on")
    elif view["ended_at"] is not None:
        click.echo(f"{session_head(view)}: has ended ({view['result']})")
    else:
        click.echo(f"{session_head(view)}: is running ({', '.join(session.held_locks())} held)")


COMMANDS: Final = (cancel, hold, release, change, follow_up, resume)

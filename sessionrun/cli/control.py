"""Verbs that ask a session for something: cancel, hold, release, retry, set, continue and resume.

Each says in a line what became of what it asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from sessionrun.cli.options import (
    EXIT_TIMEOUT,
    Answer,
    Count,
    Decorator,
    Duration,
    act_on_each,
    add_options,
    flag,
    quiet_option,
    selector_options,
    sync_option,
    valued,
    verb,
    words_argument,
)
from sessionrun.cli.render import session_head, warn
from sessionrun.client import ask as asking
from sessionrun.client.ask import TAKEN_TIMEOUT_S, Reply
from sessionrun.client.lookup import Chosen, choose_sessions, find_sessions, open_session
from sessionrun.client.reading.view import describe_shortage, load_view
from sessionrun.model.errors import InputError
from sessionrun.store.session import SessionDir

# --- what became of it ---


def _tell_cancelled(reply: Reply) -> str:
    outcomes = [task["outcome"] for task in reply.tasks if task["status"] == "completed"]
    cancelled = outcomes.count("cancelled")
    counts = _count_words(
        (cancelled, "cancelled"),
        (len(outcomes) - cancelled, "had ended before"),
        (len(reply.tasks) - len(outcomes), "still stopping"),
    )
    feeds = reply.view.get("feed")
    return counts or ("no task to cancel; it takes none from the queue any more" if feeds else "nothing to cancel")


def _tell_held(reply: Reply) -> str:
    held, running = (sum(task["word"] == word for task in reply.tasks) for word in ("held", "running"))
    counts = _count_words((held, "held"), (running, "running on"))
    feed = reply.view.get("feed") or {}
    rest = "takes no more tasks from its queue" if feed.get("open") and feed["held"] else "nothing to hold"
    return f"nothing held, {counts}" if running and not held else counts or rest


def _tell_released(reply: Reply) -> str:
    before, held = (
        {task["id"] for task in tasks if task["reason_class"] == "held"} for tasks in (reply.before, reply.tasks)
    )
    feed = reply.view.get("feed") or {}
    rest = "takes tasks from its queue again" if feed.get("open") and not feed["held"] else "nothing is held"
    return _count_words((len(before - held), "released"), (len(held), "still held")) or rest


def _tell_retried(reply: Reply) -> str:
    """How many were taken, whether they wait, run or have ended again by now."""
    if not reply.before:
        return "nothing to retry"
    before = {task["id"]: task for task in reply.before}
    tried = sum(
        any(task[key] != before[task["id"]][key] for key in ("attempt", "status", "outcome"))
        or before[task["id"]]["outcome"] == "succeeded"  # its work is to land again
        for task in reply.tasks
    )
    # a task that was skipped once more looks as before, but came along with the others
    again = tried + sum(task["outcome"] == before[task["id"]]["outcome"] == "skipped" for task in reply.tasks)
    return f"retrying {again} task{'s' * (again != 1)}" if tried else "nothing was left to retry"


def _count_words(*counts: tuple[int, str]) -> str:
    return ", ".join(f"{count} {word}" for count, word in counts if count)


_WORDS: Final[Mapping[str, Callable[[Reply], str]]] = {
    "cancel": _tell_cancelled,
    "hold": _tell_held,
    "release": _tell_released,
    "retry": _tell_retried,
    "set": lambda reply: f"max_parallel: {reply.view['max_parallel'] or 'no limit'}",
    "continue": lambda reply: f"task {reply.tasks[0]['id']} goes on, attempt {reply.tasks[0]['attempt']}",
    "add": lambda reply: f"{len(reply.tasks)} added",
}


def tell(kind: str, reply: Reply) -> str:
    """What became of a request, in a line; a `cancel` that was not taken yet says what still runs."""
    taken = reply.taken or kind == "cancel"
    words = _WORDS[kind](reply) if taken else "asked for; the session has not taken the request yet"
    return f"{session_head(reply.view)}: {words}"


def ask_each(
    chosen: Chosen,
    kind: str,
    ask: Callable[[SessionDir, tuple[str, ...]], Reply],
    *,
    waits: bool,
    quiet: bool = False,
    sync: bool = False,
) -> int:
    """Ask each of several sessions, or tasks of the only one, and print what became of it; the exit code.

    With `sync` the only session is followed to its end instead, if it has something to do.
    """

    def act(session: SessionDir) -> Answer:
        reply = ask(session, chosen.tasks)
        if sync and reply.taken and reply.tasks:
            from sessionrun.cli.wait import follow_run

            return Answer(None, (), follow_run(session, quiet=quiet))
        code = EXIT_TIMEOUT if waits and not reply.taken else 0
        if quiet and reply.tasks:
            return Answer({"session_id": session.session_id}, [session.session_id], code)
        return Answer({**reply.view, "tasks": reply.tasks}, [] if quiet else [tell(kind, reply)], code)

    return act_on_each(chosen, act)


# --- the verbs ---


def _timeout_option(done: str) -> Decorator:
    text = f"How long to wait until {done}; 0 = only ask.  [default: 60s]"
    return valued("--timeout", Duration(), text, default=TAKEN_TIMEOUT_S)


_control_options = add_options(words_argument, selector_options, _timeout_option("it is done"))
_sessions_argument = click.argument("session_ids", nargs=-1, required=True, metavar="ID...")


def _choose_whole(results_dir: Path | None, session_ids: tuple[str, ...]) -> Chosen:
    sessions = find_sessions(results_dir, session_ids)
    return Chosen(sessions, (), len(session_ids) > 1)


@verb("cancel")
@_control_options
@flag("--now", "Kill at once, without grace time; also jobs that are stopping or saving work.")
@flag("--tree", "Also the sessions that its tasks launched, and those inside of them.")
def cancel(now: bool, tree: bool, timeout: float, **selected: Any) -> int:
    """Stop session ID, or only the given tasks, with all their processes; or several sessions.

    Tasks that have ended stay as they are; cancelling twice does no harm.
    """
    from sessionrun.cli.standing import cancel_lines

    chosen = choose_sessions(**selected, only_open=True)
    nested: list[SessionDir] = []
    if tree or chosen.several:
        nested = asking.cancel_all(chosen.sessions, chosen.tasks, now=now, nested=tree, timeout_s=timeout)
        chosen = chosen._replace(sessions=[*chosen.sessions, *nested], several=True)

    def ask(session: SessionDir, tasks: tuple[str, ...]) -> Reply:
        reply = asking.cancel(session, () if session in nested else tasks, now=now, timeout_s=timeout)
        if full := reply.view["disk_full"]:
            warn(f"{describe_shortage(full)}: ends of tasks are recorded once there is room")
        for line in cancel_lines(reply.view, reply.tasks):
            warn(line)
        return reply

    return ask_each(chosen, "cancel", ask, waits=bool(timeout))


@verb("hold")
@_control_options
@valued("--reason", "TEXT", "What `status` shows as the reason.  [default: on request]")
def hold(timeout: float, reason: str | None, **selected: Any) -> int:
    """Start nothing more of session ID, or of the given tasks, or of several sessions, until `release`.

    What runs goes on: its check is still made, its worktree released.
    """
    ask = partial(asking.hold, reason=reason, timeout_s=timeout)
    return ask_each(choose_sessions(**selected, only_open=True), "hold", ask, waits=bool(timeout))


@verb("release")
@_control_options
def release(timeout: float, **selected: Any) -> int:
    """Let session ID, or only the given tasks, or several sessions, go on after `hold`.

    Without TASK every hold that was asked for ends, and that of a soft budget.  Holds that the machine made stay.
    """
    ask = partial(asking.release, timeout_s=timeout)
    return ask_each(choose_sessions(**selected, only_open=True), "release", ask, waits=bool(timeout))


@verb("set")
@_sessions_argument
@valued("--max-parallel width", Count(), "How many tasks may run at once; 0 = no limit.", required=True)
@_timeout_option("it is done")
def change(width: int, timeout: float, **selected: Any) -> int:
    """Change how many tasks of sessions ID, which run, may run at once.

    Tasks that run go on, also if there are more of them.
    """

    ask = partial(asking.set_width, width=width, timeout_s=timeout)
    return ask_each(_choose_whole(**selected), "set", lambda session, _: ask(session), waits=bool(timeout))


@verb("resume")
@_sessions_argument
def resume(**selected: Any) -> int:
    """Let sessions ID go on where they were when the last process was killed or the machine went down.

    Jobs that still run are adopted.  What never started is started.  If a task's end was not seen, the task is
    `lost` or `interrupted`, and runs again only on `retry`.  Agents get the environment of this command.
    """

    def act(session: SessionDir) -> Answer:
        resumed = asking.resume(session)
        view = load_view(session)
        state = f"is running ({', '.join(session.held_locks())} held)"
        if view["ended_at"] is not None:
            state = f"has ended ({view['result']})"
        record = {"session_id": session.session_id, "resumed": resumed, "status": view["status"]}
        return Answer(record, [f"{session_head(view)}: {'goes on' if resumed else state}"])

    return act_on_each(_choose_whole(**selected), act)


@verb("continue")
@click.argument("session_id", metavar="ID")
@click.argument("task", metavar="TASK")
@click.argument("text", metavar="TEXT", required=False)
@valued("--file", "FILE", "Read the follow-up from FILE.", click.Path(path_type=Path))
@_timeout_option("the session has taken it")
@sync_option
@quiet_option
def follow_up(
    session_id: str,
    task: str,
    text: str | None,
    file: Path | None,
    timeout: float,
    results_dir: Path | None,
    **shown: bool,
) -> int:
    """Ask more of TASK of session ID, which has ended: it goes on where it stopped, with TEXT.

    Its agent gets TEXT in the same conversation, and works on the same branch.  A TEXT of - is read from standard
    input.
    """
    from sessionrun.input.given import read_text

    chosen = Chosen([open_session(results_dir, session_id)], (task,), False)
    if (text is None) == (file is None):
        raise InputError("give the follow-up once: as TEXT, as - for standard input, or with --file FILE")
    if text is None or text == "-":
        text = read_text(str(file or "-"), typed=True)
    ask = partial(asking.continue_task, text=text, timeout_s=timeout)
    return ask_each(chosen, "continue", lambda session, _: ask(session, task), waits=bool(timeout), **shown)


@verb("retry")
@_control_options
@flag("--failed", "Only tasks that failed or timed out.")
@flag("--lost", "Only tasks that were lost or interrupted; with --failed: either.")
@flag("--no-ready", "With another agent or model: do not check first whether agents are signed in and ready.")
@valued("--agent", "NAME", "Try them with this agent.")
@valued("--model", "NAME", "Try them with this model, as the agent CLI spells it.")
@valued("--prompt", "TEXT", "Try the task with this prompt instead of its own.")
@sync_option
@quiet_option
def retry(
    timeout: float,
    failed: bool,
    lost: bool,
    no_ready: bool,
    agent: str | None,
    model: str | None,
    prompt: str | None,
    sync: bool,
    quiet: bool,
    **selected: Any,
) -> int:
    """Try tasks of sessions again: by default all that failed, timed out, were lost or interrupted.

    Named tasks may also have been cancelled or skipped.  Tasks that were skipped because of those that are
    tried again come along.  Another agent, model or prompt is not for these.
    """
    if no_ready and not (agent or model):
        raise InputError("--no-ready has no effect: the session's own agents are not asked; leave it out")
    asked = None
    if (agent, model, prompt) != (None, None, None):
        from sessionrun.client.planning.additions import AskedChange

        asked = AskedChange(agent, model, prompt)
    chosen = choose_sessions(**selected)
    if chosen.several and sync:
        raise InputError("retry: --sync is about one session: name it by its ID, without selectors")
    ask = partial(asking.retry, failed=failed, lost=lost, asked=asked, ready=not no_ready, timeout_s=timeout)
    return ask_each(chosen, "retry", ask, waits=bool(timeout), quiet=quiet, sync=sync)

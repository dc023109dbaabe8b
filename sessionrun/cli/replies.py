"""What became of a request, in words; and `run --into`, which asks a session that runs to take more tasks.

The verbs that ask are in `control`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sessionrun.cli.render import session_head, warn
from sessionrun.cli.selecting import EXIT_TIMEOUT, Done, act_on_each
from sessionrun.client import ask as asking
from sessionrun.client.ask import Reply
from sessionrun.client.lookup import open_session
from sessionrun.client.reading.selection import Chosen
from sessionrun.model.errors import InputError
from sessionrun.store.session import SessionDir

if TYPE_CHECKING:
    from sessionrun.model.events import TasksAdded
    from sessionrun.model.spec import SessionSpec


def _tell_cancelled(reply: Reply) -> str:
    tasks = reply.tasks
    counts = _count_words(
        (
            (sum(task["outcome"] == "cancelled" for task in tasks), "cancelled"),
            (sum(task["outcome"] not in (None, "cancelled") for task in tasks), "had ended before"),
            (sum(task["status"] != "completed" for task in tasks), "still stopping"),
        )
    )
    feeds = reply.view.get("feed")
    nothing = "no task to cancel; it takes none from the queue any more" if feeds else "nothing to cancel"
    return counts or nothing


def _tell_held(reply: Reply) -> str:
    held, running = (sum(task["word"] == word for task in reply.tasks) for word in ("held", "running"))
    counts = _count_words(((held, "held"), (running, "running on")))
    feed = reply.view.get("feed") or {}
    rest = "takes no more tasks from its queue" if feed.get("open") and feed["held"] else "nothing to hold"
    return f"nothing held, {counts}" if running and not held else counts or rest


def _tell_released(reply: Reply) -> str:
    before, held = (
        {task["id"] for task in tasks if task["reason_class"] == "held"} for tasks in (reply.before, reply.tasks)
    )
    feed = reply.view.get("feed") or {}
    rest = "takes tasks from its queue again" if feed.get("open") and not feed["held"] else "nothing is held"
    return _count_words(((len(before - held), "released"), (len(held), "still held"))) or rest


def _tell_retried(reply: Reply) -> str:
    if not reply.before:
        return "nothing to retry"
    again = _count_retried(reply.tasks, {task["id"]: task for task in reply.before})
    return f"retrying {again} task{'s' * (again != 1)}" if again else "nothing was left to retry"


def _count_retried(now: Sequence[Mapping[str, Any]], before: Mapping[str, Mapping[str, Any]]) -> int:
    """How many were taken, whether they wait, run or have ended again by now.

    A task that was skipped once more looks as before, but came along with the others.
    """
    tried = sum(
        any(task[key] != before[task["id"]][key] for key in ("attempt", "status", "outcome"))
        or before[task["id"]]["outcome"] == "succeeded"  # its work is to land again
        for task in now
    )
    skipped = sum(task["outcome"] == before[task["id"]]["outcome"] == "skipped" for task in now)
    return tried + skipped if tried else 0


def _count_words(counts: Iterable[tuple[int, str]]) -> str:
    """Those counts that are not 0, for people."""
    return ", ".join(f"{count} {word}" for count, word in counts if count)


WORDS: Final[Mapping[str, Callable[[Reply], str]]] = {
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
    words = WORDS[kind](reply) if taken else "asked for; the session has not taken the request yet"
    return f"{session_head(reply.view)}: {words}"


# --- the way of all ---


def ask_each(
    chosen: Chosen,
    kind: str,
    ask: Callable[[SessionDir, tuple[str, ...]], Reply],
    *,
    waits: bool,
    as_json: bool,
    quiet: bool = False,
    sync: bool = False,
) -> int:
    """Ask each of several sessions, or tasks of the only one, and print what became of it; the exit code.

    With `sync` the only session is followed to its end instead, if it has something to do.
    """

    def act(session: SessionDir) -> Done:
        reply = ask(session, chosen.tasks)
        if sync and reply.taken and reply.tasks:
            from sessionrun.cli.sync import follow_run

            return Done(None, "", follow_run(session, as_json=as_json, quiet=quiet))
        code = EXIT_TIMEOUT if waits and not reply.taken else 0
        if quiet and reply.tasks:
            return Done({"session_id": session.session_id}, session.session_id, code)
        return Done({**reply.view, "tasks": reply.tasks}, "" if quiet else tell(kind, reply), code)

    return act_on_each(chosen, act, as_json=as_json)


# --- `run --into` ---


class Joined(NamedTuple):
    """The session to which tasks are added, and its spec as it is now."""

    session: SessionDir
    spec: SessionSpec

    def settle(self, planned: SessionSpec) -> TasksAdded:
        """What of a plan is added; refused here if it does not fit the session."""
        from sessionrun.client.planning.joining import settle_addition

        return settle_addition(planned, self.spec)

    def add(self, planned: SessionSpec, addition: TasksAdded, *, ready: bool, **shown: bool) -> int:
        """Add the tasks and say what became of them; the exit code."""
        from sessionrun.client.launching.readiness import check_environments, check_ready
        from sessionrun.client.planning.sandboxing import check_sandboxes

        if ready:
            check_ready(planned)
        check_environments(planned)
        warning = check_sandboxes(planned)
        if warning is not None:
            warn(warning)
        chosen = Chosen([self.session], (), False)
        return ask_each(chosen, "add", lambda *_: asking.add(self.session, addition), waits=True, **shown)


def open_joined(results_dir: Path | None, session_id: str, options: Mapping[str, Any], *, held: bool) -> Joined:
    """Find a session to which tasks can be added; `options` are those of `run`.

    Raises:
        InputError: it has ended, or an option holds for a whole session.
    """
    from sessionrun.client.planning.joining import describe_whole, refuse_session_options

    session = open_session(results_dir, session_id)
    joined = Joined(session, asking.load_open(session))
    refuse_session_options(options, joined.spec)
    if held:
        raise InputError(describe_whole("--hold"))
    return joined

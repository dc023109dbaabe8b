"""Finds what is true of a session right now, from its files alone; every verb that reads uses it.

The lock is probed first and the files are read after, so that a session which ends in between is seen as
ended and never as dead.  A session is alive while one of its locks is held; without a supervisor (`lock` is free)
it is `recovering`, unless none has started yet.  Of a session that no process runs the logs are folded.

What a supervisor cannot write is added here: what `clean` and `merge` did later, what businesses know besides, and
which processes are stopped.  A stopped supervisor holds its lock and looks alive, but nothing goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from sessionrun.client.notices import notify
from sessionrun.house import HOUSE, load
from sessionrun.model.errors import InputError, SessionNotFound, SessionrunError, name_some, suggest
from sessionrun.model.keys import is_node_id
from sessionrun.model.shown import Seen
from sessionrun.store.files import read_regular
from sessionrun.store.locks import is_held
from sessionrun.store.logs import find_shortage
from sessionrun.store.seal import parse_head
from sessionrun.store.session import SessionDir

if TYPE_CHECKING:
    from sessionrun.client.evidence import Evidence
    from sessionrun.engine.status import Gone
    from sessionrun.store.logs import LedgerJob

NAMED: Final = 5
"""How many sessions or tasks an error names."""


def find_stopped(known: Mapping[str, Any] | None) -> list[str]:
    """The roles of the processes that are stopped now; `known` is `processes` of status.json."""
    if not known:
        return []
    from sessionrun.store import processes

    roles = [(role, known[role]) for role in ("root", "keeper", "supervisor") if known.get(role)]
    stopped = [role for role, process in roles if processes.is_stopped(process["pid"], process["started"])]
    return stopped if stopped and processes.is_here(known["boot_id"], known["pid_ns"]) else []


def load_view(session: SessionDir, *, merged: bool = True) -> dict[str, Any]:
    """The object of status.json, corrected for what is alive; `merged`: with what `merge` did with the work."""
    alive, led = _probe(session)
    status = session.load_status()
    if status is None or not (alive or status["ended_at"]):
        return load_history(session, merged=merged)[0]
    return _finish(session, status, alive=alive, led=led, merged=merged)


def load_history(session: SessionDir, *, merged: bool = True) -> tuple[dict[str, Any], Evidence]:
    """The view that the logs give, whatever status.json says, and the evidence that it was made from."""
    from sessionrun.client.evidence import read_evidence
    from sessionrun.session.history import project_status

    evidence = read_evidence(session)
    status = project_status(session, evidence.require())
    if evidence.journal.damage_at is not None:
        at = f"{session.journal_path} is damaged at byte {evidence.journal.damage_at}"
        notify(f"{at}: what came later is not shown")
    if not (evidence.alive or status["ended_at"]):
        status = _without_supervisor(evidence, status)
    return _finish(session, status, alive=evidence.alive, led=evidence.led, merged=merged), evidence


def load_unparsed(session: SessionDir) -> dict[str, Any] | None:
    """The view for JSON, with its tasks as status.json has them, if none needs a correction; else None.

    The tasks of a large session take longer to parse than all else that a poll does.
    """
    import orjson

    # where the path is not UTF-8 orjson prints nothing, and nothing else prints what is not parsed
    if find_views(session) or not str(session.path.absolute()).isprintable():
        return None
    alive, led = _probe(session)
    found = parse_head(session.read_status() or b"")
    if found is None or not (led or found[0]["ended_at"]):
        return None
    head, tasks = found
    if head["ended_at"] and b'"worktree":"' in tasks:
        return None
    shown = _finish(session, head, alive=alive, led=led)
    return {**head, "tasks": orjson.Fragment(tasks), **shown}


def find_views(session: SessionDir) -> list[str]:
    """What adds to the tasks of a session, as the house names it; nothing is imported for that."""
    views = (business.views for business in HOUSE)
    return [view[1] for view in views if view is not None and os.path.lexists(session.path / view[0])]


def add_views(session: SessionDir, tasks: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The tasks with what businesses know of them and the session itself does not."""
    for view in find_views(session):
        tasks = load(view)(session, tasks)
    return tasks


def load_or_warn(session: SessionDir, read: Callable[[SessionDir], dict[str, Any]]) -> dict[str, Any] | None:
    """Load one of many sessions with `read`; None, and a warning, if it cannot be read."""
    try:
        return read(session)
    except (SessionNotFound, FileNotFoundError):
        return None  # removed, or not finished, while we looked
    except (SessionrunError, OSError) as error:
        notify(str(error) if str(session.path) in str(error) else f"{session.path}: cannot be read: {error}")
        return None


def describe_shortage(shortage: Mapping[str, int | str | None]) -> str:
    """What is free on a session's disk that has too little room to start a job, in words."""
    inodes = "" if shortage["free_inodes"] is None else f" / {shortage['free_inodes']} inodes"
    return f"{shortage['free_bytes']} bytes{inodes} free in {shortage['path']}"


def show_as_it_lies(task: dict[str, Any]) -> dict[str, Any]:
    """A task without the worktree that `clean`, or the user, removed later: only supervisors write status.json.

    What is on another machine cannot be seen from here.
    """
    path = task.get("worktree")
    if path is None or task["status"] != "completed" or os.path.lexists(path) or is_node_id(task.get("node")):
        return task
    return {**task, "worktree": None, "worktree_kept": None}


def load_summary_view(session: SessionDir) -> dict[str, Any]:
    """The summary, corrected for what is alive; the task table is not read if no `merge` can have changed it."""
    alive = led = False
    summary = session.load_summary()
    if summary is None or not summary["ended_at"]:  # an end is true, whatever process still lives
        alive, led = _probe(session)
        summary = session.load_summary()
    if summary is None or not (alive or summary["ended_at"]) or (summary["ended_at"] and find_views(session)):
        from sessionrun.engine.status import project_summary

        view = load_view(session)
        return {**project_summary(view), **{key: view[key] for key in Seen.__annotations__}}
    return _finish(session, summary, alive=alive, led=led)


def _probe(session: SessionDir) -> tuple[bool, bool]:
    """Whether a process of the session lives, and whether that is a supervisor."""
    led = is_held(session.path / "lock")
    return led or session.is_alive(), led


def _finish(
    session: SessionDir, shown: dict[str, Any], *, alive: bool, led: bool, merged: bool = True
) -> dict[str, Any]:
    """Add what only a reader can know; `shown` is a status or a summary."""
    stopped = find_stopped(shown.get("processes")) if alive and not shown["ended_at"] else []
    full = None if shown["ended_at"] else find_shortage(session.path)
    silent: list[dict[str, Any]] = []
    if alive and not shown["ended_at"]:  # with what of its cluster it has no contact, as its supervisor wrote last
        with suppress(OSError, ValueError):
            silent = json.loads(read_regular(session.contact_path))
    shown = {
        **shown,
        "results_dir": str(session.path.absolute()),
        "stopped": stopped,
        "disk_full": full,
        "no_contact": silent,
    }
    if "tasks" in shown:
        shown["tasks"] = [show_as_it_lies(task) for task in shown["tasks"]]
        if merged and find_views(session):
            from sessionrun.engine.status import recount

            shown = recount({**shown, "tasks": add_views(session, shown["tasks"])})
    if alive and not led and shown["status"] == "running" and shown.get("processes"):
        # since the probe the first supervisor may have started, and written this
        shown["status"] = "running" if is_held(session.path / "lock") else "recovering"
    return shown


def _without_supervisor(evidence: Evidence, status: dict[str, Any]) -> dict[str, Any]:
    """Find the tasks that still have a process of their own in a session that no process runs.

    Only a job without an end in the journal can be alive or lost: a task between two jobs just waits.
    """
    from sessionrun.engine.status import summarise
    from sessionrun.store import processes

    session, state = evidence.session, evidence.require()
    living: set[str] = set()
    gone: dict[str, Gone] = {}
    for key in [task.job.key for task in state.tasks.values() if task.job]:
        job = evidence.ledger.jobs.get(key.text())
        if job is None or not job.tried or job.errno is not None:
            continue
        lives = processes.lives(job.boot_id, job.pid_ns, job.pid, job.started)
        if lives:
            living.add(key.task)
        elif key.phase in ("setup", "work"):  # the other phases are simply run again
            outcome, why = _explain(job, lives)
            if key.phase == "work" and job.wait_status is None and lives is False:
                from sessionrun.agents import table

                agent = state.spec.agents[state.tasks[key.task].agent]
                if table.is_whole(agent, session.raw_path(key.task), session.error_path(key.task)):
                    why += "; its answer is complete, and resume counts it as a success"
            gone[key.task] = outcome, why
    return summarise(status, living, gone)


def _explain(job: LedgerJob, lives: bool | None) -> Gone:
    from sessionrun.store import processes

    if job.wait_status is not None:
        return "lost", f"no process was left to judge its end (wait status {job.wait_status})"
    if not processes.is_this_boot(job.boot_id):
        return "interrupted", "the machine was restarted while it ran"
    if lives is None:
        return "lost", "it was started in another container, and its process cannot be seen from here"
    return "lost", "its process is gone, and its end was not seen"


# --- tasks ---


def match_tasks(tasks: Sequence[dict[str, Any]], names: Sequence[str]) -> list[list[dict[str, Any]]]:
    """For each name the task of this id, else of this number or, without either, those whose id begins so."""
    exact = {str(task["num"]): task for task in tasks} | {task["id"]: task for task in tasks}
    return [
        [exact[name]] if name in exact else [task for task in tasks if name and task["id"].startswith(name)]
        for name in names
    ]


def choose_tasks(status: dict[str, Any], wanted: Sequence[str]) -> list[dict[str, Any]]:
    """The tasks of a status object; of `wanted` ones, each by its id, the beginning of that, or its number.

    Raises:
        InputError: a name that is not a task of the session, or begins several ids.
    """
    if not wanted:
        return list(status["tasks"])
    matches = match_tasks(status["tasks"], wanted)
    for name, begun in zip(wanted, matches, strict=True):
        if len(begun) > 1:
            some = name_some([task["id"] for task in begun], NAMED)
            raise InputError(f"{name!r} begins the ids of {len(begun)} tasks ({some}): give more of the id")
    missing = [name for name, found in zip(wanted, matches, strict=True) if not found]
    if missing:
        ids = [task["id"] for task in status["tasks"]]
        known = f"{suggest(missing[0], ids)}; it has: {name_some(ids, NAMED) or 'none'}"
        raise InputError(f"no task {missing[0]!r} in session {status['session_id']}{known}")
    return [*{task["id"]: task for (task,) in matches}.values()]

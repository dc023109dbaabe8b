"""Waits for the next end of a task, so that a caller can act on each end once.

A caller gives back the cursor that it got: then only what ended after that counts.  The cursor is a number of the
session's journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sessionrun.client.lookup import choose_tasks
from sessionrun.client.reading.view import load_view
from sessionrun.client.reading.waiting import View, has_ended, has_failed, is_done, is_held, wait_until
from sessionrun.store.session import SessionDir


class NextEnd(NamedTuple):
    """What ended behind the cursor.

    `tasks` are in the order of their ends.  `left` counts those that were waited for and have not ended.  `cursor`
    is for the next call.  `in_time` is false if the time was up.  `held` is whether only held tasks are left.
    """

    view: View
    tasks: list[dict[str, Any]]
    left: int
    cursor: int
    in_time: bool
    held: bool


def wait_for_next(
    session: SessionDir,
    tasks: Sequence[str] = (),
    *,
    since: int = 0,
    failed: bool = False,
    through_holds: bool = False,
    timeout_s: float | None = None,
) -> NextEnd:
    """Block until a task has ended after `since`, or none is left that could.

    Args:
        session: the session.
        tasks: only these, by id or number.
        since: the cursor of the call before; 0: from the beginning.
        failed: only tasks that did not succeed, or whose work did not land.
        through_holds: wait also if all that is left is held without a known time.
        timeout_s: how long at most.

    Raises:
        InputError: a name that is not a task of the session.
        SessionGone: the session's processes are gone and it has not ended.
        StoreError: the session's files are damaged.
    """

    def find(view: View) -> list[dict[str, Any]]:
        return find_ended(choose_tasks(view, tasks), since=since, failed=failed)

    def is_over(view: View) -> bool:
        chosen = choose_tasks(view, tasks)
        return (
            bool(find(view))
            or has_ended(view)
            or all(map(is_done, chosen))
            or (not through_holds and is_held(view, tasks))
        )

    seen = wait_until(lambda: load_view(session), is_over, timeout_s=timeout_s)
    view = seen or load_view(session)
    chosen = choose_tasks(view, tasks)
    ended = find(view)
    left = 0 if has_ended(view) else sum(not is_done(task) for task in chosen)
    held = not ended and bool(left) and seen is not None and not has_ended(view)
    return NextEnd(view, ended, left, view["seq"], seen is not None, held)


def find_ended(tasks: Sequence[dict[str, Any]], *, since: int, failed: bool) -> list[dict[str, Any]]:
    """Those of the tasks that ended after `since`, in the order of their ends."""
    over = has_failed if failed else is_done
    ended = [task for task in tasks if over(task) and (not since or (task["ended_seq"] or 0) > since)]
    return sorted(ended, key=lambda task: (task["ended_seq"] or 0, task["num"]))

"""`retry`: try tasks again that did not succeed, in the same session or in a new one."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import click

from sessionrun.cli.control import EXIT_TIMEOUT, NOT_TAKEN, Target, control_options, count_words
from sessionrun.cli.options import json_option, results_dir_option
from sessionrun.cli.render import print_json
from sessionrun.client.requests import ask
from sessionrun.model.errors import InputError
from sessionrun.store.session import SessionDir


@click.command("retry")
@control_options
@click.option("--failed", is_flag=True, help="Tasks that failed or timed out.")
@click.option("--lost", is_flag=True, help="Tasks that were lost or interrupted.")
@click.option("--new", is_flag=True, help="In a new session, whose id is printed as `run` does.")
@click.option("--no-ready", is_flag=True, help="With --new: do not ask agents first whether they are ready.")
@click.option("--sync", is_flag=True, help="Wait for the end, show progress, print the results.")
@click.option("-q", "--quiet", is_flag=True, help="Print the session id alone.")
@json_option
@results_dir_option
def command(
    session_id: str,
    tasks: tuple[str, ...],
    timeout: float,
    failed: bool,
    lost: bool,
    new: bool,
    no_ready: bool,
    sync: bool,
    quiet: bool,
    as_json: bool,
    results_dir: Path | None,
) -> int:
    """Try tasks of session ID again: by default all that failed, timed out, were lost or interrupted.

    Named tasks may also have been cancelled or skipped.  Tasks that were skipped because of those that are
    tried again come along.
    """
    if no_ready and not new:
        raise InputError(
            "--no-ready has no effect without --new: the session's own agents are not asked; leave it out"
        )
    target = Target(results_dir, session_id, tasks)
    outcomes = _outcomes(target, failed=failed, lost=lost)
    chosen = choose_retried(target, outcomes)
    if not chosen:
        return _tell_nothing(target, quiet=quiet, as_json=as_json)
    if new:
        return _start_renewed(target.session, chosen, sync=sync, quiet=quiet, as_json=as_json, ready=not no_ready)
    record = {"kind": "retry", "tasks": target.ids, "outcomes": list(outcomes)}
    taken = ask(target.session, record, timeout_s=timeout)
    if taken and sync:
        from sessionrun.cli.sync import follow_run

        return follow_run(target.session, as_json=as_json, quiet=quiet)
    _tell(target, chosen, taken=taken, quiet=quiet, as_json=as_json)
    return 0 if taken or not timeout else EXIT_TIMEOUT


def _start_renewed(
    session: SessionDir, wanted: Collection[str], *, sync: bool, quiet: bool, as_json: bool, ready: bool
) -> int:
    """Start these tasks (ids) of `session` in a session of their own beside it; the exit code of that.

    Raises:
        InputError: they cannot run any more; nothing was created.
    """
    import os

    from sessionrun.agents import table
    from sessionrun.cli.render import escape_line, warn
    from sessionrun.cli.run import Launch, start_session
    from sessionrun.client.config import load_config
    from sessionrun.client.renewal import renew_spec
    from sessionrun.client.view import fold_journal

    # broken settings stop this launch, too, though it needs none
    load_config(Path.cwd(), os.environ, table.BUILTIN)
    state, _ = fold_journal(session)
    spec, remark = renew_spec(session.load_spec(), wanted, state.tasks)
    if remark:
        warn(remark)
    if not quiet:
        click.echo(f"agent: {escape_line(spec.agent)} (as in session {session.session_id})", err=True)
    return start_session(
        spec, Launch(session.path.parent, as_json=as_json, quiet=quiet, verbose=False, sync=sync, ready=ready)
    )


def choose_retried(target: Target, outcomes: tuple[str, ...]) -> list[str]:
    """The ids of the tasks that would be tried again as things stand, those that come along included.

    Raises:
        InputError: a task was named that cannot be tried again.
    """
    from sessionrun.engine.requests import find_dependents

    by_id = {task["id"]: task for task in target.view["tasks"]}
    if target.named and (good := next((task for task in target.tasks if task["outcome"] == "succeeded"), None)):
        raise InputError(f"task {good['id']!r} succeeded and is not tried again; leave it out")
    chosen = [task["id"] for task in target.tasks if task["outcome"] in (outcomes or _NOT_GOOD)]
    skipped = {task["id"]: task["needs"] for task in by_id.values() if task["reason_class"] == "need"}

    def is_hopeless(name: str) -> bool:
        return name not in by_id or by_id[name]["outcome"] not in (None, "succeeded")

    opened = [*dict.fromkeys(chosen), *find_dependents(chosen, skipped, is_hopeless)]
    for name in chosen:
        for need in by_id[name]["needs"]:
            if need not in opened and is_hopeless(need):
                raise InputError(f"task {name!r} needs {need!r}, which did not succeed: name that one too")
    return sorted(opened, key=lambda name: int(by_id[name]["num"]))


_NOT_GOOD = ("failed", "timed_out", "lost", "interrupted", "cancelled", "skipped")


def _outcomes(target: Target, *, failed: bool, lost: bool) -> tuple[str, ...]:
    """The outcomes to choose by; none: any but success, of the tasks that are named."""
    from sessionrun.model.spec import RETRY_FAILED, RETRY_LOST

    if not failed and not lost:
        failed = lost = not target.named
    return (*(RETRY_FAILED if failed else ()), *(RETRY_LOST if lost else ()))


def _tell_nothing(target: Target, *, quiet: bool, as_json: bool) -> int:
    if as_json:
        print_json({**target.view, "tasks": []})
    elif not quiet:
        click.echo(f"Session: {target.view['session_id']}: nothing to retry")
    return 0


def _tell(target: Target, chosen: list[str], *, taken: bool, quiet: bool, as_json: bool) -> None:
    view, _ = target.reload()
    before = {task["id"]: task["attempt"] for task in target.view["tasks"]}
    now: list[dict[str, Any]] = [task for task in view["tasks"] if task["id"] in set(chosen)]
    if as_json:
        print_json({**view, "tasks": now})
    elif quiet:
        click.echo(view["session_id"])
    else:
        again = _count_retried(now, before)
        said = count_words(((again, "to be tried again"),)) or "nothing was left to retry"
        click.echo(f"Session: {view['session_id']}: {said if taken else NOT_TAKEN}")


def _count_retried(now: list[dict[str, Any]], before: dict[str, int]) -> int:
    """How many were taken: a task that was skipped once more looks as before, but came along with the others."""
    tried = sum(task["attempt"] > before[task["id"]] or task["status"] != "completed" for task in now)
    skipped = sum(task["outcome"] == "skipped" and task["attempt"] == before[task["id"]] for task in now)
    return tried + skipped if tried else 0

"""`retry`: try tasks again that did not succeed, in the same session or in a new one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sessionrun.cli.control import ask_each, control_options, tell_effect, tell_reply
from sessionrun.cli.options import (
    json_option,
    quiet_option,
    results_dir_option,
    sync_option,
)
from sessionrun.cli.render import print_json, session_head
from sessionrun.cli.selecting import make_wanted
from sessionrun.client.asking.control import Reply, Retried, choose_retried, retry
from sessionrun.client.reading.selection import choose_sessions
from sessionrun.client.reading.view import load_view
from sessionrun.model.errors import InputError
from sessionrun.store.session import SessionDir

if TYPE_CHECKING:
    from sessionrun.cli.run import Launch
    from sessionrun.client.asking.changing import AskedChange


@click.command("retry")
@control_options
@click.option("--failed", is_flag=True, help="Only tasks that failed or timed out.")
@click.option("--lost", is_flag=True, help="Only tasks that were lost or interrupted; with --failed: either.")
@click.option("--new", is_flag=True, help="Try them in a new session, and print its id as `run` does.")
@click.option(
    "--no-ready",
    is_flag=True,
    help="With --new or another agent: do not check first whether agents are signed in and ready.",
)
@click.option("--agent", metavar="NAME", help="Try them with this agent.")
@click.option("--model", metavar="NAME", help="Try them with this model, as the agent CLI spells it.")
@click.option("--prompt", metavar="TEXT", help="Try the task with this prompt instead of its own.")
@sync_option
@quiet_option
@json_option
@results_dir_option
def command(
    words: tuple[str, ...],
    labels: tuple[tuple[str, str], ...],
    states: tuple[str, ...] | None,
    since: float | None,
    timeout: float,
    failed: bool,
    lost: bool,
    new: bool,
    no_ready: bool,
    agent: str | None,
    model: str | None,
    prompt: str | None,
    sync: bool,
    quiet: bool,
    as_json: bool,
    results_dir: Path | None,
) -> int:
    """Try tasks of sessions again: by default all that failed, timed out, were lost or interrupted.

    Named tasks may also have been cancelled or skipped.  Tasks that were skipped because of those that are
    tried again come along.  Another agent, model or prompt is not for these.
    """
    if no_ready and not (new or agent or model):
        raise InputError(
            "--no-ready has no effect without --new: the session's own agents are not asked; leave it out"
        )
    asked = _settle_asked(agent, model, prompt)
    ask = partial(retry, failed=failed, lost=lost, asked=asked, ready=not no_ready, timeout_s=timeout)
    selected = choose_sessions(results_dir, words, make_wanted(labels, states, since))
    if selected.several:
        if new or sync:
            raise InputError("retry: --new and --sync are about one session: name it by its ID, without selectors")

        def describe(reply: Reply) -> str:
            if quiet:
                return reply.view["session_id"] if reply.before else ""
            return tell_effect(reply, _describe(reply) if reply.before else "nothing to retry")

        return ask_each(selected, ask, describe, waits=bool(timeout), as_json=as_json)
    session, tasks = selected.sessions[0], selected.tasks
    if new:
        retried = choose_retried(session, tasks, failed=failed, lost=lost)
        if retried.every:
            from sessionrun.cli.run import Launch

            how = Launch(session.path.parent, as_json, quiet, verbose=False, sync=sync, ready=not no_ready)
            return _start_renewed(session, retried, asked, how)
        return _tell_nothing(load_view(session), quiet=quiet, as_json=as_json)
    reply = ask(session, tasks)
    if not reply.before:
        return _tell_nothing(reply.view, quiet=quiet, as_json=as_json)
    if reply.taken and sync:
        from sessionrun.cli.sync import follow_run

        return follow_run(session, as_json=as_json, quiet=quiet)
    return tell_reply(reply, _describe(reply), as_json=as_json, quiet=quiet, waits=bool(timeout))


def _settle_asked(*words: str | None) -> AskedChange | None:
    if words == (None, None, None):
        return None
    from sessionrun.client.asking.changing import AskedChange

    return AskedChange(*words)


def _start_renewed(session: SessionDir, retried: Retried, asked: AskedChange | None, how: Launch) -> int:
    """Start these tasks of `session` in a session of their own beside it; the exit code of that.

    Raises:
        InputError: they cannot run any more; nothing was created.
    """
    from sessionrun.cli.render import escape_line
    from sessionrun.cli.run import start_session
    from sessionrun.client.asking.renewal import renew

    spec = renew(session, retried.every, asked, retried.tried)
    if not how.quiet:
        why = "asked for" if asked is not None and asked.agent else f"as in session {session.session_id}"
        click.echo(f"agent: {escape_line(spec.agent)} ({why})", err=True)
    return start_session(spec, how)


def _tell_nothing(view: dict[str, Any], *, quiet: bool, as_json: bool) -> int:
    if as_json:
        print_json({**view, "tasks": []})
    elif not quiet:
        click.echo(f"{session_head(view)}: nothing to retry")
    return 0


def _describe(reply: Reply) -> str:
    again = _count_retried(reply.tasks, {task["id"]: task for task in reply.before})
    return f"retrying {again} task{'s' * (again != 1)}" if again else "nothing was left to retry"


def _count_retried(now: list[dict[str, Any]], before: dict[str, dict[str, Any]]) -> int:
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

"""`explain`: why a task does not run, or what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

from sessionrun.cli.attempts import name_agent
from sessionrun.cli.contact import contact_lines
from sessionrun.cli.feeding import feed_lines
from sessionrun.cli.options import json_option, place_lines, results_dir_option
from sessionrun.cli.render import (
    duration,
    escape_line,
    landing_lines,
    local_time,
    print_json,
    proof_lines,
    session_word,
    task_word,
    telling_lines,
)
from sessionrun.cli.selecting import each_session, words_argument
from sessionrun.store.session import SessionDir

_CAUSE_WORDS: Final = {
    "token": "waiting for a slot or resource",
    "hold": "held",
    "budget": "waiting for money",
    "backoff": "waiting to be tried again",
    "need": "waiting for another task",
    "no_process": "without a process of the session",
}
_SHOWN_HOSTS: Final = 8
_SHOWN: Final = 200
"""How much of a follow-up is shown (characters)."""


@click.command("explain")
@words_argument
@json_option
@results_dir_option
@each_session()
def command(session: SessionDir, tasks: tuple[str, ...], *, as_json: bool) -> None:
    """Say why tasks of session ID do not run, or what became of them.

    Without TASK: which process runs the session, what holds it, and each task that has not ended, by cause.  With
    TASK: the whole story of that task.
    """
    from sessionrun.client.explaining.grounds import explain

    explanation = explain(session, tasks)
    if as_json:
        print_json(explanation)
        return
    head, *rest = _tell_session(explanation)
    lines = [
        head,
        *place_lines(explanation),
        *rest,
        *(_tell_tasks(session, explanation) if tasks else _list_tasks(explanation)),
    ]
    click.echo("\n".join(lines))


def _word_cause(cause: str) -> str:
    """A cause for people; JSON has the word itself."""
    return _CAUSE_WORDS.get(cause, cause.replace("_", " "))


def _tell_session(explanation: dict[str, Any]) -> Iterator[str]:
    from sessionrun.client.explaining.grounds import describe_rest

    yield f"Session: {explanation['session_id']}"
    yield f"Status: {session_word(explanation)}"
    supervisor = (explanation["processes"] or {}).get("supervisor")
    if explanation["ended_at"] is not None:
        yield f"Ended: {local_time(explanation['ended_at'])}"
    elif explanation["resume"]:
        yield f"No process runs it.  To go on with it: {explanation['resume']}"
    elif explanation["damage"] and explanation["status"] == "interrupted":
        yield escape_line(f"No process runs it, and it cannot go on: {explanation['damage']}")
        yield f"What is left: {describe_rest(explanation)}"
    elif supervisor:
        yield f"Run by: process {supervisor['pid']}, supervisor number {explanation['epoch']}"
    yield from contact_lines(explanation)
    for name in explanation["stopped"]:
        pid = (explanation["processes"] or {})[name]["pid"]
        yield f"Stopped: its {name}, process {pid}.  To let it go on: kill -CONT {pid}"
    for hold in () if explanation["ended_at"] else explanation["holds"]:
        until = f" until {local_time(hold['until'])}" if hold["until"] else ""
        yield escape_line(f"Held: {hold['resource']}{until}: {hold['reason']}")
    yield from feed_lines(explanation)
    yield f"Tasks: {explanation['total']}: " + ", ".join(
        f"{count} {_word_cause(cause)}" for cause, count in explanation["causes"].items()
    )
    if explanation["landings"]:
        yield "Landing: " + ", ".join(f"{count} {status}" for status, count in explanation["landings"].items())


def _tell_denied(denied: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The hosts that tasks were denied, one line for each, in the whole session."""
    hosts: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for found in denied:
        hosts.setdefault((found["host"], found["port"]), []).append(found)
    for found_of in list(hosts.values())[:_SHOWN_HOSTS]:
        tasks = ", ".join(found["task"] for found in found_of[:_SHOWN_HOSTS])
        yield escape_line(f"Network: {_word_denied(found_of)}, asked for by {tasks}")
    if len(hosts) > _SHOWN_HOSTS:
        yield f"Network: denied {len(hosts) - _SHOWN_HOSTS} other hosts"


def _word_denied(found_of: Sequence[Mapping[str, Any]]) -> str:
    """That a host was denied."""
    host, port = found_of[0]["host"], found_of[0]["port"]
    named = host if port in (0, 80, 443) else f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    count = sum(found["count"] for found in found_of)
    return f"denied {named} ({count} time{'s' if count != 1 else ''})"


def _list_tasks(explanation: Mapping[str, Any]) -> Iterator[str]:
    from sessionrun.client.explaining.explanation import CAUSES

    yield from _tell_denied(explanation["denied"])
    for cause in CAUSES:
        tasks = [task for task in explanation["tasks"] if task["cause"] == cause]
        if tasks:
            yield f"\n{_word_cause(cause)}:"
        for task in tasks:
            yield f"  Task {task['num']} (ID: {task['id']}): {escape_line(task['why'])}"
            if cause == "no_process" and task["status"] == "running":
                yield f"    process group {task['pid']}; to stop it: kill -TERM -{task['pid']}"


def _tell_tasks(session: SessionDir, explanation: Mapping[str, Any]) -> Iterator[str]:
    from sessionrun.cli.standing import whereabouts_lines

    for task in explanation["tasks"]:
        yield f"\nTask {task['num']} (ID: {task['id']}): {task_word(task)}"
        cause, why = _word_cause(task["cause"]), escape_line(task["why"])
        yield f"  {why if why.startswith(f'{cause}: ') else f'{cause}: {why}'}"
        yield from telling_lines(task, "  ")
        yield from proof_lines(task, "  ", notes=True)
        if task["follow_up"] is not None:
            asked = " ".join(task["follow_up"].split())
            yield f"  last follow-up: {escape_line(asked[:_SHOWN] + (' ...' if len(asked) > _SHOWN else ''))}"
        yield from landing_lines(task, "  ")
        yield from whereabouts_lines(task, "  ")
        for found in explanation["denied"]:
            if found["task"] != task["id"]:
                continue
            yield "  " + escape_line(f"network: {_word_denied([found])}: {found['why']}")
        for need in task["needs"]:
            yield f"  needs {need['id']}: {need['outcome'] or need['status'] or 'no such task'}"
        for token in task["tokens"][1:]:
            yield f"  also lacks: {token['resource']}, held by {', '.join(token['holders'])}"
        for attempt in task["attempts"]:
            several = len({(one["agent"], one["model"]) for one in task["attempts"]}) > 1
            yield from _tell_attempt(attempt, name_agent(attempt) if several else "")
        for name in (task["output"], task["stderr"]):
            if (session.path / name).exists():
                yield "  file: " + escape_line(str(session.path.absolute() / name))


def _tell_attempt(attempt: Mapping[str, Any], agent: str) -> Iterator[str]:
    took = f" after {duration(attempt['duration_s'])}" if attempt["duration_s"] is not None else ""
    why = f": {attempt['reason']}" if attempt["reason"] else ""
    named = f"attempt {attempt['attempt']}{f' ({agent})' if agent else ''}"
    outcome = str(attempt["outcome"] or "not ended").replace("_", " ")
    yield "  " + escape_line(f"{named}: {outcome}{took}{why}")
    for job in attempt["jobs"]:
        explained = job["timer"] or job["signal"] or job["reason"] in (None, attempt["reason"])
        yield "    " + escape_line(", ".join(_tell_job(job)) + ("" if explained else f": {job['reason']}"))


def _tell_job(job: Mapping[str, Any]) -> Iterator[str]:
    start = f", start {job['start']}" if job["start"] > 1 else ""
    yield f"{job['phase']} (round {job['round']}{start}): {job['verdict'] or 'no end is recorded'}"
    if job["duration_s"] is not None:
        yield duration(job["duration_s"])
    if job["timer"]:
        yield f"stopped by {job['timer']}"
    if job["exit_code"] is not None and job["phase"] == "work":  # of others it is our program's, and means nothing
        yield f"exit code {job['exit_code']}"
    if job["signal"] is not None:
        yield f"signal {job['signal']}"
    if job["node"] is not None:  # the ledger of its node is there
        yield f"on node {job['node']}" if job["started_at"] is not None else f"for {job['node']}"
    elif job["verdict"] in (None, "lost", "interrupted", "void"):
        yield _tell_ledger(job["ledger"])


def _tell_ledger(ledger: Mapping[str, Any] | None) -> str:
    """What is known of a process whose end was not recorded as usual."""
    if ledger is None:
        return "the ledger has no claim of it: it never ran"
    if not ledger["tried"]:
        return "claimed, but its start was never tried: it never ran"
    if ledger["errno"] is not None:
        return f"could not be started (errno {ledger['errno']})"
    if ledger["pid"] is None:
        return "its start was tried, and no process of it was recorded"
    if ledger["wait_status"] is not None:
        return f"process {ledger['pid']}, wait status {ledger['wait_status']}"
    words = {True: "still alive", False: "gone", None: "cannot be seen from here"}
    return f"process {ledger['pid']}, no exit recorded, {words[ledger['alive']]}"

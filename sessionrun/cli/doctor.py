"""`doctor`: look sessions and the environment over, and repair what can be repaired without risk."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sessionrun.cli.options import json_option, results_dir_option
from sessionrun.cli.render import escape_line, print_json
from sessionrun.client.lookup import find_results_dir, open_session
from sessionrun.model.errors import InputError
from sessionrun.store.session import SessionDir, iterate_sessions

if TYPE_CHECKING:
    from sessionrun.client.doctor.finding import Finding
    from sessionrun.client.leftovers import Living

EXIT_FOUND: Final = 1
AGENTS: Final = "agents"
"""Asks for a report on agents; no session is called so, or begins so: an id is hexadecimal."""


@click.command("doctor")
@click.argument("session_id", metavar="[ID | agents]", required=False)
@click.option("--fix", is_flag=True, help="Repair what can be repaired without risk.")
@json_option
@results_dir_option
def command(session_id: str | None, fix: bool, as_json: bool, results_dir: Path | None) -> int:
    """Look session ID over or, without ID, the environment and every session here.

    Each finding comes with what helps.  --fix makes status.json and summary anew from the logs, cuts torn tails
    of logs, removes stale temporary files, restores the FIFO and tightens modes, of sessions that nobody runs;
    it kills nothing and touches no damaged log.  Exit code 1: findings remain.

    `doctor agents` looks the agent CLIs over: version, signed in, ready.  Exit code 1: none could start.
    """
    if session_id == AGENTS:
        return _report_agents(fix=fix, as_json=as_json)
    from sessionrun.client.leftovers import find_marked

    folder = find_results_dir(results_dir)
    sessions = [open_session(results_dir, session_id)] if session_id else sorted_sessions(folder)
    records = [] if session_id else _check_environment(folder, fix=fix)
    marked = find_marked()
    for session in sessions:
        records += _check_session(session, marked.get(session.session_id, []), fix=fix)
    remaining = sum(not record["fixed"] for record in records)
    if as_json:
        print_json({"findings": records, "sessions": len(sessions), "remaining": remaining})
    else:
        _print(records, sessions=len(sessions), remaining=remaining)
    return EXIT_FOUND if remaining else 0


def _report_agents(*, fix: bool, as_json: bool) -> int:
    from sessionrun.cli.agents import report_agents

    if fix:
        raise InputError("--fix repairs sessions and the environment; there is nothing of agents that it could")
    return 0 if report_agents(as_json=as_json) else EXIT_FOUND


def sorted_sessions(folder: Path) -> list[SessionDir]:
    """The sessions of a results directory, always in the same order."""
    return sorted(iterate_sessions(folder), key=lambda session: session.session_id)


def _check_environment(folder: Path, *, fix: bool) -> list[dict[str, Any]]:
    from sessionrun.client.doctor.checks import apply_fixes, examine_environment

    found = examine_environment(folder)
    fixed = apply_fixes(found) if fix else []
    left = examine_environment(folder) if fixed else found
    return [*_describe(None, fixed, fixed=True), *_describe(None, left, fixed=False)]


def _check_session(session: SessionDir, marked: list[Living], *, fix: bool) -> list[dict[str, Any]]:
    from sessionrun.client.doctor.checks import examine, repair

    found = examine(session, marked)
    fixed = repair(session, marked) if fix and any(finding.fix for finding in found) else []
    is_gone = not session.path.exists()  # it never began
    left = [] if is_gone else examine(session, marked) if fixed else found
    name = session.session_id
    return [*_describe(name, fixed, fixed=True), *_describe(name, left, fixed=False)]


def _describe(session_id: str | None, findings: Iterable[Finding], *, fixed: bool) -> list[dict[str, Any]]:
    return [
        {
            "session_id": session_id,
            "check": one.check,
            "severity": one.severity,
            "where": one.where,
            "what": one.what,
            "plan": one.plan,
            "fixable": one.fix is not None,
            "fixed": fixed,
        }
        for one in findings
    ]


def _print(records: list[dict[str, Any]], *, sessions: int, remaining: int) -> None:
    for record in records:
        word = "fixed" if record["fixed"] else record["severity"]
        click.echo(escape_line(f"{word}: {record['where']}: {record['what']}"))
        if not record["fixed"]:
            click.echo(f"  {escape_line(record['plan'])}")
    looked = f"{sessions} session{'s' * (sessions != 1)} looked at"
    fixable = [record for record in records if record["fixable"] and not record["fixed"]]
    if not remaining:
        click.echo(f"Nothing is wrong; {looked}.")
    else:
        hint = f"; {shlex.join(['sessionrun', 'doctor', '--fix'])} repairs {len(fixable)}" if fixable else ""
        click.echo(f"{remaining} finding{'s' * (remaining != 1)}; {looked}{hint}.")

"""`doctor`: look sessions and the environment over, and repair what can be repaired without risk."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sessionrun.cli.options import flag, verb
from sessionrun.cli.render import escape_line, print_json, print_table
from sessionrun.model.errors import InputError

if TYPE_CHECKING:
    from sessionrun.client.installed import Examined

EXIT_FOUND: Final = 1
AGENTS: Final = "agents"
"""Asks for a report on agents; no session is called so, or begins so: an id is hexadecimal."""

_WORDS: Final = {True: "yes", False: "no", None: "-"}


@verb("doctor")
@click.argument("session_id", metavar="[ID | agents]", required=False)
@flag("--fix", "Repair what can be repaired without risk.")
def command(session_id: str | None, fix: bool, as_json: bool, results_dir: Path | None) -> int:
    """Look session ID over or, without ID, the environment and every session here.

    Each finding comes with what helps.  --fix makes status.json and summary anew from the logs, cuts torn tails
    of logs and removes stale temporary files, of sessions that no process runs; it kills nothing and touches no
    damaged log.  Exit code 1: findings remain.

    `doctor agents` looks the agent CLIs over: version, signed in, ready.  Exit code 1: none could start.
    """
    if session_id == AGENTS:
        if fix:
            raise InputError("--fix repairs sessions and the environment, not agents")
        return 0 if _report_agents(as_json=as_json) else EXIT_FOUND
    from sessionrun.client.doctor.report import diagnose

    records, sessions, remaining = diagnose(session_id, results_dir=results_dir, fix=fix)
    if as_json:
        print_json({"findings": records, "session_count": sessions, "remaining": remaining})
    else:
        _print(records, sessions=sessions, remaining=remaining)
    return EXIT_FOUND if remaining else 0


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


def _report_agents(*, as_json: bool) -> bool:
    """Print what `doctor agents` finds; whether an agent other than `shell` could start."""
    from sessionrun.client.findings import load_findings
    from sessionrun.client.installed import examine_agents, list_not_passed_on

    agents, dropped = examine_agents(), list_not_passed_on()
    machine = {name: look() for business in load_findings() for name, look in business.machine.items()}
    if as_json:
        described = [_describe(agent) for agent in agents]
        shown = {name: facts for name, (facts, _) in machine.items()}
        print_json({"agents": described, "not_passed_on": dropped, **shown})
    else:
        _print_report(agents)
        if dropped:
            click.echo(f"not passed on: {', '.join(dropped)}: state of the agent session that runs this shell")
        for name, (_, line) in machine.items():
            click.echo(escape_line(f"{name}: {line}"))
    return any(agent.startable for agent in agents if agent.signed_in != "not needed")


def _describe(agent: Examined) -> dict[str, Any]:
    """One agent for programs: `signed_in` is null where that cannot be told, or is not needed."""
    from dataclasses import asdict

    needs, known = agent.signed_in != "not needed", {"yes": True, "no": False}
    return {
        **asdict(agent),
        "signed_in": known.get(agent.signed_in),
        "needs_sign_in": needs,
        "startable": agent.startable,
    }


def _print_report(agents: list[Examined]) -> None:
    heads = ("AGENT", "PROVIDER", "VERSION", "KNOWN", "SIGNED IN", "READY", "PROGRAM")
    rows = [
        (
            agent.name,
            agent.provider,
            agent.version or "-",
            _WORDS[agent.known],
            agent.signed_in,
            _WORDS[agent.ready],
            agent.path,
        )
        for agent in agents
        if agent.path is not None
    ]
    print_table(heads, rows)
    hints = [f"{agent.name}: {agent.hint}" for agent in agents if agent.hint]
    for line in ["", *hints] if hints else ():
        click.echo(escape_line(line))

"""`doctor`: look sessions and the environment over, and repair what can be repaired without risk."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Final

import click

from sessionrun.cli.options import json_option, results_dir_option
from sessionrun.cli.render import escape_line, print_json
from sessionrun.model.errors import InputError

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
    of logs, removes stale temporary files, restores the FIFO and tightens modes, of sessions that no process
    runs; it kills nothing and touches no damaged log.  Exit code 1: findings remain.

    `doctor agents` looks the agent CLIs over: version, signed in, ready.  Exit code 1: none could start.
    """
    if session_id == AGENTS:
        from sessionrun.cli.agents import report_agents

        if fix:
            raise InputError("--fix repairs sessions and the environment, not agents")
        return 0 if report_agents(as_json=as_json) else EXIT_FOUND
    from sessionrun.client.doctor.report import diagnose

    records, sessions, remaining, clusters = diagnose(session_id, results_dir=results_dir, fix=fix)
    if as_json:
        record = {"findings": records, "session_count": sessions, "remaining": remaining, "clusters": clusters}
        print_json(record)
    else:
        _print_clusters(clusters)
        _print(records, sessions=sessions, remaining=remaining)
    return EXIT_FOUND if remaining else 0


def _print_clusters(clusters: list[dict[str, Any]]) -> None:
    for cluster in clusters:
        named = ["the configuration"] if cluster["configured"] else []
        named += [f"session {session_id}" for session_id in cluster["session_ids"]]
        if not cluster["answers"]:
            click.echo(f"cluster {cluster['address']} (named by {', '.join(named)}) does not answer")
            continue
        nodes = [node for node in cluster["nodes"] if node["lives"]]
        used, slots = (sum(node[key] for node in nodes) for key in ("used", "slots"))
        leases = [node["lease_s"] for node in nodes if node["lease_s"] is not None]
        least = f", least lease left {min(leases):.0f} s" if leases else ""
        words = f"{len(nodes)} of {len(cluster['nodes'])} nodes up, {used} of {slots} slots in use{least}"
        click.echo(escape_line(f"cluster {cluster['address']} (named by {', '.join(named)}): {words}"))


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

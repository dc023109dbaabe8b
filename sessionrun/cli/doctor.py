"""`doctor`: look sessions and the environment over, and repair what can be repaired without risk."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from sessionrun.cli.options import Answer, flag, verb
from sessionrun.cli.render import escape_line, table_lines
from sessionrun.house import HOUSE, load
from sessionrun.model.errors import InputError

EXIT_FOUND: Final = 1
_WORDS: Final = {True: "yes", False: "no", None: "-"}


@verb("doctor")
@click.argument("session_id", metavar="[ID | agents]", required=False)
@flag("--fix", "Repair what can be repaired without risk.")
def command(session_id: str | None, fix: bool, results_dir: Path | None) -> Answer:
    """Look session ID over or, without ID, the environment and every session here.

    Each finding comes with what helps.  --fix makes status.json and summary anew from the logs, cuts torn tails
    of logs and removes stale temporary files, of sessions that no process runs; it kills nothing and touches no
    damaged log.  Exit code 1: findings remain.

    `doctor agents` looks the agent CLIs over: version, signed in, ready.  Exit code 1: none could start.
    """
    if session_id == "agents":  # no session begins so: an id is hexadecimal
        if fix:
            raise InputError("--fix repairs sessions and the environment, not agents")
        return _report_agents()
    from sessionrun.client.doctor import diagnose

    found = diagnose(session_id, results_dir=results_dir, fix=fix)
    records, sessions, remaining = found["findings"], found["session_count"], found["remaining"]
    lines = []
    for record in records:
        word = "fixed" if record["fixed"] else record["severity"]
        lines.append(escape_line(f"{word}: {record['where']}: {record['what']}"))
        lines += [] if record["fixed"] else [f"  {escape_line(record['plan'])}"]
    looked = f"{sessions} session{'s' * (sessions != 1)} looked at"
    fixable = [record for record in records if record["fixable"] and not record["fixed"]]
    hint = f"; sessionrun doctor --fix repairs {len(fixable)}" if fixable else ""
    counted = f"{remaining} finding{'s' * (remaining != 1)}; {looked}{hint}."
    lines.append(counted if remaining else f"Nothing is wrong; {looked}.")
    return Answer(found, lines, EXIT_FOUND if remaining else 0)


def _report_agents() -> Answer:
    """What `doctor agents` finds: all is well if an agent other than `shell` could start."""
    from dataclasses import asdict

    from sessionrun.client.installation import examine_agents

    agents, dropped = examine_agents()
    machine = {business.name: load(business.machine)() for business in HOUSE if business.machine}
    signed_in = {"yes": True, "no": False}  # null where that cannot be known, or is not needed
    record = {
        "agents": [
            {
                **asdict(agent),
                "signed_in": signed_in.get(agent.signed_in),
                "needs_sign_in": agent.signed_in != "not needed",
                "startable": agent.startable,
            }
            for agent in agents
        ],
        "not_passed_on": dropped,
        **{name: facts for name, (facts, _) in machine.items()},
    }
    heads = ("AGENT", "PROVIDER", "VERSION", "KNOWN", "SIGNED IN", "READY", "PROGRAM")
    rows = [
        (one.name, one.provider, one.version or "-", _WORDS[one.known], one.signed_in, _WORDS[one.ready], one.path)
        for one in agents
        if one.path is not None
    ]
    hints = [escape_line(f"{agent.name}: {agent.hint}") for agent in agents if agent.hint]
    lines = [*table_lines(heads, rows), *([""] if hints else []), *hints]
    if dropped:
        lines.append(f"not passed on: {', '.join(dropped)}: state of the agent session that runs this shell")
    lines += [escape_line(f"{name}: {line}") for name, (_, line) in machine.items()]
    is_good = any(agent.startable for agent in agents if agent.signed_in != "not needed")
    return Answer(record, lines, 0 if is_good else EXIT_FOUND)

"""`agents`: which agent CLIs are installed, and in which version; and the report of `doctor agents`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from sessionrun.cli.options import json_option
from sessionrun.cli.render import escape_line, print_json, print_table
from sessionrun.client.installed import examine_agents, list_agents, list_not_passed_on

if TYPE_CHECKING:
    from sessionrun.client.doctor.programs import Examined
    from sessionrun.client.planning.sandboxing import WallsHere

_WORDS: Final = {True: "yes", False: "no", None: "-"}


@click.command("agents")
@json_option
def command(as_json: bool) -> None:
    """List the agents that are known here, built in or from your configuration."""
    records = list_agents()
    if as_json:
        print_json({"agents": records})
        return
    rows = [(r["name"], r["version"] or "-" if r["path"] else "not found", r["path"] or "") for r in records]
    print_table(("AGENT", "VERSION", "PROGRAM"), rows)


def report_agents(*, as_json: bool) -> bool:
    """Print what `doctor agents` finds; whether an agent other than `shell` could start."""
    from sessionrun.client.planning.sandboxing import examine_walls

    agents, walls, dropped = examine_agents(), examine_walls(), list_not_passed_on()
    if as_json:
        described = [_describe(agent) for agent in agents]
        print_json({"agents": described, "not_passed_on": dropped, "walls": walls._asdict()})
    else:
        _print_report(agents)
        if dropped:
            click.echo(f"not passed on: {', '.join(dropped)}: state of the agent session that runs this shell")
        click.echo(escape_line(f"walls: {_word_walls(walls)}"))
    return any(agent.startable for agent in agents if agent.signed_in != "not needed")


def _word_walls(walls: WallsHere) -> str:
    """In one line whether tasks can have walls here."""
    if walls.project is not None:
        return walls.project
    strict = "" if walls.strict is None else f"; not strict: {walls.strict}"
    keys = "" if walls.keys is None else f"; {walls.keys}"
    return f"bubblewrap {walls.version} can build them (run --sandbox project){strict}{keys}"


def _describe(agent: Examined) -> dict[str, Any]:
    """One agent for programs: `signed_in` is null where that cannot be told, or is not needed."""
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

"""`agents`: which agent CLIs are installed, and in which version; and the report of `doctor agents`."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sessionrun.cli.options import json_option
from sessionrun.cli.render import escape_line, print_json, print_table, warn
from sessionrun.model.errors import InputError

if TYPE_CHECKING:
    from sessionrun.client.config import Config
    from sessionrun.client.doctor.programs import Examined

VERSION_TIMEOUT_S: Final = 15.0
_WORDS: Final = {True: "yes", False: "no", None: "-"}


@click.command("agents")
@json_option
@click.option(
    "--results-dir", hidden=True, expose_value=False, help="Accepted like everywhere; means nothing here."
)
def command(as_json: bool) -> None:
    """List the agents that are known here, built in or from your configuration."""
    records = list_agents()
    if as_json:
        print_json(records)
        return
    rows = [(r["name"], r["version"] or "-" if r["path"] else "not found", r["path"] or "") for r in records]
    print_table(("AGENT", "VERSION", "PROGRAM"), rows)


def list_agents() -> list[dict[str, Any]]:
    """All known agents with their program and its version; the versions are asked for side by side."""
    from sessionrun.agents import table
    from sessionrun.agents.probing import find_versions

    known = _load().agents
    path = os.environ.get("PATH")
    programs = {name: table.find_program(agent, path) for name, agent in known.items()}
    there = {name: program for name, program in programs.items() if program}
    versions = find_versions(known, there, timeout_s=VERSION_TIMEOUT_S)
    return [
        {
            "name": name,
            "path": programs[name],
            "version": versions.get(name),
            "builtin": name in table.BUILTIN,
            "output": agent.output,
        }
        for name, agent in known.items()
    ]


def report_agents(*, as_json: bool) -> bool:
    """Print what `doctor agents` finds; whether an agent other than `shell` could start."""
    from sessionrun.client.doctor.programs import Host, examine_agents

    config = _load()
    approve = True if config.approve is None else config.approve
    found = examine_agents(config.agents, Host(approve, os.geteuid(), os.environ, sys.platform))
    if as_json:
        print_json([{**asdict(one), "startable": one.startable} for one in found])
    else:
        _print_report(found)
    return any(one.startable for one in found if one.signed_in != "not needed")


def _print_report(found: list[Examined]) -> None:
    heads = ("AGENT", "PROVIDER", "VERSION", "KNOWN", "SIGNED IN", "READY", "PROGRAM")
    rows = [
        (one.name, one.provider, one.version or "-", _WORDS[one.known], one.signed_in, _WORDS[one.ready], one.path)
        for one in found
        if one.path is not None
    ]
    print_table(heads, rows)
    hints = [f"{one.name}: {one.hint}" for one in found if one.hint]
    for line in ["", *hints] if hints else ():
        click.echo(escape_line(line))


def _load() -> Config:
    """The configuration, or where it is broken that of a fresh installation."""
    from sessionrun.agents import table
    from sessionrun.client.config import Config, load_config

    try:
        return load_config(Path.cwd(), os.environ, table.BUILTIN)
    except InputError as error:
        warn(f"{error} (only built-in agents are shown)")
        return Config(agents=table.BUILTIN)

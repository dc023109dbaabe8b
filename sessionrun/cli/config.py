"""`config`: the settings in use, and where each is written; `schema`: what plans and outputs look like."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import click

from sessionrun.cli.options import Answer, flag, json_option, verb
from sessionrun.cli.render import encode, table_lines, tell_value, write_bytes
from sessionrun.client.schemas import NAMES, describe
from sessionrun.model.asked import Sandbox


@verb("config", json_option)
@flag("--origin", "Also say where each setting is written.")
def command(origin: bool) -> Answer:
    """Show the settings of configuration files and environment that are in use here.

    Options of a command, and what its input says, win over them.
    """
    from sessionrun.input.config import DEFAULT, trace_settings

    settings = []
    for one in trace_settings(Path.cwd(), os.environ):
        value = one.value
        if isinstance(value, Path):
            value = str(value)
        elif isinstance(value, Sandbox):  # as far as it says anything
            value = {key: part for key, part in asdict(value).items() if part not in (None, ())}
        settings.append({"name": one.name, "value": value, "origin": one.origin})
    shown = [one for one in settings if origin or one["origin"] != DEFAULT]
    rows = [
        (one["name"], "-" if one["value"] is None else tell_value(one["value"]), one["origin"]) for one in shown
    ]
    width = 3 if origin else 2
    lines = table_lines(("SETTING", "VALUE", "ORIGIN")[:width], [row[:width] for row in rows])
    return Answer({"settings": settings}, lines if shown else ["No setting differs from its default."])


@click.command("schema")
@click.argument("name", metavar="NAME", type=click.Choice(NAMES))
@json_option
def schema(name: str) -> None:
    """Print the JSON Schema of NAME: plan, status.json, summary, notification, error, or a verb that takes --json.

    For example: sessionrun schema plan, sessionrun schema results.  It is JSON with and without --json.
    """
    write_bytes(encode(describe(name)), b"\n")

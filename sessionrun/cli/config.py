"""`config`: the settings in use, and where each is written; `schema`: what plans and outputs look like."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import click

from sessionrun.cli.options import json_option
from sessionrun.cli.render import print_document, print_json, print_table, tell_value
from sessionrun.client.schemas.schemas import NAMES, describe


@click.command("config")
@click.option("--origin", is_flag=True, help="Also say where each setting is written.")
@json_option
def command(origin: bool, as_json: bool) -> None:
    """Show the settings of configuration files and environment that are in use here.

    Options of a command, and what its input says, win over them.
    """
    from sessionrun.client.config import DEFAULT, trace_settings

    settings = trace_settings(Path.cwd(), os.environ)
    if as_json:
        records = [{"name": one.name, "value": _plain(one.value), "origin": one.origin} for one in settings]
        print_json({"settings": records})
        return
    shown = [one for one in settings if origin or one.origin != DEFAULT]
    if not shown:
        click.echo("No setting differs from its default.")
        return
    rows = [
        (one.name, "-" if one.value is None else tell_value(_plain(one.value)), *((one.origin,) if origin else ()))
        for one in shown
    ]
    print_table(["SETTING", "VALUE", *(["ORIGIN"] if origin else [])], rows)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value


@click.command("schema")
@click.argument("name", metavar="NAME", type=click.Choice(NAMES))
@json_option
def schema(name: str, as_json: bool) -> None:
    """Print the JSON Schema of NAME: plan, status.json, summary, notification, error, or a verb that takes --json.

    For example: sessionrun schema plan, sessionrun schema results.  It is JSON with and without --json.
    """
    print_document(describe(name))


COMMANDS: Final = (command, schema)

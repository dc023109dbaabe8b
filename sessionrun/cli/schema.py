"""`schema`: the plan format and all output, for programs that write the one or read the other."""

from __future__ import annotations

import click

from sessionrun.cli.options import json_option
from sessionrun.client.schemas.describe import NAMES, describe


@click.command("schema")
@click.argument("name", metavar="NAME", type=click.Choice(NAMES))
@json_option
def command(name: str, as_json: bool) -> None:
    """Print the JSON Schema of NAME: plan, status.json, summary, notification, error, or a verb that takes --json.

    For example: sessionrun schema plan, sessionrun schema results.  It is JSON with and without --json.
    """
    from sessionrun.cli.render import print_document

    print_document(describe(name))

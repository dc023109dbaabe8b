"""`schema`: the plan format for programs that write or check plans."""

from __future__ import annotations

import click

from sessionrun.cli.options import json_option


@click.command("schema")
@click.argument("format_name", metavar="FORMAT", type=click.Choice(["plan"]))
@json_option
def command(format_name: str, as_json: bool) -> None:
    """Print the JSON Schema of FORMAT: plan.  It is JSON with and without --json."""
    from sessionrun.cli.render import print_document
    from sessionrun.dialects.schema import describe_plan

    print_document(describe_plan())

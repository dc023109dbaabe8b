"""`mcp`: sessions as tools for an agent that speaks the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path

import click

from sessionrun.cli.options import results_dir_option
from sessionrun.client.installation import lack


@click.command("mcp")
@results_dir_option
def command(results_dir: Path | None) -> None:
    """Serve sessions as tools to an agent that starts this command (MCP).  Needs the extra `mcp`."""
    try:
        from sessionrun.mcp.server import serve
    except ImportError as error:
        raise lack("mcp", error.name, "mcp") from None
    serve(results_dir)

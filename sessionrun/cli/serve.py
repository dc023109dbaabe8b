"""`serve`: sessions in a browser, as they go."""

from __future__ import annotations

from pathlib import Path

import click

from sessionrun.cli.options import results_dir_option
from sessionrun.cli.render import warn
from sessionrun.client.installation import lack
from sessionrun.client.lookup import find_results_dir


@click.command("serve")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="Where to listen; 0: a free one.  [default: 0]",
)
@click.option(
    "--host", default="127.0.0.1", metavar="ADDRESS", help="The address to listen at.  [default: 127.0.0.1]"
)
@click.option("--control", is_flag=True, help="Also buttons: cancel, hold, release, retry, land.")
@results_dir_option
def command(port: int, host: str, control: bool, results_dir: Path | None) -> None:
    """Show the sessions of the results directory to a browser until Ctrl-C: open the address that is printed.

    The address has a token, and so only its reader can see anything.
    Needs the extra `serve`: install sessionrun[serve].
    """
    try:
        from sessionrun.serve.server import serve
    except ImportError as error:
        raise lack("serve", error.name, "serve") from None

    def tell(address: str, is_open: bool) -> None:
        if is_open:
            warn(f"{host} can be asked from other machines, and what is sent is not encrypted")
        click.echo(address)

    serve(find_results_dir(results_dir).absolute(), host, port, control=control, tell=tell)

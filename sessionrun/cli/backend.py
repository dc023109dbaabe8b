"""The options of all verbs of the queue."""

from __future__ import annotations

import click

from sessionrun.cli.options import add_options, json_option
from sessionrun.queue.open import BACKEND_NAMES

backend_option = click.option(
    "--backend",
    type=click.Choice(BACKEND_NAMES),
    help="Where the queue is kept.  [default: the first of these that the repository has, else file]",
)

queue_options = add_options(json_option, backend_option)
"""`--backend` and `--json`."""

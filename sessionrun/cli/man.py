"""`man`: the manual, also where the program `man` does not look: installers of tools link no pages."""

from __future__ import annotations

import os
from importlib.metadata import distributions
from pathlib import Path

import click

from sessionrun.model.errors import InputError


@click.command("man")
@click.argument("page", required=False, metavar="[VERB|input|files]")
def command(page: str | None) -> None:
    """Show the manual of all of sessionrun, of a verb, of the formats of input, or of the files of a session."""
    name = f"sessionrun{f'-{page}' if page else ''}.{5 if page in ('input', 'files') else 1}"
    files = (file for one in distributions(name="sessionrun") for file in one.files or ())
    found = [Path(str(file.locate())).resolve() for file in files if file.name == name]
    if not found:
        raise InputError(
            f"{name}: this installation has no such page; there are those of all verbs, input and files"
        )
    try:
        os.execvp("man", ["man", str(found[0])])
    except OSError:
        raise InputError(f"the program `man` is not installed; the page is {found[0]}") from None

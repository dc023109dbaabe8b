"""How this package was installed: what its user types to run it, and to add an extra to it."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from sessionrun.model.errors import InputError


def lack(verb: str, library: str | None, extra: str) -> InputError:
    """The refusal of a verb whose library is not installed; it names the command that helps here."""
    return InputError(f"{verb}: {library} is not installed; {add_extra(extra, verb)}")


def add_extra(extra: str, verb: str) -> str:
    """The command that installs an extra; for what is never installed, the one that runs `verb` with it."""
    installer, wanted = find_installer(), shlex.quote(f"sessionrun[{extra}]{_find_source()}")
    if installer == "uvx":
        return f"uvx --from {wanted} sessionrun {verb}"
    if installer == "pipx run":
        return f"pipx run --spec {wanted} sessionrun {verb}"
    if installer == "uv tool":
        return f"uv tool install {wanted}"
    if installer == "pipx":
        return f"pipx install --force {wanted}"
    # What is installed satisfies these two, wherever it came from.  The `pip` on PATH may be another one's.
    if find_spec("pip") is None:
        return f"uv pip install --python {shlex.quote(sys.executable)} 'sessionrun[{extra}]'"
    return f"{shlex.quote(sys.executable)} -m pip install 'sessionrun[{extra}]'"


def name_command() -> str:
    """What the user types for `sessionrun`."""
    if (installer := find_installer()) in ("uvx", "pipx run"):
        return f"{installer} sessionrun"
    program = Path(sys.executable).with_name("sessionrun")
    return "sessionrun" if shutil.which("sessionrun") else shlex.quote(str(program))


def find_installer() -> str:
    """The program that made the environment, by what it leaves there: uvx, uv tool, pipx run, pipx; else pip."""
    prefix = Path(sys.prefix)
    if (prefix / "uv-receipt.toml").exists():
        return "uv tool"
    if (prefix / "pipx_metadata.json").exists():
        return "pipx" if prefix.parent.name == "venvs" else "pipx run"
    return "uvx" if (prefix / "CACHEDIR.TAG").exists() else "pip"  # the tag: it lies in the cache of uv


def _find_source() -> str:
    """Where the package came from if no index had it, as a requirement says it."""
    try:
        text = distribution("sessionrun").read_text("direct_url.json")
    except PackageNotFoundError:
        return ""
    origin = json.loads(text or "{}")
    git = origin.get("vcs_info")
    return f" @ git+{origin['url']}@{git['commit_id']}" if git else f" @ {origin['url']}" if origin else ""

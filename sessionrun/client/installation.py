"""What is installed: how we were, so what a user types to run us or to add an extra; agent CLIs; and the demo.

The demo is a repository and tasks for scripts in the place of agents; two of them say more than they did.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sessionrun.client.notices import notify
from sessionrun.model.errors import InputError

if TYPE_CHECKING:
    from sessionrun.agents.installed import Examined
    from sessionrun.input.config import Config

_ADDS: Final[Mapping[str, str]] = {
    "uvx": "uvx --from {wanted} sessionrun {verb}",
    "uv tool": "uv tool install {wanted}",
    "pipx": "pipx install --force {wanted}",
    # What is installed satisfies these two, wherever it came from.  The program on PATH may be another one's.
    "uv": "uv pip install --python {python} 'sessionrun[{extra}]'",
    "pip": "{python} -m pip install 'sessionrun[{extra}]'",
}
"""The command that adds an extra or, where nothing is installed for good, runs a verb with it."""

_MARKS: Final = {"pipx_metadata.json": "pipx", "uv-receipt.toml": "uv tool", "../../CACHEDIR.TAG": "uvx"}
"""The last one: the environment lies in the cache of uv.  It has such a file itself, as each that uv makes."""


def lack(verb: str, library: str | None, extra: str) -> InputError:
    """The refusal of a verb whose library is not installed; it names the command that helps here."""
    # where the package came from if no index had it, as a requirement says it
    texts = [one.read_text("direct_url.json") for one in distributions(name="sessionrun")]
    origin = json.loads((texts and texts[0]) or "{}")
    git = origin.get("vcs_info")
    source = f" @ git+{origin['url']}@{git['commit_id']}" if git else f" @ {origin['url']}" if origin else ""
    wanted, python = shlex.quote(f"sessionrun[{extra}]{source}"), shlex.quote(sys.executable)
    adds = _ADDS[find_installer()].format(wanted=wanted, verb=verb, extra=extra, python=python)
    return InputError(f"{verb}: {library} is not installed; {adds}")


def name_command() -> str:
    """What the user types for `sessionrun`."""
    if find_installer() == "uvx":
        return "uvx sessionrun"
    own = shlex.quote(str(Path(sys.executable).with_name("sessionrun")))
    return "sessionrun" if shutil.which("sessionrun") else own


def find_installer() -> str:
    """The tool that made the environment, a key of the table: each tool leaves a file there that tells."""
    found = (name for mark, name in _MARKS.items() if Path(sys.prefix, mark).exists())
    return next(found, "pip" if find_spec("pip") else "uv")


# --- agents ---


def examine_agents() -> tuple[list[Examined], list[str]]:
    """What `doctor agents` finds: all known agents, and the variables of this process that no session gets."""
    from sessionrun.agents.installed import examine
    from sessionrun.agents.programs import find_callers

    config = load_known()
    return examine(config.agents, approve=config.values.get("approve", True)), find_callers(os.environ)


def load_known() -> Config:
    """The configuration or, if it is broken, that of a fresh installation."""
    from sessionrun.agents.table import BUILTIN
    from sessionrun.input.config import Config, load_config

    try:
        return load_config(Path.cwd(), os.environ)
    except InputError as error:
        notify(f"{error} (only built-in agents are shown)")
        return Config(agents=BUILTIN)


# --- the demo ---

CHECK: Final = 'for f in *.sh; do sh -n "$f" || exit; done'
EXPECTED: Final = {"landed": 2, "failed": 1, "skipped": 1, "changed_nothing": 1}
"""How many tasks end so."""


def make_demo(folder: Path) -> None:
    """Make the repository, with one commit; InputError: there is no git, or the folder cannot be made."""
    if shutil.which("git") is None:
        raise InputError("the demo works in a git repository, and git is not installed")
    try:
        shutil.copytree(Path(__file__).with_name("demo_project"), folder)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}; name another directory: sessionrun demo DIR") from None
    from sessionrun.git.git import Git

    git = Git(folder)
    git("init", "-q", "-b", "main")
    git("add", ".")
    git("commit", "-q", "-m", "Begin")

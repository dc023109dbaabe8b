"""What is known of agent CLIs apart from running them: versions that were tried, and signs of a login.

Signed in is told from the outside: by the names of environment variables and by whether a file is there.  No file
of an account is opened, and no value is looked at but for being empty.  A "no" keeps a session from starting, so
it is said only where nothing speaks against it: a settings file may hold a key, or name a command that knows one;
a model may be local, an argument may choose another provider, and a script in the place of the program may set all
of that.  Then the answer is that it cannot be told.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from sessionrun.agents.programs import Program, find_file, find_program
from sessionrun.agents.table import BUILTIN
from sessionrun.model.frozen import frozen
from sessionrun.model.spec import AgentSpec

SignedIn = Literal["yes", "no", "cannot tell", "not needed"]

_MAJOR_MINOR: Final = re.compile(r"(?<![\d.])(\d+\.\d+)(?!\d)")
_FOR_SHELL: Final = re.compile(rb"#!.*[/ ](ba|da|k|z|fi)?sh\b")
_ENV_FILE: Final = ".env"
_KEYS: Final = ("_API_KEY", "_API_TOKEN", "_API_BASE")
"""How the names of variables end that hold keys and addresses of providers."""


@frozen
class Use:
    """How an agent is to be used: with which models and further arguments, and in which directories."""

    models: Sequence[str | None] = ()
    args: Sequence[str] = ()
    directories: Sequence[str] = ()


def find_known(agent: AgentSpec) -> Program | None:
    """What is known of the program that an agent runs, if it is known how that signs in."""
    known = find_program(agent.argv[0])
    return known if known is not None and known.version else None


def is_wrapper(agent: AgentSpec) -> bool:
    """Whether its program is a script for a shell, which may set a key before it starts the agent itself."""
    try:
        with open(agent.argv[0], "rb") as program:
            return _FOR_SHELL.match(program.readline(200)) is not None
    except OSError:
        return False


def is_known_version(known: Program, version: str) -> bool | None:
    """Whether a program that says this of its version is like the one we know; None: it says no version."""
    match = _MAJOR_MINOR.search(version)
    return None if match is None else match.group(1) == known.version


def find_sign_in(
    agent: AgentSpec, environ: Mapping[str, str], platform: str, use: Use | None = None
) -> tuple[SignedIn, str | None]:
    """Whether an agent is signed in, and what shows it: a variable's name or a file's.

    Args:
        environ: the environment that it will get, its own `env` included.
        platform: as `sys.platform`; macOS keeps credentials in a keychain that is not looked at.
        use: what it is to be used for, where that is known.
    """
    if agent.prompt_kind == "script":
        return "not needed", None
    known = find_known(agent)
    if known is None:
        return "cannot tell", None
    variable = next((name for name in known.keys if environ.get(name)), None)
    if variable is not None:
        return "yes", variable
    credentials = find_file(known, known.login, environ)
    if os.path.exists(credentials):
        return "yes", credentials
    use = use or Use()
    settings = next(filter(os.path.exists, _list_settings(known, environ, use)), None)
    if (
        settings is not None
        or platform == "darwin"
        or known.free
        or is_wrapper(agent)
        or _is_used_otherwise(agent, known, environ, use)
    ):
        return "cannot tell", settings
    return "no", None


def _list_settings(known: Program, environ: Mapping[str, str], use: Use) -> Iterator[str]:
    """The files in which a key may be, where they are there."""
    yield from (find_file(known, name, environ) for name in known.may_hold_key)
    yield from known.system
    for directory in dict.fromkeys(use.directories):
        while True:
            yield from (os.path.join(directory, name) for name in (*known.project, _ENV_FILE))
            above = os.path.dirname(directory)
            if above == directory:
                break
            directory = above


def _is_used_otherwise(agent: AgentSpec, known: Program, environ: Mapping[str, str], use: Use) -> bool:
    """Whether it may ask another provider than it does by itself, or one that needs no key."""
    plain = BUILTIN.get(os.path.basename(agent.argv[0]))
    if use.args or plain is None or agent.argv[1:] != plain.argv[1:]:
        return True
    has_key = any(value and name.endswith(_KEYS) for name, value in environ.items())
    return known.local and (has_key or any(use.models))

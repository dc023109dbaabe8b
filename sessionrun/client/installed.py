"""Lists the known agent CLIs: which are installed, in which version, and whether they could start."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sessionrun.client.notices import notify
from sessionrun.model.errors import InputError

if TYPE_CHECKING:
    from sessionrun.client.config import Config
    from sessionrun.client.doctor.programs import Examined

VERSION_TIMEOUT_S: Final = 15.0


def list_agents() -> list[dict[str, Any]]:
    """All known agents with their program and its version; the versions are asked for side by side."""
    from sessionrun.agents import table
    from sessionrun.agents.probing import find_versions

    known = _load().agents
    path = os.environ.get("PATH")
    programs = {name: table.find_program(agent, path) for name, agent in known.items()}
    there = {name: program for name, program in programs.items() if program}
    versions = find_versions(known, there, timeout_s=VERSION_TIMEOUT_S)
    return [
        {
            "name": name,
            "path": programs[name],
            "version": versions.get(name),
            "builtin": name in table.BUILTIN,
            "output_format": agent.output,
        }
        for name, agent in known.items()
    ]


def name_agents() -> list[str]:
    """The names of all known agents; no program is looked for."""
    return sorted(_load().agents)


def examine_agents() -> list[Examined]:
    """What `doctor agents` finds: each known agent with its program, whether it is signed in, and what helps."""
    from sessionrun.client.doctor import programs

    config = _load()
    approve = config.values.get("approve", True)
    return programs.examine_agents(config.agents, programs.Host(approve, os.geteuid(), os.environ, sys.platform))


def list_not_passed_on() -> list[str]:
    """The variables of this process that no session gets which it starts."""
    from sessionrun.agents.callers import find_callers

    return find_callers(os.environ)


def _load() -> Config:
    """The configuration or, if it is broken, that of a fresh installation."""
    from sessionrun.agents import table
    from sessionrun.client.config import Config, load_config

    try:
        return load_config(Path.cwd(), os.environ, table.BUILTIN)
    except InputError as error:
        notify(f"{error} (only built-in agents are shown)")
        return Config(agents=table.BUILTIN)

"""Lists the known agent CLIs, and those that are installed with what may keep them from starting."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sessionrun.client.notices import notify
from sessionrun.model.errors import InputError

if TYPE_CHECKING:
    from sessionrun.client.config import Config
    from sessionrun.client.doctor.programs import Examined


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

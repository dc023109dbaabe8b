"""The agent CLIs that are known: whether each is found, in which version, signed in, ready, or refused."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

from sessionrun.agents import table
from sessionrun.agents.installed import (
    SignedIn,
    Use,
    asks_about_model,
    find_known,
    find_sign_in,
    find_unready,
    find_versions,
    is_known_version,
)
from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.spec import AgentSpec

VERSION_TIMEOUT_S: Final = 10.0


@frozen
class Examined:
    """One agent as it was found.

    `known` is whether we tried such a version (None: unknown).  `refusal` is why it would not start; `ready` is
    None if it was not asked, `unready` what it answered.  `hint` is one line on what matters most.
    """

    name: str
    builtin: bool
    provider: str
    path: str | None
    version: str | None
    known: bool | None
    known_version: str | None
    signed_in: SignedIn
    signed_in_by: str | None
    refusal: str | None
    ready: bool | None
    unready: str | None
    hint: str | None

    @property
    def startable(self) -> bool:
        """Whether it could start; whether its provider accepts it is another question."""
        return self.path is not None and self.refusal is None and self.ready is not False


def examine(known: Mapping[str, AgentSpec], *, approve: bool) -> list[Examined]:
    """Examine all agents, as they would start with all permissions or not; programs are asked side by side."""
    path = os.environ.get("PATH")
    programs = {name: table.find_program(agent, path) for name, agent in known.items()}
    there = {name: program for name, program in programs.items() if program}
    versions = find_versions(known, there, timeout_s=VERSION_TIMEOUT_S)
    unready = find_unready(known[name] for name in there)
    return [
        _examine(agent, programs[name], versions.get(name), unready.get(name), approve=approve)
        for name, agent in known.items()
    ]


def _examine(
    agent: AgentSpec, program: str | None, version: str | None, why: str | None, *, approve: bool
) -> Examined:
    about, refusal, hint = find_known(agent), None, None
    use = Use(directories=(os.getcwd(),))
    signed_in, shown = find_sign_in(agent, {**os.environ, **agent.env}, sys.platform, use)
    known = None if about is None or version is None else is_known_version(about, version)
    try:
        table.check_agent(agent)
        table.check_startable(agent, approve=approve, euid=os.geteuid(), environ=os.environ)
    except SessionrunError as error:
        refusal = str(error)
    if program is None:
        hint = f"not found; {table.how_to_install(agent)}"
    elif refusal is not None:
        hint = refusal
    elif why is not None:
        hint = f"not ready: {why}"
    elif about is not None and signed_in == "no":
        hint = f"not signed in, as far as can be seen: {about.sign_in}"
    elif about is not None and known is False:
        hint = f"not tested with this version, but with {about.version}: its output may be misread"
    is_asked = bool(agent.ready) and not asks_about_model(agent) and program is not None
    return Examined(
        name=agent.name,
        builtin=agent.name in table.BUILTIN,
        provider=agent.provider or agent.name,
        path=program,
        version=version,
        known=known,
        known_version=about.version if about else None,
        signed_in=signed_in,
        signed_in_by=shown,
        refusal=refusal,
        ready=why is None if is_asked else None,
        unready=why,
        hint=hint,
    )

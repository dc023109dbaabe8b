"""Examines the agent CLIs: whether each is found, in which version, signed in, ready, or refused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from sessionrun.agents import table
from sessionrun.agents.installed import SignedIn, Use, find_known, find_sign_in, is_known_version
from sessionrun.agents.probing import asks_about_model, find_unready, find_versions
from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.spec import AgentSpec

VERSION_TIMEOUT_S: Final = 10.0


@frozen
class Host:
    """How agents would be started: with all permissions or not, by which user, in which environment and system."""

    approve: bool
    euid: int
    environ: Mapping[str, str]
    platform: str


@frozen
class Examined:
    """One agent as it was found.

    `path` is its program, `version` what the program says, `known` whether we tried such a version (None:
    unknown) and `known_version` the version we tried.  `signed_in_by` shows that it is signed in.  `refusal` is
    why it would not start; `ready` is None if it was not asked, `unready` what it answered.  `hint` is one line on
    what matters most.
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


def examine_agents(known: Mapping[str, AgentSpec], host: Host) -> list[Examined]:
    """Examine all agents; their programs are asked side by side."""
    path = host.environ.get("PATH")
    here = Use(directories=(os.getcwd(),))
    programs = {name: table.find_program(agent, path) for name, agent in known.items()}
    there = {name: program for name, program in programs.items() if program}
    versions = find_versions(known, there, timeout_s=VERSION_TIMEOUT_S)
    unready = find_unready(known[name] for name in there)
    return [
        _examine(agent, host, here, programs[name], versions.get(name), unready) for name, agent in known.items()
    ]


def _examine(
    agent: AgentSpec, host: Host, use: Use, program: str | None, version: str | None, unready: Mapping[str, str]
) -> Examined:
    about = find_known(agent)
    signed_in, shown = find_sign_in(agent, {**host.environ, **agent.env}, host.platform, use)
    known = None if about is None or version is None else is_known_version(about, version)
    refusal = _find_refusal(agent, host)
    asked = bool(agent.ready) and not asks_about_model(agent) and program is not None
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
        ready=agent.name not in unready if asked else None,
        unready=unready.get(agent.name),
        hint=_find_hint(agent, program, refusal, unready.get(agent.name), signed_in, known),
    )


def _find_refusal(agent: AgentSpec, host: Host) -> str | None:
    try:
        table.check_agent(agent)
        table.check_startable(agent, approve=host.approve, euid=host.euid, environ=host.environ)
    except SessionrunError as error:
        return str(error)
    return None


def _find_hint(
    agent: AgentSpec,
    program: str | None,
    refusal: str | None,
    unready: str | None,
    signed_in: SignedIn,
    known: bool | None,
) -> str | None:
    """The hint on the most important problem."""
    about = find_known(agent)
    if program is None:
        return f"not found; {table.how_to_install(agent)}"
    if refusal is not None:
        return refusal
    if unready is not None:
        return f"not ready: {unready}"
    if signed_in == "no" and about is not None:
        return f"not signed in, as far as can be seen: {about.sign_in}"
    if known is False and about is not None:
        return f"not tested with this version, but with {about.version}: its output may be misread"
    return None

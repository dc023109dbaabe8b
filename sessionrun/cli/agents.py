"""`agents`: which agent CLIs are installed, and in which version."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, Final

import click

from sessionrun.cli.options import json_option
from sessionrun.cli.render import print_json, print_table
from sessionrun.model import AgentSpec

VERSION_TIMEOUT_S: Final = 15.0
MAX_VERSION: Final = 30
"""Characters of the first line that a program prints about its version."""


@click.command("agents")
@json_option
@click.option(
    "--results-dir", hidden=True, expose_value=False, help="Accepted like everywhere; means nothing here."
)
def command(as_json: bool) -> None:
    """List the agents that are known here, built in or from your configuration."""
    records = list_agents()
    if as_json:
        print_json(records)
        return
    rows = [(r["name"], r["version"] or "-" if r["path"] else "not found", r["path"] or "") for r in records]
    print_table(("AGENT", "VERSION", "PROGRAM"), rows)


def list_agents() -> list[dict[str, Any]]:
    """All known agents with their program and its version; the versions are asked for side by side."""
    from sessionrun import agents
    from sessionrun.config import load_config

    config = load_config(Path.cwd(), os.environ, agents.BUILTIN)
    path = os.environ.get("PATH")
    programs = {name: agents.find_program(agent, path) for name, agent in config.agents.items()}
    asked = {name: _ask(config.agents[name], program) for name, program in programs.items() if program}
    return [
        {
            "name": name,
            "path": programs[name],
            "version": _answer(asked.get(name)),
            "builtin": name in agents.BUILTIN,
            "output": agent.output,
        }
        for name, agent in config.agents.items()
    ]


def _ask(agent: AgentSpec, program: str) -> subprocess.Popen[bytes] | None:
    from sessionrun.agents import version_argv

    argv = version_argv(agent)
    if not argv:
        return None
    try:
        return subprocess.Popen(
            [program, *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None


def _answer(process: subprocess.Popen[bytes] | None) -> str | None:
    if process is None:
        return None
    try:
        output, _ = process.communicate(timeout=VERSION_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return None
    lines = output.decode("utf-8", "replace").split("\n")
    return next((line.strip()[:MAX_VERSION] for line in lines if line.strip()), None)

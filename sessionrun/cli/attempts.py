"""With which agents and models the attempts at a task ran, as people see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sessionrun.cli.render import escape_line


def name_agent(record: Mapping[str, Any]) -> str:
    """Agent and model of a task or an attempt in one word, as `--fallback` spells them."""
    return f"{record['agent']}/{record['model']}" if record["model"] else str(record["agent"])


def agent_lines(task: Mapping[str, Any], indent: str) -> list[str]:
    """What each attempt had, of a task that was tried again with another agent or model."""
    had, first = [], 1
    for ran in (*task["earlier_agents"], task):
        last = ran["attempt"]
        had.append(f"{first if first == last else f'{first}-{last}'} {name_agent(ran)}")
        first = last + 1
    return [indent + escape_line(f"attempts: {', '.join(had)}")]

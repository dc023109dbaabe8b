"""The built-in agent `shell`: its prompt is a script, its answer what the script prints.

This module must not know how processes are run.
"""

from __future__ import annotations

from typing import Final

from sessionrun.model.spec import AgentSpec

AGENT: Final = AgentSpec(
    name="shell",
    argv=("sh", "{prompt_file}"),
    stdin="none",
    prompt_kind="script",
    output="text",
)

"""How each agent CLI is installed, in a few words: for a user that asked for one that is not there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sessionrun.model.spec import AgentSpec

INSTALL: Final[Mapping[str, str]] = {
    "claude": "npm install -g @anthropic-ai/claude-code",
    "codex": "npm install -g @openai/codex",
    "qwen": "npm install -g @qwen-code/qwen-code",
    "gemini": "npm install -g @google/gemini-cli",
    "opencode": "npm install -g opencode-ai",
    "aider": "pipx install aider-chat",
    "ollama": "see ollama.com/download",
}
"""How programs are installed, in one line."""


def how_to_install(agent: AgentSpec) -> str:
    """What helps where an agent's program is not there, in a few words."""
    known = INSTALL.get(agent.argv[0])
    return f"to install it: {known}" if known else "'sessionrun agents' lists what is installed"

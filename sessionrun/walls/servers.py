"""Which hosts a job may reach by way of the proxy: those of its agent, of the plan, and the model server that the
user's variables or settings name instead of the agent's own.

The hosts of an agent have the usual ports.  A host that the plan names has any port.  A server that the user names
by a whole address has that port alone, and may be on this machine or in a private network.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from sessionrun.walls.policy import AgentState
from sessionrun.walls.proxy.hosts import USUAL_PORTS, Rule, make_rule, split_authority

SERVER_VARIABLES: Final = frozenset(
    (
        *("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE", "ANTHROPIC_BEDROCK_BASE_URL", "ANTHROPIC_VERTEX_BASE_URL"),
        *("ANTHROPIC_FOUNDRY_BASE_URL", "OPENAI_BASE_URL", "OPENAI_API_BASE", "CODEX_OSS_BASE_URL"),
        *("DASHSCOPE_BASE_URL", "GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL", "GEMINI_API_BASE"),
        *("AIDER_OPENAI_API_BASE", "OPENROUTER_API_BASE", "OPENROUTER_BASE_URL", "DEEPSEEK_API_BASE"),
        *("OLLAMA_API_BASE", "OLLAMA_HOST"),
    )
)
"""Variables by which agent CLIs are told of another server."""

_URL: Final = re.compile(r"(https?)://(?:[^@/\s\"']*@)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_SETTING: Final = re.compile(
    r"(?:base_?url|api[_-]?base)[\"']?\s*[:=]\s*[\"']?(https?://[^\s\"',}]+)", re.IGNORECASE
)
_SETTINGS: Final = (".json", ".toml", ".env")
_MAX_SETTINGS: Final = 1 << 20


def list_rules(
    hosts: Iterable[str],
    state: AgentState | None,
    env: Mapping[str, str],
    words: Iterable[str],
    folder: str,
    more: Iterable[str] = (),
) -> tuple[Rule, ...]:
    """The list of a job.

    Args:
        hosts: what the plan names.
        state: the state of the job's agent; None: it has none.
        env: the variables inside.
        words: of the agent's command line, as it is configured.
        folder: the user's folder of the agent.
        more: files of its settings that lie elsewhere.
    """
    rules = [make_rule(host) for host in hosts]
    if state is not None:
        rules += [make_rule(host, USUAL_PORTS) for host in state.hosts]
        rules += _find_servers(state, env, words, folder)
        rules += [rule for path in more for rule in _find_settings(_read_settings(path))]
    return tuple(dict.fromkeys(rules))


def _find_servers(state: AgentState, env: Mapping[str, str], words: Iterable[str], folder: str) -> Iterator[Rule]:
    for name, value in env.items():
        if name in SERVER_VARIABLES:
            yield from _parse_server(value if "://" in value else f"http://{value}")
        elif name.startswith(state.prefixes):
            yield from _find_settings(value)
    for word in words:
        yield from _find_settings(word)
    for name in state.settings:
        if not name.endswith(_SETTINGS):
            continue
        yield from _find_settings(_read_settings(os.path.join(folder, name)))


def _find_settings(text: str) -> Iterator[Rule]:
    """The servers that settings name, whatever their format is."""
    for found in _SETTING.finditer(text):
        yield from _parse_server(found[1])


def _parse_server(address: str) -> Iterator[Rule]:
    found = _URL.match(address)
    if found is None:
        return
    usual = 443 if found[1] == "https" else 80
    place = split_authority(found[2] + (f":{found[3]}" if found[3] else ""), usual)
    if place is not None:
        yield make_rule(place[0], (place[1],), private=True)


def _read_settings(path: str) -> str:
    try:
        if not os.path.isfile(path):
            return ""
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(_MAX_SETTINGS)
    except OSError:
        return ""

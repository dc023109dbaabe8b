"""What is known of agent CLIs apart from running them: versions that were tried, how to tell who is signed in.

Signed in is told from the outside: by the names of environment variables and by whether a file is there.  Nothing
is opened, and no value is looked at but for being empty.  A settings file may hold a key, or name a command that
knows one: where there is one, the answer is that it cannot be told.  This module must not know how processes are
run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from sessionrun.model import AgentSpec

SignedIn = Literal["yes", "no", "cannot tell", "not needed"]

_MAJOR_MINOR: Final = re.compile(r"(?<![\d.])(\d+\.\d+)(?!\d)")
_PROVIDER_KEYS: Final = (
    "ANTHROPIC_API_KEY",
    "OPENAI_API_KEY",
    "GEMINI_API_KEY",
    "OPENROUTER_API_KEY",
    "DEEPSEEK_API_KEY",
    "GROQ_API_KEY",
    "MISTRAL_API_KEY",
    "XAI_API_KEY",
)


@dataclass(frozen=True, slots=True)
class Place:
    """A file: `name` in the folder that `variable` names, else in `folder` below the home directory."""

    folder: str
    name: str
    variable: str | None = None

    def path(self, environ: Mapping[str, str]) -> str:
        """Where that is in this environment."""
        named = environ.get(self.variable) if self.variable else None
        home = environ.get("HOME") or os.path.expanduser("~")
        return os.path.join(named or os.path.join(home, self.folder), self.name)


@dataclass(frozen=True, slots=True)
class Known:
    """One program: the version that our samples of its output are of, and what shows that it is signed in.

    `servers` are the variables that send it elsewhere than to its provider's own servers.
    """

    version: str
    credentials: Place
    variables: tuple[str, ...]
    settings: tuple[Place, ...]
    sign_in: str
    servers: tuple[str, ...] = ()

    @property
    def account_variables(self) -> tuple[str, ...]:
        """The variables by which one account of its user is told from another."""
        return (*self.variables, *self.servers)


PROGRAMS: Final[Mapping[str, Known]] = {
    "claude": Known(
        version="2.1",
        credentials=Place(".claude", ".credentials.json", "CLAUDE_CONFIG_DIR"),
        variables=(
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "CLAUDE_CODE_OAUTH_TOKEN",
            "CLAUDE_CODE_USE_BEDROCK",
            "CLAUDE_CODE_USE_VERTEX",
        ),
        settings=(Place(".claude", "settings.json", "CLAUDE_CONFIG_DIR"),),
        sign_in="type /login in claude, or set ANTHROPIC_API_KEY",
        servers=("ANTHROPIC_BASE_URL",),
    ),
    "codex": Known(
        version="0.169",
        credentials=Place(".codex", "auth.json", "CODEX_HOME"),
        variables=("OPENAI_API_KEY", "CODEX_API_KEY"),
        settings=(Place(".codex", "config.toml", "CODEX_HOME"),),
        sign_in="codex login, or set OPENAI_API_KEY",
        servers=("OPENAI_BASE_URL",),
    ),
    "qwen": Known(
        version="0.24",
        credentials=Place(".qwen", "oauth_creds.json"),
        variables=("OPENAI_API_KEY", "DASHSCOPE_API_KEY"),
        settings=(Place(".qwen", "settings.json"), Place(".qwen", ".env")),
        sign_in="type /auth in qwen, or set OPENAI_API_KEY",
        servers=("OPENAI_BASE_URL",),
    ),
    "gemini": Known(
        version="0.61",
        credentials=Place(".gemini", "oauth_creds.json"),
        variables=("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI"),
        settings=(Place(".gemini", "settings.json"), Place(".gemini", ".env")),
        sign_in="type /auth in gemini, or set GEMINI_API_KEY",
        servers=("GOOGLE_GEMINI_BASE_URL", "GOOGLE_CLOUD_PROJECT"),
    ),
    "opencode": Known(
        version="1.18",
        credentials=Place(".local/share", "opencode/auth.json", "XDG_DATA_HOME"),
        variables=(*_PROVIDER_KEYS, "GOOGLE_GENERATIVE_AI_API_KEY", "OPENCODE_API_KEY"),
        settings=(
            Place(".config", "opencode/opencode.json", "XDG_CONFIG_HOME"),
            Place(".config", "opencode/opencode.jsonc", "XDG_CONFIG_HOME"),
        ),
        sign_in="opencode auth login, or set a provider's key",
    ),
    "aider": Known(
        version="0.86",
        credentials=Place(".aider", "oauth-keys.env"),
        variables=_PROVIDER_KEYS,
        settings=(Place("", ".aider.conf.yml"), Place("", ".env")),
        sign_in="set a provider's key, such as OPENAI_API_KEY",
        servers=("OPENAI_API_BASE", "OPENAI_BASE_URL"),
    ),
}
"""By the name of the program, which is what a user's own agent may run too."""


def find_known(agent: AgentSpec) -> Known | None:
    """What is known of the program that an agent runs."""
    return PROGRAMS.get(os.path.basename(agent.argv[0]))


def is_known_version(known: Known, version: str) -> bool | None:
    """Whether a program that says this of its version is like the one we know; None: it says no version."""
    found = _MAJOR_MINOR.search(version)
    return None if found is None else found.group(1) == known.version


def find_sign_in(agent: AgentSpec, environ: Mapping[str, str], platform: str) -> tuple[SignedIn, str | None]:
    """Whether an agent is signed in, and what shows it: a variable's name or a file's.

    Args:
        agent: the agent.
        environ: the environment that it will get, its own `env` included.
        platform: as `sys.platform`; macOS keeps credentials in a keychain that is not looked at.
    """
    if agent.prompt_kind == "script":
        return "not needed", None
    known = find_known(agent)
    if known is None:
        return "cannot tell", None
    variable = next((name for name in known.variables if environ.get(name)), None)
    if variable is not None:
        return "yes", variable
    credentials = known.credentials.path(environ)
    if os.path.exists(credentials):
        return "yes", credentials
    settings = next((path for place in known.settings if os.path.exists(path := place.path(environ))), None)
    if settings is not None or platform == "darwin":
        return "cannot tell", settings
    return "no", None

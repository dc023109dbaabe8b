"""What is known of agent CLIs apart from running them: versions that were tried, and signs of a login.

Signed in is told from the outside: by the names of environment variables and by whether a file is there.  No file
of an account is opened, and no value is looked at but for being empty.  A "no" keeps a session from starting, so
it is said only where nothing speaks against it: a settings file may hold a key, or name a command that knows one;
a model may be local, an argument may choose another provider, and a script in the place of the program may set all
of that.  Then the answer is that it cannot be told.  This module must not know how processes are run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from sessionrun.agents.table import BUILTIN
from sessionrun.model.frozen import frozen
from sessionrun.model.spec import AgentSpec

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


@frozen
class KnownFile:
    """A file: `name` in the folder that `variable` names, else in `folder` below the home directory."""

    folder: str
    name: str
    variable: str | None = None

    def path(self, environ: Mapping[str, str]) -> str:
        """Where that is in this environment."""
        named = environ.get(self.variable) if self.variable else None
        home = environ.get("HOME") or os.path.expanduser("~")
        return os.path.join(named or os.path.join(home, self.folder), self.name)


@frozen
class Known:
    """One program: the version that our samples of its output are of, and what shows that it is signed in.

    `settings` are files of the user, `system` those of the machine, `project` names in the directory in which it
    works and above: any of them may hold a key.  `local` says that some of its models need none, `free` that even
    those that it chooses by itself may not.  `servers` are the variables that send it elsewhere than to its
    provider's own servers.  With `status` the program itself says, by its exit code, whether it is signed in.
    """

    version: str
    credentials: KnownFile
    variables: tuple[str, ...]
    settings: tuple[KnownFile, ...]
    sign_in: str
    servers: tuple[str, ...] = ()
    system: tuple[str, ...] = ()
    project: tuple[str, ...] = ()
    local: bool = False
    free: bool = False
    status: tuple[str, ...] = ()

    @property
    def account_variables(self) -> tuple[str, ...]:
        """The variables by which one account of its user is told from another."""
        return (*self.variables, *self.servers)


PROGRAMS: Final[Mapping[str, Known]] = {
    "claude": Known(
        version="2.1",
        credentials=KnownFile(".claude", ".credentials.json", "CLAUDE_CONFIG_DIR"),
        variables=(
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "CLAUDE_CODE_OAUTH_TOKEN",
            "CLAUDE_CODE_USE_BEDROCK",
            "CLAUDE_CODE_USE_VERTEX",
            "CLAUDE_CODE_USE_FOUNDRY",
        ),
        settings=(
            KnownFile(".claude", "settings.json", "CLAUDE_CONFIG_DIR"),
            KnownFile("", ".claude.json", "CLAUDE_CONFIG_DIR"),
        ),
        system=("/etc/claude-code/managed-settings.json",),
        project=(".claude/settings.json", ".claude/settings.local.json"),
        sign_in="type /login in claude, or set ANTHROPIC_API_KEY",
        servers=("ANTHROPIC_BASE_URL",),
        status=("auth", "status"),
    ),
    "codex": Known(
        version="0.169",
        credentials=KnownFile(".codex", "auth.json", "CODEX_HOME"),
        variables=("OPENAI_API_KEY", "CODEX_API_KEY"),
        settings=(KnownFile(".codex", "config.toml", "CODEX_HOME"),),
        system=("/etc/codex/config.toml",),
        project=(".codex/config.toml",),
        sign_in="codex login, or set OPENAI_API_KEY",
        servers=("OPENAI_BASE_URL",),
        status=("login", "status"),
    ),
    "qwen": Known(
        version="0.24",
        credentials=KnownFile(".qwen", "oauth_creds.json"),
        variables=("OPENAI_API_KEY", "DASHSCOPE_API_KEY"),
        settings=(KnownFile(".qwen", "settings.json"), KnownFile(".qwen", ".env")),
        system=("/etc/qwen-code/settings.json",),
        project=(".qwen/settings.json", ".qwen/.env"),
        sign_in="type /auth in qwen, or set OPENAI_API_KEY",
        servers=("OPENAI_BASE_URL",),
    ),
    "gemini": Known(
        version="0.61",
        credentials=KnownFile(".gemini", "oauth_creds.json"),
        variables=("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI"),
        settings=(KnownFile(".gemini", "settings.json"), KnownFile(".gemini", ".env")),
        system=("/etc/gemini-cli/settings.json",),
        project=(".gemini/settings.json", ".gemini/.env"),
        sign_in="type /auth in gemini, or set GEMINI_API_KEY",
        servers=("GOOGLE_GEMINI_BASE_URL", "GOOGLE_CLOUD_PROJECT"),
    ),
    "opencode": Known(
        version="1.18",
        credentials=KnownFile(".local/share", "opencode/auth.json", "XDG_DATA_HOME"),
        variables=(*_PROVIDER_KEYS, "GOOGLE_GENERATIVE_AI_API_KEY", "OPENCODE_API_KEY"),
        settings=(
            KnownFile(".config", "opencode/opencode.json", "XDG_CONFIG_HOME"),
            KnownFile(".config", "opencode/opencode.jsonc", "XDG_CONFIG_HOME"),
        ),
        project=("opencode.json", "opencode.jsonc", ".opencode"),
        sign_in="opencode auth login, or set a provider's key",
        local=True,
        free=True,
    ),
    "aider": Known(
        version="0.86",
        credentials=KnownFile(".aider", "oauth-keys.env"),
        variables=_PROVIDER_KEYS,
        settings=(KnownFile("", ".aider.conf.yml"), KnownFile("", ".env")),
        project=(".aider.conf.yml",),
        sign_in="set a provider's key, such as OPENAI_API_KEY",
        local=True,
        servers=("OPENAI_API_BASE", "OPENAI_BASE_URL"),
    ),
}
"""By the name of the program, which is what a user's own agent may run too."""


MENDS: Final[Mapping[str, str]] = {"ollama": "'ollama serve' starts it, 'ollama pull MODEL' fetches a model"}
"""What helps where a program's own question whether it is ready was answered with no."""

_FOR_SHELL: Final = re.compile(rb"#!.*[/ ](ba|da|k|z|fi)?sh\b")
_ENV_FILE: Final = ".env"
_KEYS: Final = ("_API_KEY", "_API_TOKEN", "_API_BASE")
"""How the names of variables end that hold keys and addresses of providers."""


@frozen
class Use:
    """How an agent is to be used: with which models and further arguments, and in which directories."""

    models: Sequence[str | None] = ()
    args: Sequence[str] = ()
    directories: Sequence[str] = ()


def find_known(agent: AgentSpec) -> Known | None:
    """What is known of the program that an agent runs."""
    return PROGRAMS.get(os.path.basename(agent.argv[0]))


def is_wrapper(agent: AgentSpec) -> bool:
    """Whether its program is a script for a shell, which may set a key before it starts the agent itself."""
    try:
        with open(agent.argv[0], "rb") as program:
            return _FOR_SHELL.match(program.readline(200)) is not None
    except OSError:
        return False


def is_known_version(known: Known, version: str) -> bool | None:
    """Whether a program that says this of its version is like the one we know; None: it says no version."""
    match = _MAJOR_MINOR.search(version)
    return None if match is None else match.group(1) == known.version


def find_sign_in(
    agent: AgentSpec, environ: Mapping[str, str], platform: str, use: Use | None = None
) -> tuple[SignedIn, str | None]:
    """Whether an agent is signed in, and what shows it: a variable's name or a file's.

    Args:
        environ: the environment that it will get, its own `env` included.
        platform: as `sys.platform`; macOS keeps credentials in a keychain that is not looked at.
        use: what it is to be used for, where that is known.
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
    use = use or Use()
    settings = next(filter(os.path.exists, _list_settings(known, environ, use)), None)
    if (
        settings is not None
        or platform == "darwin"
        or known.free
        or is_wrapper(agent)
        or _is_used_otherwise(agent, known, environ, use)
    ):
        return "cannot tell", settings
    return "no", None


def _list_settings(known: Known, environ: Mapping[str, str], use: Use) -> Iterator[str]:
    """The files in which a key may be, where they are there."""
    yield from (place.path(environ) for place in known.settings)
    yield from known.system
    for directory in dict.fromkeys(use.directories):
        while True:
            yield from (os.path.join(directory, name) for name in (*known.project, _ENV_FILE))
            above = os.path.dirname(directory)
            if above == directory:
                break
            directory = above


def _is_used_otherwise(agent: AgentSpec, known: Known, environ: Mapping[str, str], use: Use) -> bool:
    """Whether it may ask another provider than it does by itself, or one that needs no key."""
    plain = BUILTIN.get(os.path.basename(agent.argv[0]))
    if use.args or plain is None or agent.argv[1:] != plain.argv[1:]:
        return True
    others = known.local and any(value and name.endswith(_KEYS) for name, value in environ.items())
    return others or (known.local and any(use.models))

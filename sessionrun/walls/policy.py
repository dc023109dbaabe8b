"""What each policy hides and lets in: secrets of the home directory, variables, and the state of agents.

The lists are data; `argv` and `environment` use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sessionrun.model.frozen import frozen

SECRET_FOLDERS: Final = (
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".config/gcloud",
    ".config/gh",
    ".config/hub",
    ".config/op",
    ".kube",
    ".docker",
    ".password-store",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/microsoft-edge",
    ".mozilla",
    ".thunderbird",
    "Library/Keychains",
)
"""Folders below the home directory that hold keys, log-ins or browser profiles."""

SECRET_FILES: Final = (
    ".netrc",
    "_netrc",
    ".git-credentials",
    ".config/git/credentials",
    ".npmrc",
    ".pypirc",
    ".pgpass",
    ".my.cnf",
    ".s3cfg",
    ".boto",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".terraform.d/credentials.tfrc.json",
    ".vault-token",
    ".Xauthority",
    ".bash_history",
    ".zsh_history",
    ".python_history",
    ".node_repl_history",
    ".psql_history",
    ".mysql_history",
    ".local/share/fish/fish_history",
)
"""Files below the home directory that hold keys, log-ins, or what was typed."""

SYSTEM_SECRETS: Final = (
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/ssh/ssh_host_rsa_key",
    "/etc/ssh/ssh_host_ecdsa_key",
    "/etc/ssh/ssh_host_ed25519_key",
)
"""Files of the system that only root can read."""

VARIABLES: Final = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "COLORTERM", "NO_COLOR"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
        *("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "PYTEST_ADDOPTS", "IS_SANDBOX"),
    )
)
"""Variables of the caller that come in."""

PREFIXES: Final = ("LC_", "SESSIONRUN_")
"""The same by how their names begin; those that lead to processes of ours are set anew for each job."""


@frozen
class AgentState:
    """What an agent CLI keeps below the home directory.

    Attributes:
        folder: its folder; a task has one of its own in this place.
        settings: what of the user's folder can be read inside.
        credentials: files of log-ins of the user's folder; the agent may write into them.
        prefixes: how the names of its variables begin.
        folder_variable: the variable that names the folder, if there is one.
        variables: variables by which it finds the rest of what it keeps.
        hosts: the hosts of its model server, where no variable names another.
    """

    folder: str
    settings: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    folder_variable: str | None = None
    variables: tuple[tuple[str, str], ...] = ()
    hosts: tuple[str, ...] = ()


AGENTS: Final[Mapping[str, AgentState]] = {
    "claude": AgentState(
        ".claude",
        settings=("settings.json", "CLAUDE.md", "agents", "commands", "skills", "plugins"),
        credentials=(".credentials.json",),
        prefixes=("ANTHROPIC_", "CLAUDE_"),
        folder_variable="CLAUDE_CONFIG_DIR",
        hosts=("api.anthropic.com", "*.anthropic.com", "claude.ai", "*.claude.ai"),
    ),
    "codex": AgentState(
        ".codex",
        settings=("config.toml", "AGENTS.md", "prompts", "skills"),
        credentials=("auth.json",),
        prefixes=("OPENAI_", "CODEX_"),
        folder_variable="CODEX_HOME",
        hosts=("api.openai.com", "auth.openai.com", "chatgpt.com", "*.chatgpt.com"),
    ),
    "qwen": AgentState(
        ".qwen",
        settings=("settings.json", "QWEN.md", "commands", "agents", "extensions", ".env"),
        credentials=("oauth_creds.json",),
        prefixes=("OPENAI_", "QWEN_", "DASHSCOPE_"),
        hosts=("*.aliyuncs.com", "chat.qwen.ai", "portal.qwen.ai"),
    ),
    "gemini": AgentState(
        ".gemini",
        settings=("settings.json", "GEMINI.md", "commands", "extensions", ".env"),
        credentials=("oauth_creds.json", "google_accounts.json"),
        prefixes=("GEMINI_", "GOOGLE_"),
        hosts=("generativelanguage.googleapis.com", "cloudcode-pa.googleapis.com", "oauth2.googleapis.com"),
    ),
    "opencode": AgentState(
        ".local/share/opencode",
        credentials=("auth.json",),
        prefixes=("OPENCODE_", "ANTHROPIC_", "OPENAI_", "GEMINI_", "GOOGLE_", "OPENROUTER_"),
        variables=(("XDG_STATE_HOME", "/tmp/.state"),),
        hosts=("api.anthropic.com", "api.openai.com", "openrouter.ai", "models.dev", "opencode.ai"),
    ),
    "aider": AgentState(
        ".aider",
        prefixes=("AIDER_", "ANTHROPIC_", "OPENAI_", "GEMINI_", "GOOGLE_", "OPENROUTER_", "DEEPSEEK_"),
        hosts=("api.anthropic.com", "api.openai.com", "openrouter.ai", "api.deepseek.com"),
    ),
    "ollama": AgentState(".ollama", settings=("models",), prefixes=("OLLAMA_",), hosts=("ollama.com",)),
}
"""By the name of the program."""

SHARED_STATE: Final = (".claude.json",)
"""Files of agents that lie beside their folders."""

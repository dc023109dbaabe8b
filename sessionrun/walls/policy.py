"""What each policy hides and lets in: secrets of the home directory, variables, and the state of agents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sessionrun.model.frozen import frozen
from sessionrun.walls.argv import PROXY_URL

SECRET_FOLDERS: Final = (
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".config/gcloud",
    ".config/gh",
    ".config/hub",
    ".config/op",
    ".config/glab-cli",
    ".config/rclone",
    ".config/doctl",
    ".config/hcloud",
    ".config/sops",
    ".config/github-copilot",
    ".config/sessionrun/cluster",
    ".oci",
    ".fly",
    ".kaggle",
    ".local/share/uv/credentials",
    ".kube",
    ".docker",
    ".password-store",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".config/google-chrome",
    ".config/google-chrome-beta",
    ".config/google-chrome-unstable",
    ".config/chromium",
    ".config/vivaldi",
    ".config/opera",
    ".config/BraveSoftware",
    ".config/microsoft-edge",
    ".mozilla",
    ".thunderbird",
    "snap/firefox",
    "snap/chromium",
    "snap/brave",
    ".var/app/org.mozilla.firefox",
    ".var/app/com.google.Chrome",
    ".var/app/org.chromium.Chromium",
    ".var/app/com.brave.Browser",
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
    ".terraformrc",
    ".pulumi/credentials.json",
    ".config/containers/auth.json",
    ".config/helm/registry/config.json",
    ".config/composer/auth.json",
    ".composer/auth.json",
    ".cache/huggingface/token",
    ".databrickscfg",
    ".pg_service.conf",
    ".curlrc",
    ".vault-token",
    ".Xauthority",
    ".bash_history",
    ".zsh_history",
    ".python_history",
    ".node_repl_history",
    ".psql_history",
    ".mysql_history",
    ".sqlite_history",
    ".rediscli_history",
    ".irb_history",
    ".lesshst",
    ".viminfo",
    ".local/share/fish/fish_history",
    ".local/share/atuin/history.db",
)
"""Files below the home directory that hold keys, log-ins, or what was typed."""

SECRET_VARIABLES: Final = (
    *("KUBECONFIG", "GNUPGHOME", "DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "PASSWORD_STORE_DIR", "GH_CONFIG_DIR"),
    *("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AZURE_CONFIG_DIR"),
    *("CLOUDSDK_CONFIG", "GOOGLE_APPLICATION_CREDENTIALS", "BOTO_CONFIG", "RCLONE_CONFIG", "TF_CLI_CONFIG_FILE"),
    *("NETRC", "CURL_HOME/.netrc", "CURL_HOME/.curlrc", "PGPASSFILE", "PGSERVICEFILE", "XAUTHORITY"),
    *("NPM_CONFIG_USERCONFIG", "npm_config_userconfig", "PIP_CONFIG_FILE", "UV_CREDENTIALS_DIR"),
    *("CARGO_HOME/credentials", "CARGO_HOME/credentials.toml"),
    *("GIT_ASKPASS", "SSH_ASKPASS", "SUDO_ASKPASS", "SSH_AUTH_SOCK"),
    *("HISTFILE", "ZDOTDIR/.zsh_history", "PYTHON_HISTORY", "NODE_REPL_HISTORY", "PSQL_HISTORY", "MYSQL_HISTFILE"),
    *("SQLITE_HISTORY", "LESSHISTFILE", "VIMINFO"),
    *("SESSIONRUN_CERTS", "SESSIONRUN_NODES"),
)
"""Variables that name a file, a folder or several of them with keys, log-ins, or what was typed; behind a slash
the name of a file in such a folder of which the rest is no secret."""

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

CACHES: Final = (
    ("XDG_CACHE_HOME", "/tmp/.cache"),
    ("npm_config_cache", "/tmp/.npm"),
    ("TMPDIR", "/tmp"),
)
"""Where programs keep what they could make again: the home directory cannot be written."""

_LEADS_TO_US: Final = frozenset(
    ("SESSIONRUN_RESULTS_DIR", "SESSIONRUN_JOB", "SESSIONRUN_GIT", "SESSIONRUN_CERTS", "SESSIONRUN_NODES")
)
"""Variables of ours that lead to what lies outside, or are for programs of ours alone."""


def filter_environment(
    environ: Mapping[str, str],
    own: Mapping[str, str],
    *,
    prefixes: Iterable[str] = (),
    names: Iterable[str] = (),
    proxied: bool = False,
) -> dict[str, str]:
    """The variables of a program inside, all of them: those of the caller may hold keys.

    Args:
        environ: those of the session.
        own: those of the job, which all come in.
        prefixes: how the names of others begin that come in.
        names: names of others that come in.
        proxied: whether the network is a proxy's.
    """
    wanted, begins = {*VARIABLES, *names}, (*PREFIXES, *prefixes)
    inside = {name: value for name, value in environ.items() if name in wanted or name.startswith(begins)}
    inside = {name: value for name, value in inside.items() if name not in _LEADS_TO_US}
    inside = {**inside, **dict(CACHES), **own}
    if proxied:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            inside |= {name: PROXY_URL, name.lower(): PROXY_URL}
        inside |= {"NO_PROXY": "", "no_proxy": "", "NODE_USE_ENV_PROXY": "1"}
    return inside


@frozen
class AgentState:
    """What an agent CLI keeps below the home directory.

    Attributes:
        folder: its folder; a task has one of its own in this place.
        settings: what of the user's folder can be read inside.
        credentials: files of log-ins of the user's folder; the agent may write into them.
        renames: whether it renames a new file over its log-in, and cannot write into the old one: then the task
            has a copy, which is taken back when a job ends (see `walls.agent_state`).
        prefixes: how the names of its variables begin.
        folder_variable: the variable that names the folder, if there is one.
        in_variable: the folder's name, if the variable names the directory around it.
        others: more folders of which a task has its own, and what of the user's can be read there.
        files: files of the home directory that it reads.
        seed: a file beside the folder, of which some keys come into a file of that name in the task's folder.
        variables: variables by which it finds the rest of what it keeps.
        hosts: the hosts of its model server and of its log-in, where no variable names another.
    """

    folder: str
    settings: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()
    renames: bool = False
    prefixes: tuple[str, ...] = ()
    folder_variable: str | None = None
    in_variable: str = ""
    others: tuple[tuple[str, tuple[str, ...]], ...] = ()
    files: tuple[str, ...] = ()
    seed: str | None = None
    seed_keys: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    hosts: tuple[str, ...] = ()

    @property
    def folders(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """All folders of which a task has its own, the main one first; and what of the user's is in there."""
        return ((self.folder, self.settings), *self.others)


EVERYTHING: Final = "*"
"""As a setting: all that is in the folder."""

AGENTS: Final[Mapping[str, AgentState]] = {
    # It renames its log-in too, but where that fails with EBUSY, as for a mounted file, it writes into the old
    # one.  With CLAUDE_CONFIG_DIR set `.claude.json` is in there; it has the key from a log-in at the console.
    "claude": AgentState(
        ".claude",
        settings=(
            *("settings.json", "CLAUDE.md", "agents", "commands", "skills", "plugins", "rules", "hooks"),
            *("output-styles", "workflows"),
        ),
        credentials=(".credentials.json",),
        prefixes=("ANTHROPIC_", "CLAUDE_"),
        folder_variable="CLAUDE_CONFIG_DIR",
        seed=".claude.json",
        seed_keys=(
            "primaryApiKey",
            "customApiKeyResponses",
            "oauthAccount",
            "mcpServers",
            "hasCompletedOnboarding",
        ),
        hosts=(
            *("api.anthropic.com", "*.anthropic.com", "claude.ai", "*.claude.ai"),
            "platform.claude.com",  # where it renews its log-in
        ),
    ),
    # With EBUSY it has used up the log-in and cannot store the new one: the user would be logged out.
    "codex": AgentState(
        ".codex",
        settings=(
            "config.toml",
            "AGENTS.md",
            "AGENTS.override.md",
            "prompts",
            "skills",
            "rules",
            "hooks.json",
            "agents",
        ),
        credentials=("auth.json",),
        renames=True,
        prefixes=("OPENAI_", "CODEX_"),
        folder_variable="CODEX_HOME",
        hosts=("api.openai.com", "auth.openai.com", "chatgpt.com", "*.chatgpt.com"),
    ),
    # As codex.  Beside a plan's keys it had a free log-in, which its provider ended in April 2026.
    "qwen": AgentState(
        ".qwen",
        settings=(
            *("settings.json", "QWEN.md", "commands", "agents", "extensions", "skills", ".env", "memory.md"),
            "trustedFolders.json",
        ),
        credentials=("oauth_creds.json", "mcp-oauth-tokens.json"),
        renames=True,
        prefixes=("OPENAI_", "QWEN_", "DASHSCOPE_"),
        folder_variable="QWEN_HOME",
        files=(".env",),
        hosts=("*.aliyuncs.com", "chat.qwen.ai", "portal.qwen.ai"),
    ),
    # It writes into its log-ins.  A key that is typed at its prompt is in gemini-credentials.json.
    "gemini": AgentState(
        ".gemini",
        settings=(
            *("settings.json", "GEMINI.md", "commands", "agents", "extensions", "skills", "policies", ".env"),
            "trustedFolders.json",
        ),
        credentials=(
            "oauth_creds.json",
            "google_accounts.json",
            "gemini-credentials.json",
            "mcp-oauth-tokens.json",
        ),
        prefixes=("GEMINI_", "GOOGLE_"),
        folder_variable="GEMINI_CLI_HOME",
        in_variable=".gemini",
        files=(".env",),
        hosts=("generativelanguage.googleapis.com", "cloudcode-pa.googleapis.com", "oauth2.googleapis.com"),
    ),
    # It writes into its log-ins.  Without a folder for its settings that it can make and write, it does not start.
    "opencode": AgentState(
        ".local/share/opencode",
        credentials=("auth.json", "mcp-auth.json"),
        prefixes=("OPENCODE_", "ANTHROPIC_", "OPENAI_", "GEMINI_", "GOOGLE_", "OPENROUTER_"),
        others=((".config/opencode", (EVERYTHING,)),),
        variables=(("XDG_STATE_HOME", "/tmp/.state"),),
        hosts=(
            *(
                "api.anthropic.com",
                "api.openai.com",
                "openrouter.ai",
                "models.dev",
                "opencode.ai",
                "*.opencode.ai",
            ),
            *("auth.openai.com", "chatgpt.com", "generativelanguage.googleapis.com"),
        ),
    ),
    # Its keys do not expire, so nothing is renewed.  The folder has caches, and a key of OpenRouter's.
    "aider": AgentState(
        ".aider",
        settings=("oauth-keys.env",),
        prefixes=("AIDER_", "ANTHROPIC_", "OPENAI_", "GEMINI_", "GOOGLE_", "OPENROUTER_", "DEEPSEEK_", "LITELLM_"),
        files=(".aider.conf.yml", ".aider.model.settings.yml", ".aider.model.metadata.json", ".env"),
        hosts=(
            *("api.anthropic.com", "api.openai.com", "openrouter.ai", "api.deepseek.com"),
            "generativelanguage.googleapis.com",
        ),
    ),
    "ollama": AgentState(".ollama", settings=("models",), prefixes=("OLLAMA_",), hosts=("ollama.com",)),
}
"""By the name of the program."""

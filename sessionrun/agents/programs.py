"""What is known of agent CLIs apart from running and reading them: versions, log-ins, and what they keep.

One row for each.  Names of files and folders count from the home directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from sessionrun.model.frozen import frozen

_PROVIDER_KEYS: Final = (
    *("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY", "DEEPSEEK_API_KEY"),
    *("GROQ_API_KEY", "MISTRAL_API_KEY", "XAI_API_KEY"),
)


@frozen
class Program:
    """One agent CLI.

    Attributes:
        install: how it is installed, in one line.
        folder: its folder; a walled task has one of its own in this place.
        settings: what of the user's folder can be read inside of walls.
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
        version: the one that our samples of its output are of; "": it is not known how it signs in.
        sign_in: how a person signs in.
        keys: variables with a key.
        servers: variables that send it elsewhere than to its provider's own servers.
        may_hold_key: files of the user, if they are there; the same `system` of the machine, and `project` in the
            directory in which it works and above.
        local: some of its models need no key; `free`: even one that it chooses by itself may not.
        status: arguments with which the program says, by its exit code, whether it is signed in.
        mend: what helps where its own question whether it is ready was answered with no.
    """

    install: str
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
    version: str = ""
    sign_in: str = ""
    keys: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    may_hold_key: tuple[str, ...] = ()
    system: tuple[str, ...] = ()
    project: tuple[str, ...] = ()
    local: bool = False
    free: bool = False
    status: tuple[str, ...] = ()
    mend: str = ""

    @property
    def folders(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """All folders of which a task has its own, the main one first; and what of the user's is in there."""
        return ((self.folder, self.settings), *self.others)

    @property
    def login(self) -> str:
        """The file that is there if its user is signed in; aider's is never renewed, so it is a setting."""
        return f"{self.folder}/{(*self.credentials, *self.settings)[0]}"


EVERYTHING: Final = "*"
"""As a setting: all that is in the folder."""

PROGRAMS: Final[Mapping[str, Program]] = {
    # It renames its log-in too, but where that fails with EBUSY, as for a mounted file, it writes into the old
    # one.  With CLAUDE_CONFIG_DIR set `.claude.json` is in there; it has the key from a log-in at the console.
    "claude": Program(
        "npm install -g @anthropic-ai/claude-code",
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
            *("primaryApiKey", "customApiKeyResponses", "oauthAccount", "mcpServers"),
            "hasCompletedOnboarding",
        ),
        hosts=(
            *("api.anthropic.com", "*.anthropic.com", "claude.ai", "*.claude.ai"),
            "platform.claude.com",  # where it renews its log-in
        ),
        version="2.1",
        sign_in="type /login in claude, or set ANTHROPIC_API_KEY",
        keys=(
            *("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
            *("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"),
        ),
        servers=("ANTHROPIC_BASE_URL",),
        may_hold_key=(".claude/settings.json", ".claude.json"),
        system=("/etc/claude-code/managed-settings.json",),
        project=(".claude/settings.json", ".claude/settings.local.json"),
        status=("auth", "status"),
    ),
    # With EBUSY it has used up the log-in and cannot store the new one: the user would be logged out.
    "codex": Program(
        "npm install -g @openai/codex",
        ".codex",
        settings=(
            *("config.toml", "AGENTS.md", "AGENTS.override.md", "prompts", "skills", "rules", "hooks.json"),
            "agents",
        ),
        credentials=("auth.json",),
        renames=True,
        prefixes=("OPENAI_", "CODEX_"),
        folder_variable="CODEX_HOME",
        hosts=("api.openai.com", "auth.openai.com", "chatgpt.com", "*.chatgpt.com"),
        version="0.169",
        sign_in="codex login, or set OPENAI_API_KEY",
        keys=("OPENAI_API_KEY", "CODEX_API_KEY"),
        servers=("OPENAI_BASE_URL",),
        may_hold_key=(".codex/config.toml",),
        system=("/etc/codex/config.toml",),
        project=(".codex/config.toml",),
        status=("login", "status"),
    ),
    # As codex.  Beside a plan's keys it had a free log-in, which its provider ended in April 2026.
    "qwen": Program(
        "npm install -g @qwen-code/qwen-code",
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
        version="0.24",
        sign_in="type /auth in qwen, or set OPENAI_API_KEY",
        keys=("OPENAI_API_KEY", "DASHSCOPE_API_KEY"),
        servers=("OPENAI_BASE_URL",),
        may_hold_key=(".qwen/settings.json", ".qwen/.env"),
        system=("/etc/qwen-code/settings.json",),
        project=(".qwen/settings.json", ".qwen/.env"),
    ),
    # It writes into its log-ins.  A key that is typed at its prompt is in gemini-credentials.json.
    "gemini": Program(
        "npm install -g @google/gemini-cli",
        ".gemini",
        settings=(
            *("settings.json", "GEMINI.md", "commands", "agents", "extensions", "skills", "policies", ".env"),
            "trustedFolders.json",
        ),
        credentials=(
            *("oauth_creds.json", "google_accounts.json", "gemini-credentials.json"),
            "mcp-oauth-tokens.json",
        ),
        prefixes=("GEMINI_", "GOOGLE_"),
        folder_variable="GEMINI_CLI_HOME",
        in_variable=".gemini",
        files=(".env",),
        hosts=("generativelanguage.googleapis.com", "cloudcode-pa.googleapis.com", "oauth2.googleapis.com"),
        version="0.61",
        sign_in="type /auth in gemini, or set GEMINI_API_KEY",
        keys=("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI"),
        servers=("GOOGLE_GEMINI_BASE_URL", "GOOGLE_CLOUD_PROJECT"),
        may_hold_key=(".gemini/settings.json", ".gemini/.env"),
        system=("/etc/gemini-cli/settings.json",),
        project=(".gemini/settings.json", ".gemini/.env"),
    ),
    # It writes into its log-ins.  Without a folder for its settings that it can make and write, it does not start.
    "opencode": Program(
        "npm install -g opencode-ai",
        ".local/share/opencode",
        credentials=("auth.json", "mcp-auth.json"),
        prefixes=("OPENCODE_", "ANTHROPIC_", "OPENAI_", "GEMINI_", "GOOGLE_", "OPENROUTER_"),
        others=((".config/opencode", (EVERYTHING,)),),
        variables=(("XDG_STATE_HOME", "/tmp/.state"),),
        hosts=(
            *("api.anthropic.com", "api.openai.com", "openrouter.ai", "models.dev", "opencode.ai"),
            *("*.opencode.ai", "auth.openai.com", "chatgpt.com", "generativelanguage.googleapis.com"),
        ),
        version="1.18",
        sign_in="opencode auth login, or set a provider's key",
        keys=(*_PROVIDER_KEYS, "GOOGLE_GENERATIVE_AI_API_KEY", "OPENCODE_API_KEY"),
        may_hold_key=(".config/opencode/opencode.json", ".config/opencode/opencode.jsonc"),
        project=("opencode.json", "opencode.jsonc", ".opencode"),
        local=True,
        free=True,
    ),
    # Its keys do not expire, so nothing is renewed.  The folder has caches, and a key of OpenRouter's.
    "aider": Program(
        "pipx install aider-chat",
        ".aider",
        settings=("oauth-keys.env",),
        prefixes=("AIDER_", "ANTHROPIC_", "OPENAI_", "GEMINI_", "GOOGLE_", "OPENROUTER_", "DEEPSEEK_", "LITELLM_"),
        files=(".aider.conf.yml", ".aider.model.settings.yml", ".aider.model.metadata.json", ".env"),
        hosts=(
            *("api.anthropic.com", "api.openai.com", "openrouter.ai", "api.deepseek.com"),
            "generativelanguage.googleapis.com",
        ),
        version="0.86",
        sign_in="set a provider's key, such as OPENAI_API_KEY",
        keys=_PROVIDER_KEYS,
        servers=("OPENAI_API_BASE", "OPENAI_BASE_URL"),
        may_hold_key=(".aider.conf.yml", ".env"),
        project=(".aider.conf.yml",),
        local=True,
    ),
    "ollama": Program(
        "see ollama.com/download",
        ".ollama",
        settings=("models",),
        prefixes=("OLLAMA_",),
        hosts=("ollama.com",),
        mend="'ollama serve' starts it, 'ollama pull MODEL' fetches a model",
    ),
}
"""By the name of the program, which is what a user's own agent may run too."""


def find_program(name: str) -> Program | None:
    """What is known of the program of this name or path."""
    return PROGRAMS.get(os.path.basename(name))


_XDG: Final = ((".config/", "XDG_CONFIG_HOME"), (".local/share/", "XDG_DATA_HOME"))


def list_places(home: str, names: Iterable[str], environ: Mapping[str, str]) -> Iterator[str]:
    """Paths in the home directory; first where a variable says that such things are, and then the usual place."""
    for name in names:
        for begin, variable in _XDG:
            other = environ.get(variable, "")
            if name.startswith(begin) and os.path.isabs(other):
                yield os.path.join(other, name.removeprefix(begin))
        yield os.path.join(home, name)


def find_state_folder(program: Program, home: str, environ: Mapping[str, str]) -> str:
    """The user's main folder of a program, whether it is there or not."""
    named = environ.get(program.folder_variable or "")
    if named:
        return os.path.join(os.path.abspath(os.path.expanduser(named)), program.in_variable).rstrip("/")
    return next(list_places(home, (program.folder,), environ))


def find_seed(program: Program, home: str, environ: Mapping[str, str]) -> str:
    """The seed of a program, if it has one: in its folder if a variable names that, else beside it."""
    is_named = environ.get(program.folder_variable or "")
    return os.path.join(find_state_folder(program, home, environ) if is_named else home, program.seed or "")


def find_file(program: Program, name: str, environ: Mapping[str, str]) -> str:
    """Where a file of the user's is that a program reads."""
    home = environ.get("HOME") or os.path.expanduser("~")
    if name == program.seed:
        return find_seed(program, home, environ)
    if name.startswith(f"{program.folder}/"):
        folder = find_state_folder(program, home, environ)
        return os.path.join(folder, name.removeprefix(f"{program.folder}/"))
    return next(list_places(home, (name,), environ))


# A session can be started from within an agent.  These variables would tell its agents that they run inside of
# that one: CLAUDE_CODE_SESSION_KIND=bg alone takes away the rights that options give, CLAUDECODE makes older
# versions refuse to start, CLAUDE_CODE_SIMPLE cuts the tools, and others hold a token of the calling session.
# Seen with claude 2.1.332, codex 0.169, gemini 0.61, qwen 0.24.4 and opencode 1.18.33, or in their sources.
# The user's settings (keys, addresses, models, folders, limits) are passed on.  What a plan or the `env` of an
# agent sets comes later, and counts.
CALLERS: Final = (
    *("CLAUDECODE", "CLAUDE_PID", "CLAUDE_EFFORT", "CLAUDE_BG_*", "AI_AGENT"),
    *("CLAUDE_CODE_CHILD_*", "CLAUDE_CODE_SESSION_*", "CLAUDE_CODE_MESSAGING_*", "CLAUDE_CODE_ENTRYPOINT"),
    *("CLAUDE_CODE_EXECPATH", "CLAUDE_CODE_SSE_PORT", "CLAUDE_CODE_REMOTE*", "CLAUDE_CODE_SIMPLE"),
    *("CLAUDE_CODE_RESUME_*", "CLAUDE_CODE_LAUNCHED_BY_*", "CLAUDE_CODE_BRIDGE_*"),
    *("CLAUDE_CODE_SPAWNED_BY_SERVER", "CLAUDE_CODE_SUPERVISED", "CLAUDE_CODE_WEBSOCKET_*"),
    *("CODEX_CI", "CODEX_SESSION_ID", "CODEX_THREAD_ID", "CODEX_TOOL_CALL_ID", "CODEX_VERSION", "CODEX_SANDBOX*"),
    *("GEMINI_CLI", "GEMINI_SESSION_ID", "GEMINI_PROJECT_DIR", "GEMINI_CWD"),
    *("QWEN_CODE", "QWEN_CODE_SESSION_ID", "QWEN_CODE_AGENT_ID", "QWEN_CODE_PROMPT_ID", "QWEN_CODE_MESSAGING_*"),
    *("QWEN_CODE_RELAUNCH_*", "QWEN_CODE_LAUNCHER_*", "QWEN_CODE_PRIVATE_*", "QWEN_CODE_SIMPLE"),
    *("OPENCODE", "OPENCODE_PID", "OPENCODE_SERVER_*", "OPENCODE_CLIENT", "OPENCODE_ROUTE"),
    "OPENCODE_WORKSPACE_ID",
    *("TRACEPARENT", "TRACESTATE"),  # the span of the caller's own run
)
"""Names of variables; an asterisk stands for any end."""

_NAMES: Final = frozenset(name for name in CALLERS if not name.endswith("*"))
_BEGINNINGS: Final = tuple(name.removesuffix("*") for name in CALLERS if name.endswith("*"))


def find_callers(names: Iterable[str]) -> list[str]:
    """Those of the names that are not passed on."""
    return sorted(name for name in names if name in _NAMES or name.startswith(_BEGINNINGS))

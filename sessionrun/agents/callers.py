"""The variables in which an agent CLI keeps the state of its own session; they are not passed on.

A session can be started from within an agent.  These variables would tell its agents that they run inside of that
one: CLAUDE_CODE_SESSION_KIND=bg alone takes away the rights that options give, CLAUDECODE makes older versions
refuse to start, CLAUDE_CODE_SIMPLE cuts the tools, and others hold a token of the calling session.  Seen with
claude 2.1.332, codex 0.169, gemini 0.61, qwen 0.24.4 and opencode 1.18.33, or in their sources.  The user's
settings (keys, addresses, models, folders, limits) are passed on.  What a plan or the `env` of an agent sets comes
later, and counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

CALLERS: Final = (
    *("CLAUDECODE", "CLAUDE_PID", "CLAUDE_EFFORT", "CLAUDE_BG_*", "AI_AGENT"),
    *("CLAUDE_CODE_CHILD_*", "CLAUDE_CODE_SESSION_*", "CLAUDE_CODE_MESSAGING_*", "CLAUDE_CODE_ENTRYPOINT"),
    *("CLAUDE_CODE_EXECPATH", "CLAUDE_CODE_SSE_PORT", "CLAUDE_CODE_REMOTE*", "CLAUDE_CODE_SIMPLE"),
    *(
        "CLAUDE_CODE_RESUME_*",
        "CLAUDE_CODE_LAUNCHED_BY_*",
        "CLAUDE_CODE_BRIDGE_*",
        "CLAUDE_CODE_SPAWNED_BY_SERVER",
    ),
    *("CLAUDE_CODE_SUPERVISED", "CLAUDE_CODE_WEBSOCKET_*"),
    *("CODEX_CI", "CODEX_SESSION_ID", "CODEX_THREAD_ID", "CODEX_TOOL_CALL_ID", "CODEX_VERSION", "CODEX_SANDBOX*"),
    *("GEMINI_CLI", "GEMINI_SESSION_ID", "GEMINI_PROJECT_DIR", "GEMINI_CWD"),
    *("QWEN_CODE", "QWEN_CODE_SESSION_ID", "QWEN_CODE_AGENT_ID", "QWEN_CODE_PROMPT_ID", "QWEN_CODE_MESSAGING_*"),
    *("QWEN_CODE_RELAUNCH_*", "QWEN_CODE_LAUNCHER_*", "QWEN_CODE_PRIVATE_*", "QWEN_CODE_SIMPLE"),
    *(
        "OPENCODE",
        "OPENCODE_PID",
        "OPENCODE_SERVER_*",
        "OPENCODE_CLIENT",
        "OPENCODE_ROUTE",
        "OPENCODE_WORKSPACE_ID",
    ),
    *("TRACEPARENT", "TRACESTATE"),  # the span of the caller's own run
)
"""Names of variables; an asterisk stands for any end."""

_NAMES: Final = frozenset(name for name in CALLERS if not name.endswith("*"))
_BEGINNINGS: Final = tuple(name.removesuffix("*") for name in CALLERS if name.endswith("*"))


def find_callers(names: Iterable[str]) -> list[str]:
    """Those of the names that are not passed on."""
    return sorted(name for name in names if name in _NAMES or name.startswith(_BEGINNINGS))

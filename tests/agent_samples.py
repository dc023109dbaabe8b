"""Output of real agent CLIs, recorded against a test model server, and what it has to be read as.

Paths, hosts and lists that do not matter were taken out.  claude 2.1.329, codex 0.169.0, qwen 0.24.4,
gemini 0.61.0, opencode 1.18.33, aider 0.86.2.
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import orjson

from sessionrun import agents
from sessionrun.agents import AgentResult
from sessionrun.model import OutputFormat

SAMPLES = Path(__file__).parent / "data" / "agents"
FORMATS: tuple[OutputFormat, ...] = get_args(OutputFormat)
STREAMS = tuple(name for name in FORMATS if name not in ("text", "aider"))

# (agent, case) -> reason class (None: a success), the answer, a part of the reason
RECORDED: dict[tuple[OutputFormat, str], tuple[str | None, str | None, str]] = {
    ("claude", "ok"): (None, "pong from the model", ""),
    ("claude", "tools"): (None, "all done", ""),
    ("claude", "api_error"): ("api_error", "API Error: 400 test failure 400", "400"),
    ("claude", "auth"): ("auth", "Failed to authenticate. API Error: 401 test failure 401", "401"),
    ("claude", "no_key"): ("auth", "Not logged in · Please run /login", "Not logged in"),
    ("claude", "rate_limited"): ("rate_limited", "API Error: Request rejected (429) · test failure 429", "429"),
    ("claude", "overloaded"): (
        "overloaded",
        "API Error: 529 test failure 529. This is a server-side issue, usually temporary — try again in a "
        "moment. If it persists, check your inference gateway (127.0.0.1:8000).",
        "529",
    ),
    ("claude", "denied"): ("denied", "all done", "1 tool calls were refused: Write"),
    ("claude", "max_turns"): ("max_turns", None, "maximum number of turns"),
    ("claude", "slash"): ("agent_error", "/help isn't available in this environment.", "without asking"),
    ("claude", "stopped"): ("incomplete_output", None, "ends before its result"),
    ("claude", "root"): ("incomplete_output", None, "cannot be used with root"),
    ("codex", "ok"): (None, "pong from the model", ""),
    ("codex", "tools"): (None, "all done", ""),
    ("codex", "api_error"): ("agent_error", None, "test failure 400"),
    ("codex", "auth"): ("auth", None, "401 Unauthorized"),
    ("codex", "rate_limited"): ("rate_limited", None, "429 Too Many Requests"),
    ("codex", "overloaded"): ("overloaded", None, "503 Service Unavailable"),
    ("codex", "no_key"): ("agent_error", None, "Missing environment variable"),
    ("codex", "stopped"): ("incomplete_output", None, "ends before its result"),
    ("qwen", "ok"): (None, "pong from the model", ""),
    ("qwen", "tools"): (None, "all done", ""),
    ("qwen", "api_error"): ("api_error", None, "400"),
    ("qwen", "auth"): ("auth", None, "401"),
    ("qwen", "no_key"): ("agent_error", None, "Missing API key"),
    ("qwen", "slash"): ("agent_error", None, "not supported in this mode"),
    ("qwen", "max_turns"): ("incomplete_output", None, "Reached max session turns"),
    ("qwen", "stopped"): ("incomplete_output", None, "Operation cancelled."),
    ("gemini", "ok"): (None, "pong from the model", ""),
    ("gemini", "tools"): (None, "all done", ""),
    ("gemini", "no_model"): (None, "no model", ""),
    ("gemini", "api_error"): ("api_error", None, "test failure 400"),
    ("gemini", "auth"): ("auth", None, "UNAUTHENTICATED"),
    ("gemini", "no_key"): ("incomplete_output", None, "you must specify the GEMINI_API_KEY"),
    ("gemini", "stopped"): ("incomplete_output", None, "ends before its result"),
    ("opencode", "ok"): (None, "pong from the model", ""),
    ("opencode", "tools"): (None, "all done", ""),
    ("opencode", "api_error"): ("api_error", None, "test failure 400"),
    ("opencode", "auth"): ("auth", None, "test failure 401"),
    ("opencode", "denied"): ("denied", None, "refused: write"),
    ("opencode", "stopped"): ("incomplete_output", None, "no output"),
    ("aider", "ok"): (None, None, ""),
    ("aider", "tools"): (None, None, ""),
    ("aider", "api_error"): ("api_error", None, "litellm.BadRequestError"),
    ("aider", "no_key"): ("auth", None, "litellm.AuthenticationError"),
    ("aider", "rate_limited"): ("rate_limited", None, "litellm.RateLimitError"),
    ("aider", "reflections"): ("agent_error", None, "Only 3 reflections allowed"),
}


def sample_path(output: str, case: str) -> Path:
    return SAMPLES / output / f"{case}.{'txt' if output == 'aider' else 'raw'}"


def read_sample(output: OutputFormat, case: str) -> AgentResult:
    path = sample_path(output, case)
    return agents.read_result(output, path, path.with_suffix(".err"))


def read_bytes(folder: Path, output: OutputFormat, stdout: bytes, stderr: bytes = b"") -> AgentResult:
    (folder / "out").write_bytes(stdout)
    (folder / "err").write_bytes(stderr)
    return agents.read_result(output, folder / "out", folder / "err")


def read_stream(folder: Path, output: OutputFormat, *events: object) -> AgentResult:
    return read_bytes(folder, output, b"".join(orjson.dumps(event) + b"\n" for event in events))

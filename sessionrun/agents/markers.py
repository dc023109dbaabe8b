"""Phrases by which agents and model servers say what went wrong, whatever the exit code or HTTP status.

One table, first match wins: what is narrow stands above what is wide.  Each row names where its phrase was
seen: a public issue thread of that version's time, or `recorded`, a sample in tests/data/outcomes.  Only words
of a failure are looked at, never an answer: one that talks of rate limits is an answer.  Agents: claude 1.0 to
2.1, codex 0.27 to 0.169, gemini 0.4 to 0.61, qwen 0.10 to 0.24, opencode 1.18, aider 0.54 to 0.86.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final, NamedTuple

_LOOKED_AT: Final = 16 * 1024
"""Characters of a text, from its end, that are searched."""


class Marker(NamedTuple):
    """A phrase (regular expression, case does not count), its reason class, and where it was seen."""

    reason_class: str
    phrase: str
    source: str


MARKERS: Final = (
    Marker("usage_limit", r"Claude(?: AI)? usage limit reached", "anthropics/claude-code#6119"),
    Marker("rate_limited", r"temporarily limiting requests", "recorded: claude with a subscription, HTTP 429"),
    Marker("usage_limit", r"reached your specified API usage limits", "recorded: claude, HTTP 400"),
    Marker(
        "usage_limit", r"(?:hit|reached) your (?!rate)(?:[\w.-]+ ){0,3}limit\b", "anthropics/claude-code#74079"
    ),
    Marker(
        "usage_limit",
        r"\b(?:5-hour|daily|weekly|monthly|session|opus|sonnet|usage)(?: usage)? limit (?:has been )?reached",
        "anthropics/claude-code#78402, anomalyco/opencode#50352, #47239",
    ),
    Marker("usage_limit", r"usage_limit_(?:reached|exceeded)", "earendil-works/pi#4172: codex"),
    Marker("usage_limit", r"credit balance (?:is )?too low", "anthropics/claude-code#54566, #46277"),
    Marker("usage_limit", r"insufficient_quota", "Aider-AI/aider#1686: OpenAI, HTTP 429"),
    Marker("usage_limit", r"Quota exceeded\. Check your plan and billing", "openai/codex#17042"),
    Marker("usage_limit", r"workspace is out of credits", "openai/codex, usage limits of a workspace"),
    Marker("usage_limit", r"billing_hard_limit_reached", "OpenAI's error codes"),
    Marker("usage_limit", r"requires more credits|insufficient balance", "OpenRouter, DeepSeek: HTTP 402"),
    Marker("usage_limit", r"requests\s+per\s+day|PerDay", "google-gemini/gemini-cli#10925, #6962"),
    Marker("usage_limit", r"exhausted your (?:daily|weekly|monthly) quota", "google-gemini/gemini-cli#15576"),
    Marker(
        "usage_limit",
        r"exhausted your capacity[^\n]{0,40}reset after (?:\d+h|[1-9]\d+m|[5-9]m)",
        "google-gemini/gemini-cli#13004; below five minutes it is the requests per minute",
    ),
    Marker("rate_limited", r"exhausted your capacity", "google-gemini/gemini-cli#22107"),
    Marker("rate_limited", r"RESOURCE_EXHAUSTED", "google-gemini/gemini-cli#14811; also coder/coder#26200"),
    Marker("usage_limit", r"Qwen OAuth quota exceeded", "QwenLM/qwen-code#3267"),
    Marker("usage_limit", r"allocated quota exceeded", "QwenLM/qwen-code#1742"),
    Marker("usage_limit", r"FreeUsageLimitError|free usage exceeded", "anomalyco/opencode#42033, #50093"),
    Marker("usage_limit", r"exceeded your current quota", "BerriAI/litellm#13467: OpenAI"),
    Marker("context_full", r"prompt is too long", "anthropics/claude-code#12312"),
    Marker("context_full", r"exceeds? (?:the )?context (?:limit|window)", "anthropics/claude-code#16580"),
    Marker("context_full", r"context_length_exceeded|maximum context length", "OpenAI's error codes"),
    Marker("context_full", r"ran out of room in the model's context", "openai/codex#14310"),
    Marker("context_full", r"longer than the model's context length", "Alishahryar1/free-claude-code#263"),
    Marker("context_full", r"token count[^\n]{0,60} exceeds the maximum", "Gemini's error 400"),
    Marker("context_full", r"ContextOverflowError|has hit a token limit", "anomalyco/opencode#33376; recorded"),
    Marker("no_conversation", r"\bno conversation found with session id", "recorded: claude"),
    Marker("no_conversation", r"\bno rollout found for thread id", "recorded: codex"),
    Marker("no_conversation", r"^no saved session found with id", "recorded: qwen"),
    Marker(
        "no_conversation",
        r"^error resuming session: (?:no previous sessions|invalid session identifier)",
        "recorded: gemini",
    ),
    Marker("no_conversation", r"^error: session not found", "recorded: opencode"),
    Marker("bad_model", r"issue with the selected model", "anthropics/claude-code#50439"),
    Marker("bad_model", r"model_not_found|ModelNotFoundError", "OpenAI's error codes; opencode"),
    Marker("bad_model", r"model is not supported when using", "openai/codex#17642"),
    Marker(
        "bad_model",
        r"\bmodel:? ['\"`][^\s'\"`]{1,120}['\"`] (?:not found|does not exist)",
        "anthropics/claude-code#41120",
    ),
    Marker("bad_model", r"\bmodels/\S{1,120} is not found for API version", "Gemini's error 404"),
    Marker("refused", r"violates? our usage policy", "anthropics/claude-code#3028, #66999"),
    Marker("refused", r"content_policy_violation|content_filter|PROHIBITED_CONTENT", "error codes of the APIs"),
    Marker("auth", r"\bnot logged in\b|please run /login", "recorded: claude"),
    Marker("auth", r"(?:invalid|incorrect|missing) api key|invalid_api_key|api key not valid", "recorded: qwen"),
    Marker("auth", r"authentication_error|UNAUTHENTICATED|AuthenticationError", "recorded: claude, gemini, aider"),
    Marker("auth", r"missing environment variable: `\w*(?:KEY|TOKEN)`", "recorded: codex"),
    Marker("auth", r"must specify the \w*API_KEY|invalid auth method selected", "recorded: gemini"),
    Marker("auth", r"OAuth (?:token|session) (?:has )?expired|ProviderAuthError", "claude; opencode"),
    Marker("overloaded", r"overloaded_error|\boverloaded\b", "recorded: claude"),
    Marker(
        "overloaded",
        r"model is at capacity|no capacity available",
        "openai/codex#47144, google-gemini/gemini-cli#23980",
    ),
    Marker("overloaded", r"experiencing high (?:demand|load)", "google-gemini/gemini-cli#24066"),
    Marker("rate_limited", r"rate_limit_(?:error|exceeded)|RateLimitError", "anomalyco/opencode#47747"),
    Marker("rate_limited", r"too many requests|rate limit (?:exceeded|reached)", "recorded: codex"),
    Marker("max_turns", r"reached max(?:imum)? (?:session turns|number of turns)", "recorded: qwen, claude"),
    Marker("denied", r"permission requested:[^\n]{0,400}auto-rejecting", "recorded: opencode"),
    Marker("aborted", r"^operation cancelled\.|request interrupted by user", "recorded: qwen; claude"),
    Marker("unreachable", r"ECONNREFUSED|ENOTFOUND|EAI_AGAIN|connection refused", "Node's and the system's words"),
    Marker("unreachable", r"unable to connect to API|stream disconnected before completion", "claude; codex"),
)

_RETRIED: Final = re.compile(r"(?i)\bretry(?:ing)? (?:in|after|with)\b|\battempt \d+ failed|reconnecting\.\.\.")
"""A line on standard error about a request that was tried again: it says nothing of the last one."""

_IS_NO_ANSWER: Final = re.compile(
    r"(?:Claude(?: AI)? usage limit reached.{0,80}"
    r"|You['\u2019]ve hit your (?:[\w.-]+ ){0,3}limit(?: [\u00b7\u2219] .{0,80})?"
    r"|(?:5-hour|weekly|session|opus|sonnet) limit reached [\u00b7\u2219] resets .{0,80}"
    r"|credit balance is too low.{0,80}|prompt is too long"
    r"|\[API Error: .*\])",
    re.IGNORECASE | re.DOTALL,
)
"""Whole results that some versions gave out as a success (anthropics/claude-code#6119, #79500)."""


def class_of_text(text: str) -> str | None:
    """The reason class that the words of a failure name, or None."""
    phrase = _find(text)
    return phrase[0] if phrase else None


def find_in_errors(stderr: str, *, waits: bool = False) -> tuple[str, str] | None:
    """Class and line of what standard error says of a run that failed, or that still `waits`.

    In a run that failed, requests that were tried again do not count.
    """
    text = stderr if waits else drop_retries(stderr)
    phrase = _find(text)
    return None if phrase is None else (phrase[0], line_at(text, phrase[1]))


def line_at(text: str, position: int) -> str:
    """The line of a text in which a place is."""
    begin = text.rfind("\n", 0, position) + 1
    return text[begin:].partition("\n")[0].strip()


def drop_retries(stderr: str) -> str:
    """The lines of standard error that do not tell of a request that was tried again."""
    return "\n".join(line for line in stderr[-_LOOKED_AT:].splitlines() if not _RETRIED.search(line))


def is_no_answer(text: str) -> bool:
    """Whether a result that claims success is an error message as a whole, and not an answer about one."""
    return len(text) <= 2000 and _IS_NO_ANSWER.fullmatch(text.strip()) is not None


def _find(text: str) -> tuple[str, int] | None:
    looked_at = text[-_LOOKED_AT:].replace("\u2019", "'")
    for pattern, reason_class in _compile():
        if match := pattern.search(looked_at):
            return reason_class, match.start()
    return None


@cache
def _compile() -> tuple[tuple[re.Pattern[str], str], ...]:
    """The table for use; most processes that load this module never look at a failure."""
    return tuple((re.compile(row.phrase, re.IGNORECASE | re.MULTILINE), row.reason_class) for row in MARKERS)

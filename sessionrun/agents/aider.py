"""Aider: how to start it and how to read its plain text (0.86).

It ends with exit code 0 whatever happens.  What tells is its last word: ``Tokens: ... sent, ... received.``
after an answered request, or a line that says why there was none, such as ``litellm.SomeError: ...``; a
retried request has the second and then the first.  It asks on standard input and takes the end of it for its
default answer, mostly yes: without ``--yes-always`` it still edits.  While it streams, its tokens are its own
estimate.  This module must not know how processes are run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from sessionrun.agents.reading import AgentResult, one_line, unfinished
from sessionrun.model import AgentSpec, Usage

AGENT: Final = AgentSpec(
    name="aider",
    argv=(
        "aider",
        "--message-file={prompt_file}",
        "--no-pretty",
        "--no-fancy-input",
        "--no-analytics",
        "--no-check-update",
        "--no-show-release-notes",
        "--no-show-model-warnings",
        "--no-gitignore",
        "--no-suggest-shell-commands",
        "--no-detect-urls",
        "{model_args}",
        "{approve_args}",
    ),
    stdin="none",
    model_args=("--model={model}",),
    approve_args=("--yes-always",),
    output="aider",
)

_FAILED: Final = re.compile(
    r"litellm\.(\w+):.*|Model \S+ has hit a token limit!|Only \d+ reflections allowed, stopping\."
)
_AMOUNT: Final = r"(\d{1,9}(?:\.\d)?)(k?)"
_TOKENS: Final = re.compile(rf"Tokens: {_AMOUNT} sent,(?:.*,)? {_AMOUNT} received\.")
_COST: Final = re.compile(r"\$(\d{1,9}(?:\.\d{1,12})?)\s+session\.")
_MODEL: Final = re.compile(r"(?:Main model|Model): (\S{1,200}) with ")

_CLASSES: Final = {
    "AuthenticationError": "auth",
    "PermissionDeniedError": "auth",
    "RateLimitError": "rate_limited",
    "ServiceUnavailableError": "overloaded",
    "ContextWindowExceededError": "context_full",
}


def read(lines: Iterable[bytes]) -> AgentResult:
    """The fate of the last request, and tokens and cost of all."""
    model = failed = cost = None
    sent = received = answered = 0
    report = ""
    for raw in lines:
        line = raw[:4096].decode("utf-8", "replace")
        if found := _TOKENS.match(line):
            failed = None
            answered += 1
            sent += _amount_of(*found.group(1, 2))
            received += _amount_of(*found.group(3, 4))
        elif found := _FAILED.match(line):
            failed = found
        elif model is None and (found := _MODEL.match(line)):
            model = found.group(1)
        # Aider wraps at 80 columns: the cost may stand on the line below the tokens.
        if _TOKENS.match(report + line) and (found := _COST.search(report + line)):
            cost = float(found.group(1))
        report = line if _TOKENS.match(line) else ""
    if model is not None and not model.isprintable():
        model = None
    if failed is None and not answered:
        return unfinished(model=model)
    return AgentResult(
        ok=failed is None,
        reason_class=_class_of(failed) if failed else None,
        reason=one_line(failed.group(0)) if failed else None,
        model=model,
        usage=Usage(sent, received, cost) if answered else None,
        turns=answered,
    )


def _class_of(failed: re.Match[str]) -> str:
    if failed.group(1):
        return _CLASSES.get(failed.group(1), "api_error")
    return "context_full" if failed.group(0).startswith("Model") else "agent_error"


def _amount_of(digits: str, unit: str) -> int:
    """Tokens as aider prints them: rounded to hundreds and thousands beyond 1,000."""
    return round(float(digits) * (1000 if unit else 1))

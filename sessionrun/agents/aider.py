"""Aider: how to start it and how to read its plain text (0.86).

It ends with exit code 0 whatever happens.  What tells is its last word: ``Tokens: ... sent, ... received.`` after
an answered request, or a line that says why there was none, such as ``litellm.SomeError: ...``; a retried request
has the second and then the first.  Text is wrapped at 80 columns, in the middle of words if need be.  It asks on
standard input and takes the end of it for its default answer, mostly yes: without ``--yes-always`` it still edits.
While it streams, its tokens are its own estimate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from sessionrun.agents.markers import class_of_text
from sessionrun.agents.reading import AgentResult, Problem, finished, unfinished
from sessionrun.model.spec import AgentSpec
from sessionrun.model.usage import Usage

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

LEAVES: Final = (
    "/.aider.chat.history.md",
    "/.aider.input.history",
    "/.aider.llm.history",
    "/.aider.tags.cache.v*/",
)
"""What it writes for itself into the repository, as rules for git to ignore."""

_FAILED: Final = (
    r"litellm\.(\w+):.*|Model \S+ has hit a token limit!|Only \d+ reflections allowed, stopping\."
    r"|\^C (?:again to exit|KeyboardInterrupt)"
)
_RETRY: Final = r"Retry(?:ing)? in [\d.]+ seconds"
_WORDS_LINES: Final = 40
_AMOUNT: Final = r"(\d{1,9}(?:\.\d)?)(k?)"
_TOKENS: Final = rf"Tokens: {_AMOUNT} sent,(?:.*,)? {_AMOUNT} received\."
_COST: Final = r"\$(\d{1,9}(?:\.\d{1,12})?)\s+session\."
_MODEL: Final = r"(?:Main model|Model): (\S{1,200}) with "

_CLASSES: Final = {
    "AuthenticationError": "auth",
    "PermissionDeniedError": "auth",
    "RateLimitError": "rate_limited",
    "ServiceUnavailableError": "overloaded",
    "ContextWindowExceededError": "context_full",
    "NotFoundError": "bad_model",
    "ContentPolicyViolationError": "refused",
    "APIConnectionError": "unreachable",
    "Timeout": "unreachable",
}


def read(lines: Iterable[bytes]) -> AgentResult:
    """The fate of the last request, and tokens and cost of all."""
    model = failed = cost = None
    sent = received = answered = 0
    report = ""
    words: list[str] = []
    for raw in lines:
        line = raw[:4096].decode("utf-8", "replace")
        if match := re.match(_TOKENS, line):
            failed = None
            answered += 1
            sent += _amount_of(*match.group(1, 2))
            received += _amount_of(*match.group(3, 4))
        elif match := re.match(_FAILED, line):
            failed, words = match, []
        elif model is None and (match := re.match(_MODEL, line)):
            model = match.group(1)
        if failed is not None and len(words) < _WORDS_LINES and not re.match(_RETRY, line):
            words.append(line.rstrip("\n"))
        # Aider wraps at 80 columns: the cost may stand on the line below the tokens.
        if re.match(_TOKENS, report + line) and (match := re.search(_COST, report + line)):
            cost = float(match.group(1))
        report = line if re.match(_TOKENS, line) else ""
    if model is not None and not model.isprintable():
        model = None
    if failed is None and not answered:
        return unfinished(AgentResult(model=model))
    usage = Usage(sent, received, cost) if answered else None
    known = AgentResult(model=model, usage=usage, turns=answered, is_final=True)
    return finished(known, _problem_of(failed, words) if failed else None)


def _problem_of(failed: re.Match[str], words: list[str]) -> Problem:
    """The line that says it, and what stands below it; a wrapped phrase is looked for joined both ways."""
    line, name = failed.group(0), failed.group(1)
    if name is None:
        return Problem("aborted" if line.startswith("^C") else class_of_text(line) or "agent_error", line)
    # litellm's own word for the error comes last: a used up account is a RateLimitError as well
    known = class_of_text(" ".join(words).replace(name, "")) or class_of_text("".join(words).replace(name, ""))
    return Problem(known or _CLASSES.get(name, "api_error"), line, " ".join(words))


def _amount_of(digits: str, unit: str) -> int:
    """Tokens as aider prints them: rounded to hundreds and thousands beyond 1,000."""
    return round(float(digits) * (1000 if unit else 1))

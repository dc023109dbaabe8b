"""What tasks used up and cost, in words: sums of what status.json says, and what of it is not known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

from sessionrun.model.errors import name_some
from sessionrun.model.usage import Usage

NAMED_MODELS: Final = 5
"""How many models without a price are named in a warning."""

Shown = Mapping[str, Any]
"""An object of status.json."""


def usages_of(task: Shown) -> Iterator[tuple[str, Usage]]:
    """What a task used, by model; nothing for one that asked no model, or has not told yet."""
    for model, used in (task["usage_by_model"] or {}).items():
        yield model, read_usage(used)


def usages_by_agent(task: Shown) -> Iterator[tuple[str, str, Usage]]:
    """The same with the agent that used it: agent, model, usage."""
    if task["usage_by_agent"] is None:  # no other agent than the task's own
        yield from ((task["agent"], model, used) for model, used in usages_of(task))
        return
    for agent, models in task["usage_by_agent"].items():
        yield from ((agent, model, read_usage(used)) for model, used in models.items())


def read_usage(shown: Shown) -> Usage:
    """The record of a `usage` object."""
    return Usage(**{field.name: shown[field.name] for field in fields(Usage)})


def sum_usages(usages: Iterable[Usage]) -> Usage | None:
    """The sum, None of nothing."""
    total = None
    for used in usages:
        total = used if total is None else total.plus(used)
    return total


def describe_usage(used: Usage) -> str:
    """Tokens and cost in one line, as far as they are known."""
    cached = f" ({used.cached_input_tokens:,} cached)" if used.cached_input_tokens else ""
    words = [] if used.input_tokens is None else [f"{used.input_tokens:,} tokens in{cached}"]
    words += [] if used.output_tokens is None else [f"{used.output_tokens:,} out"]
    return ", ".join([*words, f"cost {describe_cost(used)}"])


def describe_cost(used: Usage) -> str:
    """``$1.23``; ``>= $1.23`` when some of it is not known; ``unknown``; ``~`` marks what a price table says."""
    if used.cost_usd is None:
        return "unknown"
    about = "~" if used.cost_source == "table" else ""
    return f"{'>= ' if used.unpriced_jobs else ''}{about}{amount(used.cost_usd)}"


def tell_cost(shown: Shown | None) -> str:
    """The same of a `usage` object; nothing where no model was asked."""
    return describe_cost(read_usage(shown)) if shown else ""


def amount(usd: float) -> str:
    """US dollars for people."""
    return f"${usd:,.2f}" if usd >= 1 else f"${usd:.4f}"


def tell_unpriced(tasks: Iterable[Shown]) -> str:
    """For how many tasks the cost is not known, and what helps; empty: it is known of all."""
    tasks = [task for task in tasks if task["usage"] is not None]
    used = [list(usages_of(task)) for task in tasks]
    unknown = [usages for usages in used if any(usage.unpriced_jobs for _, usage in usages)]
    if not unknown:
        return ""
    open_usages = [(model, usage) for usages in unknown for model, usage in usages if usage.unpriced_jobs]
    unpriced = sorted(
        {model for model, usage in open_usages if usage.input_tokens is not None and usage.cost_usd is None}
    )
    keys = f'[prices."{unpriced[0]}"]' if len(unpriced) == 1 else '[prices."MODEL"] of each'
    why = [f"no price for {name_some(unpriced, NAMED_MODELS)}: add {keys} to sessionrun.toml"] if unpriced else []
    silent = sum(model not in unpriced for model, _ in open_usages)
    why += [f"{silent} did not report what they used"] if silent else []
    return f"cost: unknown for {len(unknown)} of {len(tasks)} tasks ({'; '.join(why)})"

"""What agents consume: the record, how two of them add up, and in words what tasks used and cost.

The words are of what status.json says (`usage` and its kin), and of what is not known of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Final, Literal, TypeVar

from sessionrun.model.errors import name_some
from sessionrun.model.frozen import frozen

NAMED_MODELS: Final = 5
"""How many models without a price are named in a warning."""

Shown = Mapping[str, Any]
"""An object of status.json."""

CostSource = Literal["agent", "table"]
"""Where the cost of a job comes from: its agent's report, or the session's table of prices."""


@frozen
class Usage:
    """What a job's agent says it consumed; None = not said.  Cost in US dollars.

    `cached_input_tokens` are those of `input_tokens` that came from the provider's cache.  In a sum, `cost_usd` is
    a lower bound if there are `unpriced_jobs`, and `cost_source` is the table if any of it came from there.
    """

    # without `model.kinds`, which would make a poll import msgspec
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    cached_input_tokens: int | None = None
    cost_source: CostSource | None = None
    unpriced_jobs: int = 0

    def plus(self, more: Usage) -> Usage:
        """The sum; what only one side says counts alone."""
        return Usage(
            _add(self.input_tokens, more.input_tokens),
            _add(self.output_tokens, more.output_tokens),
            _add(self.cost_usd, more.cost_usd),
            _add(self.cached_input_tokens, more.cached_input_tokens),
            "table" if "table" in (self.cost_source, more.cost_source) else self.cost_source or more.cost_source,
            self.unpriced_jobs + more.unpriced_jobs,
        )


_Number = TypeVar("_Number", int, float)


def _add(a: _Number | None, b: _Number | None) -> _Number | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b


# --- what status.json says ---


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


def describe_budget(budget: Shown) -> str:
    """What is spent and reserved of a `budget` object, and whether the session is held for it."""
    whole = f" of {amount(budget['budget_usd'])}" if budget["budget_usd"] is not None else ""
    limit = budget["soft_budget_usd"]
    soft = "" if limit is None else f", soft budget {amount(limit)}"
    held = ": held until 'sessionrun release ID'" if budget["held"] else ""
    return f"{amount(budget['spent_usd'])} spent, {amount(budget['reserved_usd'])} reserved{whole}{soft}{held}"


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

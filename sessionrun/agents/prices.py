"""What models cost: our table, what the user says instead, and the cost of a job.

Our table is data beside this module (``prices.json``): list prices as of its date, with where they were read.  A
session keeps the whole table as it was at its launch in spec.json, so that neither a replay nor a later version of
sessionrun changes what something cost.

A name covers a model if it is the model's name, the model's name without a date or ``-preview``, ``-latest``, or
if it ends in ``*`` and the model's name begins with it; the longest such name counts.  ``.`` and ``-`` are alike,
and so are upper and lower case.  Before names are compared the prefixes of `FIRST_HAND` are taken off the model's
name, since their prices are the maker's own; with any other one (a cloud's, a local server's) a name must have it
too.  What is not covered has no price: none is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.model.spec import Price
from sessionrun.model.usage import Usage

FIRST_HAND: Final = ("openrouter/", "openai/", "anthropic/", "google/", "gemini/", "models/")
"""Prefixes of model names behind which the maker's list prices hold, in the order in which they may stand."""

MILLION: Final = 1_000_000

_TABLE: Final = Path(__file__).with_name("prices.json")
_VERSION: Final = re.compile(
    r"(?:-latest|-preview)?(?:-[0-9]{4}-[0-9]{2}-[0-9]{2}|-[0-9]{8}|-[0-9]{2}-[0-9]{2,4}|-[0-9]{3})?"
)
"""What may follow a model's name without making it another model."""


def load_prices(own: Mapping[str, Price]) -> dict[str, Price]:
    """Our table under the user's own prices: those replace each of ours that they cover."""
    import orjson

    models = orjson.loads(_TABLE.read_bytes())["models"]
    ours = {name: Price(**price) for name, price in models.items()}
    return {**{name: price for name, price in ours.items() if find_price(own, name) is None}, **own}


def find_price(prices: Mapping[str, Price], model: str) -> Price | None:
    """The price of a model, None where no name covers it."""
    bare = model
    for prefix in FIRST_HAND:
        bare = bare.removeprefix(prefix)
    for name in dict.fromkeys((model, bare)):  # a name with the prefix means it
        fitting = [entry for entry in prices if _covers(entry, name)]
        if fitting:
            return prices[max(fitting, key=lambda entry: len(entry.rstrip("*")))]
    return None


def price_usage(prices: Mapping[str, Price], usage: Usage, model: str) -> Usage:
    """A job's usage with what it cost: what the agent says itself, else by the price of `model`, else None.

    An agent that says 0 for tokens that it used just knows no price.
    """
    counts = (usage.input_tokens, usage.output_tokens)
    if usage.cost_usd is not None and (usage.cost_usd > 0 or not any(counts)):
        return replace(usage, cost_source="agent")
    price = find_price(prices, model)
    if price is None or usage.input_tokens is None or usage.output_tokens is None:
        return replace(usage, cost_usd=None)
    cached = min(usage.cached_input_tokens or 0, usage.input_tokens)
    cached_price = price.input if price.cached_input is None else price.cached_input
    cost = (usage.input_tokens - cached) * price.input + cached * cached_price + usage.output_tokens * price.output
    return replace(usage, cost_usd=cost / MILLION, cost_source="table")


def _covers(name: str, model: str) -> bool:
    name, model = (text.lower().replace(".", "-") for text in (name, model))
    if name.endswith("*"):
        return model.startswith(name[:-1])
    return model.startswith(name) and _VERSION.fullmatch(model, len(name)) is not None

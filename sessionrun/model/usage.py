"""What agents consume: the record, and how two of them add up.  Must not know anything else."""

from __future__ import annotations

from typing import Literal, TypeVar

from sessionrun.model.frozen import frozen

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

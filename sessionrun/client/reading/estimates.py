"""How sure a share, a difference or a price is that was found on a few tasks: estimates with intervals of 95 %.

A task counts once, however often it was run: what holds on tasks like these is asked, and runs of one task are
alike.  Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import atan2, comb, cos, exp, log, pi, sin, sqrt
from typing import Final, NamedTuple

DOUBT: Final = 0.05

_Z: Final = 1.959963984540054
"""Of the normal distribution, for 95 % in the middle."""


class Estimate(NamedTuple):
    """A number, and the ends of its interval: None where nothing is known of them."""

    estimate: float
    low: float | None
    high: float | None


class Difference(NamedTuple):
    """How much more one arm solves than another, -1 to 1; `p` is how likely so much is by chance."""

    estimate: float
    low: float
    high: float
    p: float


def estimate_pass(runs: int, successes: int, k: int) -> float | None:
    """The chance that at least one of k runs succeeds, without bias; None where there are fewer than `k` runs.

    1 - C(n-c, k) / C(n, k) after Chen et al. 2021.
    """
    if runs < k:
        return None
    return 1.0 - comb(runs - successes, k) / comb(runs, k)


def wilson(share: float, count: int) -> tuple[float, float]:
    """The interval of a share of `count` draws (1 or more) after Wilson.

    Values between 0 and 1 vary no more than draws of 0 and 1 do: so for their mean it is never too narrow.
    """
    squared = _Z * _Z
    middle = share + squared / (2 * count)
    spread = _Z * sqrt(share * (1 - share) / count + squared / (4 * count * count))
    whole = 1 + squared / count
    return max(0.0, (middle - spread) / whole), min(1.0, (middle + spread) / whole)


def estimate_difference(by_task: Sequence[float], samples: float) -> Difference | None:
    """The mean difference over tasks like these; None of fewer than two.

    Student's t over tasks, with 1/(2 samples) added to the sum of squares.  Without that, tasks that all came
    out alike would give an interval without width, and of few tasks it would be too narrow.

    Args:
        by_task: of each task, the share of runs that one arm solved less that of the other.
        samples: how many runs of each arm a task has, on average.
    """
    count = len(by_task)
    if count < 2:
        return None
    mean = sum(by_task) / count
    squares = sum((value - mean) ** 2 for value in by_task) + 1 / (2 * samples)
    error = sqrt(squares / (count - 1) / count)
    spread = find_t(DOUBT, count - 1) * error
    chance = find_chance(abs(mean) / error, count - 1)
    return Difference(mean, max(-1.0, mean - spread), min(1.0, mean + spread), chance)


def correct_chances(chances: Sequence[float]) -> list[float]:
    """The same chances where several comparisons are made at once, after Holm."""
    corrected, least = [0.0] * len(chances), 0.0
    for rank, place in enumerate(sorted(range(len(chances)), key=lambda place: chances[place])):
        least = min(1.0, max(least, chances[place] * (len(chances) - rank)))
        corrected[place] = least
    return corrected


def estimate_price(costs: Sequence[float], solved: Sequence[float]) -> Estimate | None:
    """What a success costs, given cost and successes by task; None: nothing succeeded.

    The jackknife over tasks, of the logarithm.  It has no interval where one task has all successes.
    """
    cost, successes, count = sum(costs), sum(solved), len(costs)
    if not successes:
        return None
    price = cost / successes
    if count < 2 or cost <= 0 or any(one >= successes for one in solved) or any(one >= cost for one in costs):
        return Estimate(price, None, None)
    without = [log((cost - one) / (successes - own)) for one, own in zip(costs, solved, strict=True)]
    mean = sum(without) / count
    error = sqrt((count - 1) / count * sum((value - mean) ** 2 for value in without))
    spread = find_t(DOUBT, count - 1) * error
    return Estimate(price, price * exp(-spread), price * exp(spread))


@cache
def find_t(chance: float, df: int) -> float:
    """The number that Student's t with `df` degrees of freedom exceeds, up or down, with this chance."""
    low, high = 0.0, 1.0
    while find_chance(high, df) > chance:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if find_chance(middle, df) > chance else (low, middle)
    return high


def find_chance(t: float, df: int) -> float:
    """The chance that Student's t with `df` degrees of freedom is farther from 0 than `t`.

    Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle = atan2(t, sqrt(df))
    odd = df % 2
    term, total = cos(angle) if odd else 1.0, 0.0
    for number in range(1, df // 2 + 1):
        total += term
        term *= cos(angle) ** 2 * (2 * number - 1 + odd) / (2 * number + odd)
    within = sin(angle) * total
    return 1 - (2 / pi * (angle + within) if odd else within)

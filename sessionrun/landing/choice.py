"""Which of several attempts at the same task is tried next.  Pure.

Groups are tasks; the attempts of a group stand in the order of their worth.  A choice has at most one attempt of a
group.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from sessionrun.landing.records import Clash

SWAPS: Final = 30
"""So many attempts that were left out are tried in place of those that conflict with them."""

Groups = Mapping[str, Sequence[str]]
Enemies = Mapping[str, Collection[str]]
"""By attempt, those of other groups that cannot be merged with it."""


def choose_best(groups: Groups) -> dict[str, str]:
    """The first attempt of each group."""
    return {group: attempts[0] for group, attempts in groups.items() if attempts}


def choose_union(groups: Groups, enemies: Enemies) -> dict[str, str]:
    """As many attempts as can be found of which no two conflict, by group.

    They are taken greedily: the one with the fewest conflicts for its worth first.  Then each of the best attempts
    that were left out is forced in, and it is chosen again around it; the choice with the most groups counts, and
    of two such choices the one of more worth.
    """
    ranks = {attempt: rank for attempts in groups.values() for rank, attempt in enumerate(attempts)}
    best = _choose_around(None, groups, enemies, ranks)
    left = sorted((attempt for attempt in ranks if attempt not in best.values()), key=ranks.__getitem__)
    for forced in left[:SWAPS]:
        other = _choose_around(forced, groups, enemies, ranks)
        if _value(other, ranks) > _value(best, ranks):
            best = other
    return {group: best[group] for group in groups if group in best}


def list_enemies(clashes: Collection[Clash]) -> dict[str, set[str]]:
    """Clashes, by attempt."""
    enemies: dict[str, set[str]] = {}
    for clash in clashes:
        first, second = clash.tasks
        enemies.setdefault(first, set()).add(second)
        enemies.setdefault(second, set()).add(first)
    return enemies


def leave_out(groups: Groups, attempts: Collection[str]) -> dict[str, list[str]]:
    """The groups without these attempts; a group that has no others is left out, too."""
    kept = {group: [one for one in ranked if one not in attempts] for group, ranked in groups.items()}
    return {group: ranked for group, ranked in kept.items() if ranked}


def _choose_around(
    forced: str | None, groups: Groups, enemies: Enemies, ranks: Mapping[str, int]
) -> dict[str, str]:
    owners = {attempt: group for group, attempts in groups.items() for attempt in attempts}
    chosen: dict[str, str] = {}
    alive = dict(owners)

    def take(attempt: str) -> None:
        chosen[owners[attempt]] = attempt
        against = enemies.get(attempt, ())
        for other in [one for one in alive if owners[one] == owners[attempt] or one in against]:
            del alive[other]

    def cost(attempt: str) -> tuple[int, int]:
        conflicts = sum(other in alive for other in enemies.get(attempt, ()))
        return conflicts * (1 + ranks[attempt]), ranks[attempt]

    if forced is not None:
        take(forced)
    while alive:
        take(min(alive, key=cost))
    return chosen


def _value(chosen: Mapping[str, str], ranks: Mapping[str, int]) -> tuple[int, int]:
    return len(chosen), -sum(ranks[attempt] for attempt in chosen.values())

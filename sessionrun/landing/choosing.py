"""Lands one of several attempts at the same task: rounds of landings, until no group has an attempt left.

    look which groups have landed one -> choose one of each other group -> land them
    -> of each group whose attempt was bounced, choose another one -> land them -> ...

How the attempts of a round land, one after the other or together, is the landing's business.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final, Literal, NamedTuple

from sessionrun.landing.choice import choose_best, choose_union, leave_out, list_enemies
from sessionrun.landing.forecast import Survey, survey
from sessionrun.landing.records import NOT_CHOSEN, Clash, Fate, LandRequest, Report

How = Literal["best", "union"]

_WORDS: Final = {
    "landed": "{} landed",
    "ready": "{} would land",
    "held": "{} was chosen, and is held",
    "waiting": "{} was chosen, and waits",
    "bounced": "{} was chosen, and was bounced",
}


class Chosen(NamedTuple):
    """What became of the attempts: the report of all rounds together, and those that were tried.

    The report has the fate of each attempt, also of those that were not chosen.
    """

    report: Report
    tried: frozenset[str]


def land_chosen(
    request: LandRequest,
    groups: Mapping[str, list[str]],
    how: How,
    run: Callable[[LandRequest], Report],
    *,
    dry_run: bool,
) -> Chosen:
    """Land one attempt of each group.

    Args:
        request: has the attempts of all groups; those that are wanted may be chosen.
        groups: by group, all its attempts in the order of their worth.
        how: by what is chosen.
        run: lands what is wanted, or forecasts it.
        dry_run: whether `run` only forecasts.

    Raises:
        SessionrunError, OSError: git failed.
    """
    owners = {attempt: group for group, attempts in groups.items() for attempt in attempts}
    found = survey(_want(request, owners), owners, compare=how == "union")
    wanted = {entry.task for entry in request.entries if entry.wanted and entry.task in owners}
    done = {owners[attempt]: attempt for attempt in owners if attempt in found.landed}
    rounds = _Rounds(request, leave_out(groups, owners.keys() - wanted), how, found, dry_run=dry_run)
    reports = rounds.land(run, set(found.landed & wanted), done)
    report = _add_up(reports, found, dry_run=dry_run)
    fates = dict(rounds.fates)
    for attempt in wanted - fates.keys():
        fates[attempt] = _explain(attempt, rounds.last.get(owners[attempt]), rounds.fates)
    order = [entry.task for entry in request.entries if entry.task in fates]
    return Chosen(replace(report, fates=tuple(fates[task] for task in order)), frozenset(rounds.fates))


class _Rounds:
    """Rounds of landings; `last` has by group the attempt that counts, `fates` what became of those tried."""

    def __init__(
        self, request: LandRequest, groups: Mapping[str, list[str]], how: How, found: Survey, *, dry_run: bool
    ) -> None:
        self._request = request
        self._groups = dict(groups)
        self._how = how
        self._blocked = found.blocked
        self._enemies = list_enemies(found.clashes)
        self._dry_run = dry_run
        self._kept: list[str] = []
        self.fates: dict[str, Fate] = {}
        self.last: dict[str, str] = {}

    def land(
        self, run: Callable[[LandRequest], Report], landed: Collection[str], done: Mapping[str, str]
    ) -> list[Report]:
        """Land until no group is left; of those `done` the attempts that `landed` are only looked at."""
        reports: list[Report] = []
        self.last |= done
        for group in done:
            self._groups.pop(group, None)
        while not reports or self._groups:
            picks = self._choose()
            asked = {*picks.values(), *(() if reports else landed), *(self._kept if self._dry_run else ())}
            report = run(_want(self._request, asked, self._kept if self._dry_run else ()))
            reports.append(report)
            self.fates |= {fate.task: fate for fate in report.fates}
            for group, attempt in picks.items():
                self._note(group, attempt)
            if report.hold is not None and not self._dry_run:
                break
        return reports

    def _choose(self) -> dict[str, str]:
        if self._how == "union":
            against = {enemy for kept in self._kept for enemy in self._enemies.get(kept, ())}
            picks = choose_union(leave_out(self._groups, self._blocked | against), self._enemies)
            if picks:
                return picks
        return choose_best(self._groups)  # what is left of a union conflicts, and the landing tells with what

    def _note(self, group: str, attempt: str) -> None:
        """The group is done unless its attempt was bounced, and it has another one."""
        self.last[group] = attempt
        status = self.fates[attempt].status
        if status == "bounced":
            self._groups = leave_out(self._groups, (attempt,))
            return
        del self._groups[group]
        if status in ("landed", "ready"):
            self._kept.append(attempt)


def _want(request: LandRequest, attempts: Collection[str], first: Collection[str] = ()) -> LandRequest:
    """The request with these attempts wanted; those that were chosen earlier stand `first`."""
    entries = [replace(entry, wanted=entry.task in attempts) for entry in request.entries]
    entries.sort(key=lambda entry: entry.task not in first)
    return replace(request, entries=tuple(entries))


def _explain(attempt: str, other: str | None, fates: Mapping[str, Fate]) -> Fate:
    """Why an attempt was not chosen: what became of the `other` one of its group."""
    if other is None:
        return Fate(attempt, "none", NOT_CHOSEN, "nothing lands at the moment")
    status = fates[other].status if other in fates else "landed"
    return Fate(attempt, "none", NOT_CHOSEN, _WORDS[status].format(other))


def _add_up(reports: list[Report], found: Survey, *, dry_run: bool) -> Report:
    first, last = reports[0], reports[-1]
    clashes: dict[tuple[str, str], Clash] = {clash.tasks: clash for report in reports for clash in report.clashes}
    if dry_run:
        clashes |= {clash.tasks: clash for clash in found.clashes}
    return replace(
        last,
        old=first.old,
        gate_runs=last.gate_runs if dry_run else sum(report.gate_runs for report in reports),
        remarks=tuple(dict.fromkeys([*found.remarks, *(line for report in reports for line in report.remarks)])),
        clashes=tuple(clashes.values()),
    )

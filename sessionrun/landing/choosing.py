"""Lands one of several attempts at the same task: rounds of landings, until no group has an attempt left.

    look which groups have landed one -> take the best attempt of each other group -> land them
    -> of each group whose attempt was bounced, take the next one -> land them -> ...

How the attempts of a round land, one after the other or together, is the landing's business.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from sessionrun.landing.forecast import find_landed
from sessionrun.landing.records import NOT_CHOSEN, Fate, LandRequest, Report

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
    groups: Mapping[str, Sequence[str]],
    run: Callable[[LandRequest], Report],
    *,
    dry_run: bool,
) -> Chosen:
    """Land one attempt of each group: the best one that lands.

    Args:
        request: has the attempts of all groups; those that are wanted may be chosen.
        groups: by group, all its attempts in the order of their worth.
        run: lands what is wanted, or forecasts it.
        dry_run: whether `run` only forecasts.

    Raises:
        SessionrunError, OSError: git failed.
    """
    owners = {attempt: group for group, attempts in groups.items() for attempt in attempts}
    there = find_landed(_want(request, owners))
    wanted = {entry.task for entry in request.entries if entry.wanted and entry.task in owners}
    done = {owners[attempt]: attempt for attempt in owners if attempt in there}
    rounds = _Rounds(request, leave_out(groups, owners.keys() - wanted), dry_run=dry_run)
    reports = rounds.land(run, set(there & wanted), done)
    report = _add_up(reports)
    fates = dict(rounds.fates)
    for attempt in wanted - fates.keys():
        fates[attempt] = _explain(attempt, rounds.last.get(owners[attempt]), rounds.fates)
    order = [entry.task for entry in request.entries if entry.task in fates]
    return Chosen(replace(report, fates=tuple(fates[task] for task in order)), frozenset(rounds.fates))


class _Rounds:
    """Rounds of landings; `last` has by group the attempt that counts, `fates` what became of those tried."""

    def __init__(self, request: LandRequest, groups: Mapping[str, list[str]], *, dry_run: bool) -> None:
        self._request = request
        self._groups = dict(groups)
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
            picks = {group: attempts[0] for group, attempts in self._groups.items()}
            asked = {*picks.values(), *(() if reports else landed), *(self._kept if self._dry_run else ())}
            report = run(_want(self._request, asked, self._kept if self._dry_run else ()))
            reports.append(report)
            self.fates |= {fate.task: fate for fate in report.fates}
            for group, attempt in picks.items():
                self._note(group, attempt)
            if report.hold is not None and not self._dry_run:
                break
        return reports

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


def leave_out(groups: Mapping[str, Sequence[str]], attempts: Collection[str]) -> dict[str, list[str]]:
    """The groups without these attempts; a group that has no others is left out, too."""
    kept = {group: [one for one in ranked if one not in attempts] for group, ranked in groups.items()}
    return {group: ranked for group, ranked in kept.items() if ranked}


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


def _add_up(reports: list[Report]) -> Report:
    first, last = reports[0], reports[-1]
    return replace(
        last,
        old=first.old,
        gate_runs=sum(report.gate_runs for report in reports),
        remarks=tuple(dict.fromkeys(line for report in reports for line in report.remarks)),
    )

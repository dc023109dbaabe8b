"""Chooses one of several attempts at the same task, and foresees what would land as far as merging shows it.

An attempt is chosen by rounds of landings, until no group has an attempt left.  The forecast changes nothing and
runs no gate.

    look which groups have landed one -> take the best attempt of each other group -> land them
    -> of each group whose attempt was bounced, take the next one -> land them -> ...

How the attempts of a round land, one after the other or together, is the landing's business.

New objects go to a directory of their own, which is deleted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from sessionrun.git.git import Git
from sessionrun.git.merging import MergeRoom, open_merge_room
from sessionrun.git.private import open_fence
from sessionrun.landing.chain import Chain, build_chain
from sessionrun.landing.history import load_history
from sessionrun.landing.queue import Queue
from sessionrun.landing.records import CONFLICT, GIT_LIMIT_S, NOT_CHOSEN, Entry, Fate, Hold, LandRequest, Report
from sessionrun.landing.target import find_checkout


def forecast(request: LandRequest) -> Report:
    """What would land if every gate was green.

    Raises:
        SessionrunError, OSError: git failed.
    """
    with _open_trial(request) as trial:
        queue = trial.queue
        batch = queue.choose(None)
        chain = build_chain(trial.git, trial.room, trial.old, batch, queue.tip_of)
        for fate in _list_fates(trial, chain, batch):
            queue.decide(fate)
    held = find_checkout(request.repository, request.target)
    return Report(trial.old, trial.old, queue.list_fates(None), held if isinstance(held, Hold) else None)


def find_landed(request: LandRequest) -> frozenset[str]:
    """The tasks of a request whose work the target has.

    Raises:
        SessionrunError, OSError: git failed.
    """
    with _open_trial(request) as trial:
        return frozenset(trial.queue.landed)


class _Trial(NamedTuple):
    git: Git
    room: MergeRoom
    queue: Queue
    old: str


@contextmanager
def _open_trial(request: LandRequest) -> Iterator[_Trial]:
    """A queue that knows what has landed, and where its entries can be merged without a trace."""
    with (
        tempfile.TemporaryDirectory(prefix="sessionrun-") as made,
        open_fence(request.repository, limit_s=GIT_LIMIT_S) as fence,
    ):
        objects = Path(made, "objects")
        git = fence.main().on_trial(objects, Path(request.repository.common_dir))
        queue = Queue(request, git, load_history(Path(request.folder))[0])
        old = git.line("rev-parse", "--verify", f"{request.target}^{{commit}}")
        with open_merge_room(fence, old, Path(made), trial=objects) as room:
            queue.settle(old, room)
            yield _Trial(git, room, queue, old)


def _list_fates(trial: _Trial, chain: Chain, batch: list[Entry]) -> list[Fate]:
    links = {link.entry.task for link in chain.links}
    conflicts = {entry.task: files for entry, files in chain.conflicts}
    there = {entry.task for entry in chain.there}
    fates = []
    for entry in batch:
        if entry.task in links:
            fates.append(Fate(entry.task, "ready"))
        elif entry.task in there:
            fates.append(Fate(entry.task, "landed", reason="already there by content"))
        elif entry.task in conflicts:
            files = conflicts[entry.task]
            reason = f"it conflicts with the target in {', '.join(files)}"
            fates.append(Fate(entry.task, "bounced", CONFLICT, reason, files=tuple(files)))
        else:
            fates.append(_explain_wait(trial, entry, chain))
    return fates


def _explain_wait(trial: _Trial, entry: Entry, chain: Chain) -> Fate:
    """Why an entry cannot be merged on top of the others: those that changed the files in conflict."""
    if set(entry.needs) - trial.queue.landed - {link.entry.task for link in chain.links}:
        return Fate(entry.task, "waiting", "needs", "a task that it needs would not land")
    files = trial.room.merge(chain.links[-1].commit, trial.queue.tip_of(entry)).files if chain.links else []
    against = [link.entry.task for link in chain.links if not trial.queue.paths_of(link.entry).isdisjoint(files)]
    reason = f"it conflicts with {', '.join(against)} in {', '.join(files)}: the first in the queue lands"
    return Fate(entry.task, "bounced", CONFLICT, reason, files=tuple(files), against=tuple(against))


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

"""Foresees a landing, as far as merging shows it: what would land.  Nothing changes, no gate runs.

New objects go to a directory of their own, which is deleted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sessionrun.landing.chain import Chain, build_chain
from sessionrun.landing.history import load_history
from sessionrun.landing.queue import Queue
from sessionrun.landing.records import CONFLICT, GIT_LIMIT_S, Entry, Fate, Hold, LandRequest, Report
from sessionrun.landing.target import find_checkout
from sessionrun.workspaces.fence import open_fence
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.merging import MergeRoom, open_merge_room


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
        queue = Queue(request, git, load_history(Path(request.folder)))
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

"""Foresees a landing, as far as merging shows it: who conflicts with whom.  Nothing changes, no gate runs.

New objects go to a directory of their own, which is deleted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sessionrun.landing.batches import choose_size, estimate_share, expect_runs, forecast_runs
from sessionrun.landing.chain import Chain, build_chain
from sessionrun.landing.clashes import Clashes
from sessionrun.landing.history import History, load_history
from sessionrun.landing.queue import Queue
from sessionrun.landing.records import CONFLICT, Clash, Entry, Fate, Hold, LandRequest, Report
from sessionrun.landing.target import find_checkout
from sessionrun.workspaces.fence import open_fence
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.merging import MergeRoom, open_merge_room


def forecast(request: LandRequest) -> Report:
    """What would land if every gate was green; `gate_runs` is how often they would run then.

    Raises:
        SessionrunError, OSError: git failed.
    """
    with _open_trial(request) as trial:
        queue, clashes = trial.queue, Clashes(trial.queue, trial.room)
        found, left_out = clashes.list(queue.open)
        batch = queue.choose(None)
        chain = build_chain(trial.git, trial.room, trial.old, batch, queue.tip_of)
        for fate in _list_fates(chain, batch, clashes):
            queue.decide(fate)
    history, count = trial.history, len(chain.links)
    size = request.batch or choose_size(history.decided, history.red)
    gated = bool(request.gates.commands)
    expected = expect_runs(count, min(size, max(count, 1)), estimate_share(history.decided, history.red))
    held = find_checkout(request.repository, request.target)
    return Report(
        trial.old,
        trial.old,
        queue.list_fates(None),
        held if isinstance(held, Hold) else None,
        forecast_runs(count, size) if gated else 0,
        _remark(left_out),
        tuple(found),
        round(expected, 1) if gated else 0.0,
    )


class Survey(NamedTuple):
    """What is known of attempts before one of them is chosen.

    `landed` are those that the target has; `blocked` those that conflict with it; `clashes` are between others.
    """

    landed: frozenset[str]
    blocked: frozenset[str]
    clashes: tuple[Clash, ...]
    remarks: tuple[str, ...] = ()


def survey(request: LandRequest, groups: Mapping[str, str], *, compare: bool) -> Survey:
    """Look which attempts have landed and, with `compare`, which of them conflict.

    Args:
        request: all attempts are wanted.
        groups: by task its group; attempts of one group are not compared.
        compare: whether it is looked for conflicts.

    Raises:
        SessionrunError, OSError: git failed.
    """
    with _open_trial(request) as trial:
        queue = trial.queue
        landed = frozenset(queue.landed)
        if not compare:
            return Survey(landed, frozenset(), ())
        free, blocked = [], set()
        for entry in queue.open:
            if trial.room.merge(trial.old, queue.tip_of(entry)).tree is None:
                blocked.add(entry.task)
            else:
                free.append(entry)
        found, left_out = Clashes(queue, trial.room).list(free, groups)
        return Survey(landed, frozenset(blocked), tuple(found), _remark(left_out))


class _Trial(NamedTuple):
    git: Git
    room: MergeRoom
    queue: Queue
    history: History
    old: str


@contextmanager
def _open_trial(request: LandRequest) -> Iterator[_Trial]:
    """A queue that knows what has landed, and where its entries can be merged without a trace."""
    with (
        tempfile.TemporaryDirectory(prefix="sessionrun-") as made,
        open_fence(request.repository, limit_s=request.git_limit_s) as fence,
    ):
        objects = Path(made, "objects")
        git = fence.main().on_trial(objects, Path(request.repository.common_dir))
        history = load_history(Path(request.folder))
        queue = Queue(request, git, history)
        old = git.line("rev-parse", "--verify", f"{request.target}^{{commit}}")
        with open_merge_room(fence, old, Path(made), trial=objects) as room:
            queue.settle(old, room)
            yield _Trial(git, room, queue, history, old)


def _remark(left_out: int) -> tuple[str, ...]:
    return (f"{left_out} more pairs of tasks change the same files and were not compared",) if left_out else ()


def _list_fates(chain: Chain, batch: list[Entry], clashes: Clashes) -> list[Fate]:
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
            fates.append(_explain_wait(entry, chain, clashes))
    return fates


def _explain_wait(entry: Entry, chain: Chain, clashes: Clashes) -> Fate:
    """Why an entry cannot be merged on top of the others: those with which it conflicts."""
    against: list[str] = []
    files: dict[str, None] = {}
    for link in chain.links:
        found = clashes.compare(link.entry, entry)
        if found:
            against.append(link.entry.task)
            files |= dict.fromkeys(found)
    if not against:
        return Fate(entry.task, "waiting", "needs", "a task that it needs would not land")
    reason = f"it conflicts with {', '.join(against)} in {', '.join(files)}: the first in the queue lands"
    return Fate(entry.task, "bounced", CONFLICT, reason, files=tuple(files), against=tuple(against))

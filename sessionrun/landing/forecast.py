"""What a landing would come to, as far as merging tells: who conflicts with whom.  Nothing changes, no gate runs.

New objects go to a directory of their own, which is deleted.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from sessionrun.landing.batches import choose_size, forecast_runs
from sessionrun.landing.chain import Chain, build_chain
from sessionrun.landing.history import load_history
from sessionrun.landing.queue import Queue
from sessionrun.landing.records import CONFLICT, Entry, Fate, Hold, LandRequest, Report
from sessionrun.landing.target import find_checkout
from sessionrun.workspaces.fence import open_fence
from sessionrun.workspaces.merging import MergeRoom, open_merge_room


def forecast(request: LandRequest) -> Report:
    """What would land if every gate was green; `gate_runs` is how often they would run then.

    Raises:
        SessionrunError, OSError: git failed.
    """
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
            batch = queue.choose(None)
            chain = build_chain(git, room, old, batch, queue.tip_of)
            for fate in _list_fates(chain, batch, queue, room):
                queue.decide(fate)
    size = request.batch or choose_size(history.decided, history.red)
    runs = forecast_runs(len(chain.links), size) if request.gates.commands else 0
    held = find_checkout(request.repository, request.target)
    return Report(old, old, queue.list_fates(None), held if isinstance(held, Hold) else None, runs)


def _list_fates(chain: Chain, batch: list[Entry], queue: Queue, room: MergeRoom) -> list[Fate]:
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
            fates.append(_explain_wait(entry, chain, queue, room))
    return fates


def _explain_wait(entry: Entry, chain: Chain, queue: Queue, room: MergeRoom) -> Fate:
    """Why an entry cannot be merged on top of the others: those with which it conflicts."""
    against: list[str] = []
    files: dict[str, None] = {}
    for link in chain.links:
        merged = room.merge(queue.tip_of(link.entry), queue.tip_of(entry))
        if merged.tree is None and queue.paths_of(link.entry).intersection(merged.files):
            against.append(link.entry.task)
            files |= dict.fromkeys(merged.files)
    if not against:
        return Fate(entry.task, "waiting", "needs", "a task that it needs would not land")
    reason = f"it conflicts with {', '.join(against)} in {', '.join(files)}: the first in the queue lands"
    return Fate(entry.task, "bounced", CONFLICT, reason, files=tuple(files), against=tuple(against))

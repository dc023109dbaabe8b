"""Foresees what would land, as far as merging shows it: it changes nothing, and no gate runs.

New objects go to a directory of their own, which is deleted.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from sessionrun.git.merging import open_merge_room
from sessionrun.git.private import open_fence
from sessionrun.landing.chain import build_chain
from sessionrun.landing.history import load_history
from sessionrun.landing.places import find_checkout
from sessionrun.landing.queue import Queue
from sessionrun.landing.records import GIT_LIMIT_S, Fate, Hold, LandRequest, Report


def forecast(request: LandRequest) -> Report:
    """What would land if every gate was green."""
    with (
        tempfile.TemporaryDirectory(prefix="sessionrun-") as made,
        open_fence(request.repository, limit_s=GIT_LIMIT_S) as fence,
    ):
        objects = Path(made, "objects")
        git = fence.main().on_trial(objects, Path(request.repository.common_dir))
        queue = Queue(request, git, load_history(Path(request.folder))[0])
        at = old = git.line("rev-parse", "--verify", f"{request.target}^{{commit}}")
        with open_merge_room(fence, old, Path(made), trial=objects) as room:
            queue.settle(old, room)
            while batch := queue.choose(None):
                chain = build_chain(git, room, at, batch, queue.tip_of)
                queue.bounce_conflicts(chain)
                for entry in chain.there:
                    is_there = at == old
                    reason = "already there by content" if is_there else ""
                    queue.decide(Fate(entry.task, "landed" if is_there else "ready", reason=reason))
                for link in chain.links:
                    queue.decide(Fate(link.entry.task, "ready"))
                    at = link.commit
    held = find_checkout(request.repository, request.target)
    return Report(old, old, queue.list_fates(None), held if isinstance(held, Hold) else None)

"""What a task's agent wrote for the queue is kept when its worktree goes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from sessionrun.engine.task import TaskState
from sessionrun.git.git import Git
from sessionrun.model.asked import SUGGESTIONS, uses_replicas
from sessionrun.queue.ingest import put_aside
from sessionrun.queue.task import find_place
from sessionrun.session.executor import Exit
from sessionrun.session.shared import Judged, Site
from sessionrun.store.jobfiles import LEFT


def shelve_follow_ups(site: Site, state: TaskState, ended: Exit, judged: Judged) -> Judged:
    """After a RELEASE, keep what the agent wrote: no process of the task lives, and the next one may have its
    worktree at once.  From a node it came home beside the answer; what is in a commit is work.
    """
    place, feed, released = state.place, site.spec.feed, judged.place
    if ended.key.phase != "release" or feed is None or released is None or place is None or place.worktree is None:
        return judged
    folder = site.session.job_path(ended.key)
    source = folder / LEFT if uses_replicas(site.spec.cluster) else Path(place.worktree, SUGGESTIONS)
    if (
        source.exists()
        and Git(Path(feed.top)).attempt("cat-file", "-e", f"{released.commit}:{SUGGESTIONS}").returncode != 0
    ):
        with suppress(OSError):  # then it stays where it lies: a link, or too large
            put_aside(find_place(Path(feed.top)), source)
    return judged

"""Ends jobs inside of walls that have filled more of the disk than their sandbox lets them.

No limit of the kernel counts folders for an ordinary user, so what a task can write is measured from time to time:
its worktree, its /tmp, its view of git, its environment, the folders of its agents, and the room of a proof.  It
may come to more between two looks.  A thread measures, since that takes long for many files; only tasks with a
limit are looked at.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.model.events import Event, TimerFired
from sessionrun.model.keys import JobKey, Phase
from sessionrun.model.repositories import repository_of
from sessionrun.model.spec import SessionSpec
from sessionrun.store.session import AGENT_DIR, WALLS_STATE, SessionDir
from sessionrun.walls.space import LOOK_S, find_pause, is_over

_WALLED: Final[frozenset[Phase]] = frozenset(("setup", "work", "check", "prove"))


class DiskWatch:
    """Says which jobs are over their limit; `look_at` is when it is to be asked next (monotonic)."""

    def __init__(self, session: SessionDir) -> None:
        self._session = session
        self._known = 0
        self._limited: list[str] = []
        self._looker: threading.Thread | None = None
        self._full: list[JobKey] = []
        self._began = 0.0
        self.look_at: float | None = None

    def hear(self, state: State, at: float, mono: float) -> Iterator[Event]:
        """What is to be recorded now."""
        if len(state.tasks) != self._known:
            self._known = len(state.tasks)
            self._limited = [task.spec.id for task in state.tasks.values() if _limit_of(task) is not None]
        if self.look_at is not None and mono < self.look_at:
            return
        running = dict(self._find_running(state))
        self.look_at = None
        if running:
            yield from self._look(state, running, mono)

    def _find_running(self, state: State) -> Iterator[tuple[JobKey, TaskState]]:
        for task in map(state.tasks.__getitem__, self._limited):
            if task.job is not None and task.job.stopping is None and task.job.key.phase in _WALLED:
                yield task.job.key, task

    def _look(self, state: State, running: Mapping[JobKey, TaskState], mono: float) -> Iterator[Event]:
        """Take what the last look has found, or begin the next one."""
        if self._looker is None:
            places = [
                (key, _limit_of(task) or 0, self._find_folders(state.spec, key, task))
                for key, task in running.items()
            ]
            self._looker = threading.Thread(target=self._measure, args=(places,), daemon=True)
            self._began = mono
            self._looker.start()
        elif not self._looker.is_alive():
            for key in self._full:
                if key in running:
                    yield TimerFired(key, "disk_limit")
            self._looker = None
            self.look_at = mono + find_pause(mono - self._began)
            return
        self.look_at = mono + LOOK_S / 10

    def _find_folders(self, spec: SessionSpec, key: JobKey, task: TaskState) -> list[str]:
        """What a job of the task can write, whether it is there or not."""
        from sessionrun.workspaces.environments.request import find_cache, find_target  # few tasks have a limit
        from sessionrun.workspaces.request import room_path

        walls, place = self._session.walls_path(key), task.place
        folders = [str(walls), *(str(walls.with_name(name)) for name in (WALLS_STATE, AGENT_DIR))]
        if place is None or place.worktree is None:
            return folders
        in_room, owner = key.phase == "prove", f"{spec.session_id}/{task.spec.id}"
        repository = repository_of(spec, task.spec, place.start)
        if in_room and repository is not None:
            folders.append(str(room_path(repository, owner)))
        if task.spec.environment is not None:
            cache = find_cache(spec.cache)
            folders.append(find_target(cache, spec.session_id, task.spec.id, key.attempt, in_room=in_room))
        return [*folders, place.worktree]

    def _measure(self, places: Sequence[tuple[JobKey, int, Sequence[str]]]) -> None:
        self._full = [key for key, limit, folders in places if is_over(folders, limit)]


def _limit_of(task: TaskState) -> int | None:
    return None if task.spec.sandbox is None else task.spec.sandbox.disk

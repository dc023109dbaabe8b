"""Follow-ups of agents go into the queue while the session runs, as many as its feed allows in all.

`sessionrun ingest` does it, as a program: it looks through worktrees and branches, and belongs to the client.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from sessionrun.model.spec import SessionSpec
from sessionrun.queue.suggestions import NAME
from sessionrun.store.files import read_regular, replace_file

COUNT: Final = "follow-ups.json"
"""In the session's directory: how many follow-ups came into the queue by it."""

_LIMIT_S: Final = 120.0


class Intake:
    """The follow-ups of one session."""

    def __init__(self, session: Path, spec: SessionSpec, say: Callable[[str], None]) -> None:
        assert spec.feed is not None
        self._count_path = session / COUNT
        self._spec = spec
        self._feed = spec.feed
        self._say = say

    def take(self) -> int:
        """Bring what agents wrote into the queue; return how many tasks that made."""
        left = self._feed.ingest - self._load_count()
        if left <= 0 or not any((folder / NAME).exists() for folder in self._folders()):
            return 0
        group = ("--group", self._feed.group) if self._feed.group else ()
        words = ("ingest", "--max", str(left), "--backend", self._feed.backend, "--json", *group)
        argv = [sys.executable, "-m", "sessionrun", *words]
        try:
            done = subprocess.run(
                argv,
                cwd=self._feed.top,
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                stdin=subprocess.DEVNULL,
            )
            made = len(json.loads(done.stdout)["added"])
        except (OSError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
            self._say(f"follow-ups are not taken in: {error}")
            return 0
        if made:
            count = self._load_count() + made
            replace_file(self._count_path, json.dumps({"taken": count}).encode(), durable=False)
        return made

    def _folders(self) -> Iterator[Path]:
        """Where the agents of the session may have written them."""
        yield Path(self._feed.top)
        seats, width = self._spec.seats, max(self._spec.resources.values(), default=0)
        if seats is not None:
            yield from (Path(seats.path_of(number)) for number in range(1, width + 1))

    def _load_count(self) -> int:
        try:
            return int(json.loads(read_regular(self._count_path))["taken"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

"""Sessions that have ended: each plan runs once for a process of tests, and is copied from then on.

To run a session costs half a second of processor time, and most tests of readers only need one that is there.  A
copy has an id and a place of its own, and is in the user's index; its times are those of the run.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from pathlib import Path

from sessionrun.store import index
from sessionrun.store.seal import SEAL_KEY, seal
from sessionrun.store.session import SessionDir


class Recorded:
    """The sessions that ran, in a directory of their own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, tuple[SessionDir, Path]] = {}

    def keep(self, key: str, session: Path, work: Path) -> None:
        """Keep a session that has ended; it was started in `work`."""
        kept = self._directory / session.name
        shutil.copytree(session, kept, ignore=shutil.ignore_patterns("wake"))
        shutil.copy(session.parent / ".gitignore", self._directory)
        self._known[key] = (SessionDir(kept), work)

    def copy(self, key: str, results: Path, work: Path) -> str | None:
        """Put the session of this key among the results; its id, or None when it is not known."""
        if key not in self._known:
            return None
        kept, old_work = self._known[key]
        new_id = str(uuid.uuid4())
        made = SessionDir(results / f"session-{new_id}")
        shutil.copytree(kept.path, made.path)
        shutil.copy(self._directory / ".gitignore", results)
        os.mkfifo(made.wake_path, 0o600)
        for path in (made.spec_path, made.status_path, made.summary_path):
            content = path.read_bytes().replace(kept.session_id.encode(), new_id.encode())
            content = content.replace(os.fsencode(old_work), os.fsencode(work))
            if path != made.spec_path:
                content = seal({name: value for name, value in json.loads(content).items() if name != SEAL_KEY})
            path.write_bytes(content)
        index.remember(made.path)
        return new_id

"""Lets follow-ups of agents come into the queue by themselves, up to a number for the whole session.

`ingest` asks git, and takes as long as that does, so it runs as a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Final

from sessionrun.model.errors import StoreError
from sessionrun.model.feeding import FeedSpec
from sessionrun.runtime.keeper.command import module_command
from sessionrun.store import programs
from sessionrun.store.files import read_regular, replace_file, usual_umask

TIMEOUT_S: Final = 300.0
COUNT: Final = "ingested"
"""In the session's directory: how many follow-ups came into the queue."""


class Intake:
    """The follow-ups of one session."""

    def __init__(self, folder: Path, asked: FeedSpec) -> None:
        """
        Args:
            folder: of the session.
            asked: how many, and into which queue and group.
        """
        self._count, self._asked = folder / COUNT, asked

    def take(self) -> int:
        """Take in what agents wrote, as far as there may be more; how many tasks came into the queue.

        Raises:
            StoreError, OSError: `ingest` failed; no line is lost.
        """
        taken = self._load()
        left = self._asked.ingest - taken
        if left <= 0:
            return 0
        words = ["ingest", "--json", "--max", str(left), "--backend", self._asked.backend]
        words += ["--group", self._asked.group] if self._asked.group is not None else []
        argv, top = module_command("sessionrun.__main__", *words), self._asked.top
        try:
            done = programs.run(argv, cwd=top, environ=os.environ, limit_s=TIMEOUT_S, umask=usual_umask())
        except subprocess.TimeoutExpired:
            raise StoreError(f"follow-ups are not taken in: no end after {TIMEOUT_S:g} s") from None
        if done.returncode != 0:
            why = done.stderr.decode("utf-8", "replace").strip().split("\n")[-1]
            raise StoreError(f"follow-ups are not taken in: {why or f'exit code {done.returncode}'}")
        added = len(json.loads(done.stdout)["added"])
        if added:
            replace_file(self._count, f"{taken + added}\n".encode(), durable=False)
        return added

    def _load(self) -> int:
        try:
            return int(read_regular(self._count, 100))
        except (FileNotFoundError, ValueError):
            return 0

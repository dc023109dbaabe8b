"""A job as it travels to a node, and the files that come back.

The node has no part of the session's directory: an order brings the files that the job reads, and names those that
it writes.  What comes back is written only where a job of that task may leave something.
"""

from __future__ import annotations

import base64
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sessionrun.cluster.messages import Message
from sessionrun.model.errors import StoreError
from sessionrun.model.spec import Job
from sessionrun.store.files import make_directories, open_regular, read_regular
from sessionrun.store.session import SessionDir

MAX_BYTES: Final = 32 * 1024 * 1024
"""Most that the files of one order may have together."""

_PACKAGE: Final = str(Path(__file__).resolve().parents[3])


def make_order(session: SessionDir, job: Job) -> Message:
    """What a node has to know to run a job.

    Raises:
        OSError: a file of it cannot be read.
        StoreError: its files are too big to travel.
    """
    root = str(session.path)
    words = (*job.argv, *job.env.values(), job.stdin or "", job.cwd)
    files: dict[str, str] = {}
    folders: set[str] = set()
    size = 0
    for path in sorted(set(_find_paths(root, words)) | {session.job_path(job.key)}):
        name = str(path.relative_to(root))
        if path.is_dir() and not path.is_symlink():
            folders.add(name)
            found = [Path(place, each) for place, _, names in os.walk(path) for each in names]
        else:
            found = [path] if path.is_file() else []
        for each in found:
            if each.is_symlink() or not each.is_file():
                continue
            content = read_regular(each)
            size += len(content)
            files[str(each.relative_to(root))] = base64.b64encode(content).decode()
    if size > MAX_BYTES:
        raise StoreError(f"the files of {job.key.text()} have {size} bytes: more than {MAX_BYTES} do not travel")
    return {
        "argv": list(job.argv),
        "cwd": job.cwd,
        "env": dict(job.env),
        "stdin": job.stdin,
        "stdout": str(Path(job.stdout).relative_to(root)),
        "stderr": str(Path(job.stderr).relative_to(root)),
        "grace_s": job.stop_grace_s,
        "session": root,
        "python": sys.executable,
        "package": _PACKAGE,
        "files": files,
        "folders": sorted(folders),
    }


def _find_paths(root: str, words: tuple[str, ...]) -> Iterator[Path]:
    """Paths below the session's directory that a word names, alone or within a command."""
    for word in words:
        for match in re.finditer(re.escape(root) + r"/[^\s'\":;,]+", word):
            yield Path(match.group().rstrip("/"))


class Files:
    """What comes back of one session's jobs."""

    def __init__(self, session: SessionDir) -> None:
        self._session = session

    def find_path(self, task: str, name: str) -> Path | None:
        """Where a file that a node sends belongs; None: a job of that task has no business there."""
        top = {f"task-{task}.{ending}" for ending in ("txt", "err", "raw")}
        inside = name.startswith(f"jobs/{task}/") and not any(part in ("", ".", "..") for part in name.split("/"))
        return self._session.path / name if (name in top or inside) and "\0" not in name else None

    def keep_chunk(self, task: str, chunk: Message) -> int | None:
        """Write a chunk of a file, unless bytes before it are missing; returns how many bytes there are now.

        Raises:
            OSError: the disk refuses.
        """
        path = self.find_path(task, chunk["name"])
        if path is None:
            return None
        content = base64.b64decode(chunk["content"])
        fd = self._open(path)
        try:
            size = os.fstat(fd).st_size
            if size < chunk["at"] or size >= chunk["at"] + len(content):
                return size
            written = os.pwrite(fd, content, chunk["at"])
            return int(chunk["at"]) + written
        finally:
            os.close(fd)

    def is_complete(self, task: str, files: Message) -> bool:
        """Whether all files of an end are here; empty ones are made.

        Raises:
            OSError: the disk refuses.
        """
        for name, size in files.items():
            path = self.find_path(task, name)
            if path is None:
                continue
            fd = self._open(path)
            try:
                if os.fstat(fd).st_size < size:
                    return False
            finally:
                os.close(fd)
        return True

    def _open(self, path: Path) -> int:
        make_directories(path.parent, 0o700)
        return open_regular(path, os.O_RDWR | os.O_CREAT)

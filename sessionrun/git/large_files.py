"""Large files that Git LFS keeps beside the objects: those that a walled task has stored come out, too.

The task owns the git directory they lie in.  So a file counts only if it is a regular one whose name is the
SHA-256 of its content; then it is of no matter where it comes from.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

from sessionrun.store.files import list_folders, make_directories, open_regular

STORE: Final = Path("lfs", "objects")
"""In a common directory: files by the first two, the next two and all digits of their names."""

DRAFTS: Final = Path("lfs", "tmp")
"""In a common directory: where Git LFS has files that are not whole, and deletes what was left there."""

_NAME: Final = re.compile("[0-9a-f]{64}")
_CHUNK: Final = 1 << 20


def take_large_files(view: Path, common_dir: Path) -> None:
    """Copy what a view has stored into the repository's store, if there is one."""
    top = view / STORE
    if not (common_dir / STORE.parent).is_dir() or top.parent.is_symlink() or top.is_symlink():
        return
    # Git LFS puts them there; `list_folders` follows no link
    for folder in (top / outer / inner for outer in list_folders(top) for inner in list_folders(top / outer)):
        for name in filter(_NAME.fullmatch, os.listdir(folder)):
            own = common_dir / STORE / name[:2] / name[2:4] / name
            if stat.S_ISREG((folder / name).lstat().st_mode) and not own.exists():
                make_directories(own.parent, 0o777)
                make_directories(common_dir / DRAFTS, 0o777)
                _copy(folder / name, own, common_dir / DRAFTS / f"{name}-{os.getpid()}")


def _copy(origin: Path, copy: Path, draft: Path) -> None:
    """Copy a file whose name says its content; another one is left out."""
    import hashlib  # few tasks need it

    digest = hashlib.sha256()
    try:
        with open(open_regular(origin), "rb") as source, open(draft, "wb") as sink:
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                sink.write(chunk)
            sink.flush()
            os.fsync(sink.fileno())
        if digest.hexdigest() == copy.name:
            os.rename(draft, copy)
    finally:
        draft.unlink(missing_ok=True)

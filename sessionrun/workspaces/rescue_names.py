"""The names of packs of work in progress: each tells its number and its commit."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FOLDER: Final = "rescue"
"""In the folder of a WORK on a node: what says how to make packs of its worktree."""

_NAME: Final = re.compile(r"rescue-([0-9]{6})-([0-9a-f]{40,64})\.pack")


def list_packs(folder: Path) -> list[Path]:
    """The packs in the folder of a job, the newest first."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [folder / name for name in sorted(filter(_NAME.fullmatch, names), reverse=True)]


def drop_older(pack: Path) -> None:
    """Delete the packs in the folder of a new one but for that and the one before it; if it is none, nothing."""
    if _NAME.fullmatch(pack.name):
        for old in list_packs(pack.parent)[2:]:
            old.unlink(missing_ok=True)


def drop_packs(folders: Iterator[Path]) -> None:
    """Delete the packs of a task whose work has come home."""
    for pack in (pack for folder in folders for pack in list_packs(folder)):
        pack.unlink(missing_ok=True)


def number_of(pack: Path) -> int:
    """The number of a pack; 0 if it is none."""
    found = _NAME.fullmatch(pack.name)
    return int(found[1]) if found else 0


def commit_of(pack: Path) -> str:
    """The commit in a pack; '' if it is none."""
    found = _NAME.fullmatch(pack.name)
    return found[2] if found else ""

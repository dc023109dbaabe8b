"""Which filters of the user's would run on files that land."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from sessionrun.git.merging import open_merge_room
from sessionrun.git.private import Fence

_SAFE: Final = "lfs"
"""Git LFS reads the files, and runs nothing of them."""


class Filtered(NamedTuple):
    """A file that lands, and the driver of its filter."""

    path: str
    driver: str


def find_filtered(fence: Fence, work: Path, old: str, new: str) -> Filtered | None:
    """A file between two commits on which git runs a filter when it is checked out."""
    names = [name.split(".") for name, command in fence.settings.config if command]
    drivers = {
        ".".join(words[1:-1]) for words in names if words[0] == "filter" and words[-1] in ("smudge", "process")
    }
    if not drivers - {_SAFE}:
        return None
    git, words = fence.main(), ("diff-tree", "-r", "-z", "--no-renames", "--name-only", "--diff-filter=d")
    paths = "".join(f"{name}\0" for name in git.names(*words, old, new))
    with open_merge_room(fence, new, work) as room:
        fields = room.git.names("check-attr", "-z", "--stdin", "filter", stdin=os.fsencode(paths))
    found = zip(fields[::3], fields[2::3], strict=True)
    return next((Filtered(*one) for one in found if one[1] in drivers - {_SAFE}), None)

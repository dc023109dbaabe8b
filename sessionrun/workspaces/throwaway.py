"""Checkouts in the cache for a short time: the files of one commit as a task finds them, and no task works there.

Each is in a directory of its own below `FOLDER`.  Its process holds a shared flock(2) on that directory, and gives
it to the programs that read the checkout.  A directory without the lock is what a killed process left, and goes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sessionrun.store.files import list_folders, make_directories
from sessionrun.store.space import Cached
from sessionrun.store.trees import remove_tree
from sessionrun.workspaces.bringing import bring_files
from sessionrun.workspaces.cache import iterate_entries, remove_unused, share_entry
from sessionrun.workspaces.clone import make_excerpt, open_clean_room
from sessionrun.workspaces.crossing import add_tests
from sessionrun.workspaces.fence import open_fence
from sessionrun.workspaces.ignoring import ignore_words
from sessionrun.workspaces.mirrored import hold_mirror
from sessionrun.workspaces.request import WorkspaceRequest

FOLDER: Final = "checkouts"
"""Directory in the cache."""


@contextmanager
def open_folder(cache: Path) -> Iterator[tuple[Path, int]]:
    """Make a directory for one checkout, with the file descriptor of its lock; it goes at the end.

    What killed processes left of others goes first.

    Raises:
        OSError: the cache cannot be written.
    """
    make_directories(cache / FOLDER, 0o700)
    for name in list_folders(cache / FOLDER):
        remove_unused(cache / FOLDER / name)
    fd = None
    while fd is None:  # another process may take it for what is left of a killed one
        path = Path(tempfile.mkdtemp(dir=cache / FOLDER))
        fd = share_entry(path)
    try:
        yield path, fd
    finally:
        remove_tree(path)
        os.close(fd)


@contextmanager
def open_checkout(request: WorkspaceRequest, commit: str, folder: Path, tests: str = "") -> Iterator[Path]:
    """Check out a commit as PREPARE does, in a repository of its own; it goes at the end.

    Args:
        request: as for a PREPARE; its repository has `folder` for worktrees.
        commit: of the repository.
        folder: of `open_folder`.
        tests: a patch with tests that the checkout gets, as a clean room does.

    Raises:
        SessionrunError, OSError: it cannot be made.
    """
    upstream, objects = request.upstream, folder / "objects"
    common_dir = Path(request.repository.common_dir)
    with hold_mirror(upstream):
        if upstream is not None and upstream.history is not None:
            make_excerpt(common_dir, Path(upstream.mirror), commit, upstream.history, limit_s=request.git_limit_s)
        with open_fence(request.repository, folder, limit_s=request.git_limit_s) as fence:
            main = fence.main().on_trial(objects, common_dir)
            whole = add_tests(main, commit, commit, tests.encode("utf-8", "surrogateescape"), folder)
            with open_clean_room(fence, request.owner, whole, objects) as top:
                if not tests:  # a clean room for tests gets none
                    rules = ignore_words(request.repository, folder)
                    bring_files(fence.main(), request, top, rules, in_room=True)
                yield top


def iterate_checkouts(cache: Path) -> Iterator[Cached]:
    """The directories of checkouts in a cache, by name; each is what a killed process left, or is in use."""
    return iterate_entries(cache / FOLDER, lambda name: True)

"""Deletes directory trees, whatever was made of them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from sessionrun.store import programs
from sessionrun.store.files import is_folder


def remove_entry(path: Path) -> None:
    """Delete what lies there, if anything does; a link is not followed."""
    if is_folder(path):
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Delete a directory tree, whatever was made of it: links are not followed.

    Raises:
        OSError: a part of it cannot be deleted.
    """
    if not path.exists():
        return
    import shutil  # it loads five compressors, and a PREPARE has no time for that

    try:
        shutil.rmtree(path)
    except (PermissionError, RecursionError):
        # directories that cannot be written, or that are deeper than the stack of this process
        for words in (("chmod", "-R", "u+rwX"), ("rm", "-rf")):
            done = programs.run([*words, "--", str(path)], environ=programs.leave_task(os.environ), limit_s=None)
        if os.path.lexists(path):
            raise OSError(errno.EPERM, os.fsdecode(done.stderr).strip().split("\n")[0], str(path)) from None

"""Directories of the cache that sessions share: each is made whole or not at all, and stays while it is used.

    NAME               what was made; only who holds its lock makes or removes it
    NAME.lock          a lock on this file (without the ending of NAME, such as ``.git``)
    .new-NAME-RANDOM   it while it is made: never trusted
    .trash-NAME-PID    it while it is deleted

A killed process leaves a name of the last two forms; the next one that holds the lock deletes that.  A process
that uses an entry holds a shared flock(2) on its directory.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from sessionrun.model.errors import SessionrunError
from sessionrun.store import programs
from sessionrun.store.files import is_folder, list_folders, make_directories, sync_directory
from sessionrun.store.locks import hold_lock
from sessionrun.store.space import Cached, measure


def remove_entry(path: Path) -> None:
    """Delete what lies there, if anything does; a link is not followed."""
    if is_folder(path):
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Delete a directory tree, whatever was made of it: links are not followed."""
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


DRAFT: Final = ".new-"
TRASH: Final = ".trash-"

IN_USE: Final = "it is in use"

_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def lock_path(path: Path) -> Path:
    """The file of an entry's lock: beside it, for it is there before the entry."""
    return path.with_suffix(".lock")


@contextmanager
def hold_entry(path: Path, limit_s: float | None) -> Iterator[None]:
    """Be the process that makes or removes an entry; wait so long for another one (seconds; None: any time).

    Raises:
        SessionrunError: the other process had it for too long.
    """
    make_directories(path.parent, 0o700)
    with hold_lock(lock_path(path), 0o600, -1.0 if limit_s is None else limit_s):
        yield


@contextmanager
def make_entry(path: Path, sync: Callable[[Path], None]) -> Iterator[Path]:
    """Fill a directory under another name; then it is brought to the disk, and renamed.

    Args:
        path: where it goes; nothing is there.
        sync: makes all that is in a directory durable.

    Raises:
        OSError: it cannot be made; nothing is left.
    """
    import tempfile

    draft = Path(tempfile.mkdtemp(prefix=f"{DRAFT}{path.name}-", dir=path.parent))
    try:
        yield draft
        sync(draft)
        os.rename(draft, path)
    except BaseException:
        remove_tree(draft)
        raise
    sync_directory(path.parent)


def whole_path(path: Path) -> Path:
    """Where the entry would be of which a killed process may have left this; of an entry, where it is."""
    for prefix in (DRAFT, TRASH):
        if path.name.startswith(prefix):
            return path.with_name(path.name.removeprefix(prefix).rpartition("-")[0])
    return path


def sweep_entry(path: Path) -> None:
    """Delete what killed processes left of an entry, under its lock."""
    for left in [*path.parent.glob(f"{DRAFT}{path.name}-*"), *path.parent.glob(f"{TRASH}{path.name}-*")]:
        with suppress(OSError):  # a program that outlives its job may still write there: the next one deletes it
            remove_entry(left)


def discard_entry(path: Path) -> None:
    """Delete an entry, under its lock.

    Raises:
        OSError: it cannot be deleted; what is left does not count as an entry.
    """
    trash = path.with_name(f"{TRASH}{path.name}-{os.getpid()}")
    remove_entry(trash)  # of an earlier process with our number
    os.rename(path, trash)
    remove_entry(trash)


def share_entry(path: Path) -> int | None:
    """Use an entry: it stays until the descriptor that is returned is closed.  None: there is no entry."""
    while True:
        try:
            fd = os.open(path, _OPEN)
        except FileNotFoundError:
            return None
        fcntl.flock(fd, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        os.close(fd)  # it was removed just before the lock was ours


def sync_files(folder: Path) -> None:
    """Bring all that was written to the disk: one call for the file system, not one for each of many files."""
    with suppress(OSError):  # there is no such program
        done = programs.run(("sync", "-f", str(folder)), environ=programs.leave_task(os.environ), limit_s=None)
        if done.returncode == 0:
            return
    os.sync()  # not all systems can sync one file system


def iterate_entries(folder: Path, is_entry: Callable[[str], bool], marker: str = "") -> Iterator[Cached]:
    """The entries of a directory, by name, and what killed processes left of others.

    Args:
        is_entry: whether an entry may have a name.
        marker: a file in an entry whose time is that of the last use, if there is one.
    """
    for name in list_folders(folder):
        path = folder / name
        if is_entry(name) or name.startswith((DRAFT, TRASH)):
            mark = path / marker if (path / marker).is_file() else path
            try:
                yield Cached(path, mark.stat().st_mtime, measure(path))
            except FileNotFoundError:
                continue  # removed meanwhile


def remove_unused(
    path: Path, *, dry_run: bool = False, find_obstacle: Callable[[], str | None] = lambda: None
) -> str | None:
    """Remove an entry, or what a killed process left of one; why it stays, or None.

    Args:
        find_obstacle: says why an entry that no process uses has to stay.
    """
    whole = whole_path(path)
    try:
        with hold_entry(whole, 0.0):
            why = _remove(path, find_obstacle if path == whole else lambda: None, dry_run=dry_run)
            if not (dry_run or whole.exists()):
                lock_path(whole).unlink()  # who waits for it sees that it is gone, and opens another
            return why
    except SessionrunError:
        return IN_USE


def _remove(path: Path, find_obstacle: Callable[[], str | None], *, dry_run: bool) -> str | None:
    try:
        fd = os.open(path, _OPEN)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return IN_USE
    try:
        why = find_obstacle()
        if why is None and not dry_run:
            discard_entry(path) if path == whole_path(path) else remove_entry(path)
        return why
    finally:
        os.close(fd)

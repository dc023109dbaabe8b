"""Makes a session's directory, and removes it if nothing has run in it.

It is complete before anything can run: the spec is durable, and its maker holds `root.lock`.  A launch that is
refused removes all that it made.  What a killed launch left, in which no session began, is for `doctor`.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from sessionrun.model.errors import InputError, StoreError
from sessionrun.store import seal
from sessionrun.store.files import (
    make_directory,
    name_beside,
    no_umask,
    open_regular,
    replace_file,
    sync_directory,
)
from sessionrun.store.session import SessionDir

if TYPE_CHECKING:
    from sessionrun.model.spec import SessionSpec

IGNORE_FILE: Final = ".gitignore"
_IGNORE_ALL: Final = b"*\n"


def create_session(session: SessionDir, spec: SessionSpec) -> int:
    """Make the session's directory with its spec, durably; nothing runs yet.

    Returns the descriptor of `root.lock`, held: a reader that finds the spec finds a process that lives for it.

    Raises:
        InputError: the spec holds text that is not UTF-8, or others may write in the results directory.
        StoreError: it cannot be written; what was made is removed again.
    """
    try:
        content = orjson.dumps(spec)
    except orjson.JSONEncodeError:
        raise InputError("an option, a variable or the path of a program is not UTF-8") from None
    try:
        _make_results_dir(session.path.parent, session.made)
        lock_fd = _take_directory(session)
    except (OSError, InputError, StoreError) as error:
        _remove_made(session.made)
        if not isinstance(error, OSError):
            raise
        raise StoreError(
            f"cannot create {session.path}: {error.strerror}; --results-dir names another directory"
        ) from error
    try:
        for name in ("prompts", "requests"):
            make_directory(session.path / name, 0o700)
        with no_umask():
            os.mkfifo(session.wake_path, 0o600)
        replace_file(session.spec_path, content, durable=True)
        sync_directory(session.path.parent)
    except OSError as error:
        discard_session(session)
        os.close(lock_fd)
        raise StoreError(f"cannot write {session.path}: {error.strerror}") from error
    return lock_fd


def _take_directory(session: SessionDir) -> int:
    """Make the session's directory and take its `root.lock`; the descriptor."""
    make_directory(session.path, 0o700)
    try:
        return session.hold_lock("root.lock")
    except (OSError, StoreError):
        discard_session(session)
        raise


def discard_session(session: SessionDir) -> None:
    """Remove a directory in which nothing has run, and those that were made for it and hold nothing else."""
    import shutil

    shutil.rmtree(session.path, ignore_errors=True)
    _remove_made(session.made)


def _remove_made(folders: list[Path]) -> None:
    for folder in reversed(folders):
        remove_results_dir(folder)


def remove_results_dir(folder: Path) -> None:
    """Remove a results directory in which nothing is but what hides it from git."""
    with suppress(OSError):
        hides = os.listdir(folder) == [IGNORE_FILE] and (folder / IGNORE_FILE).read_bytes() == _IGNORE_ALL
        if hides:
            (folder / IGNORE_FILE).unlink()
        try:
            folder.rmdir()
        except OSError:  # another launch was faster: its session is to be hidden, too
            if hides:
                _hide(folder)


def has_begun(session: SessionDir) -> bool:
    """Whether anything can have run in a session, or may yet.

    Its id is told once its journal is durable.  A directory without any record, that no process holds, was left by
    a launcher that was killed.
    """
    return has_records(session) or session.is_alive()


def has_records(session: SessionDir) -> bool:
    """Whether one of its logs holds anything, or is something else than a file."""
    for path in (session.journal_path, session.ledger_path):
        with suppress(OSError):
            inode = path.lstat()
            if inode.st_size > 0 or not stat.S_ISREG(inode.st_mode):
                return True
    return False


def _make_results_dir(path: Path, made: list[Path]) -> None:
    """Create the results directory; one that is still empty hides itself, and no work of the user's, from git.

    Raises:
        InputError: another user could put a directory of their own in place of a session's: everybody may write
            there (and no sticky bit keeps others' entries safe), or it is another's.
    """
    missing = []
    while not os.path.lexists(path):
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with suppress(FileExistsError):  # another launch was faster
            make_directory(folder, 0o755)
            made.append(folder)
        path = folder
    inode = os.stat(path)
    if inode.st_mode & stat.S_IWOTH and not inode.st_mode & stat.S_ISVTX:
        raise InputError(f"{path}: every user may write there: chmod o-w it, or give another --results-dir")
    if inode.st_uid not in (0, os.geteuid()) and os.geteuid() != 0:
        raise InputError(f"{path} belongs to another user: give another --results-dir")
    if not os.listdir(path):
        _hide(path)


def _hide(path: Path) -> None:
    fd = open_regular(path / IGNORE_FILE, os.O_WRONLY | os.O_CREAT, 0o644)  # two threads may do so at once
    try:
        os.write(fd, _IGNORE_ALL)
    finally:
        os.close(fd)


def show_first(session: SessionDir, status: dict[str, Any], summary: dict[str, Any]) -> None:
    """Write the first status.json and summary, where there is none: a supervisor that was faster knows more."""
    for path, content in ((session.status_path, status), (session.summary_path, summary)):
        first = Path(name_beside(path.with_name(f"{path.name}-first")))
        replace_file(first, seal.seal(content), durable=False)
        try:
            with suppress(FileExistsError):
                os.link(first, path)
        finally:
            first.unlink()

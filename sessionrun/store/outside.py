"""Writes the user's files outside of the session directory, and follows no planted link.

Where such a file lies is settled once, at launch, links included (`settle_exports`).  From then on its
directory is opened one component below the other, without following links, and all work is done below the
descriptor of that: tasks may write there, and a link that one plants must not lead a session to another file.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from sessionrun.model.errors import SessionrunError
from sessionrun.store import locks
from sessionrun.store.files import (
    NotRegular,
    make_directory,
    name_beside,
    no_umask,
    replace_file,
    sweep_beside,
    usual_mode,
)

CLAIM_PATIENCE_S: Final = 10.0
"""How long a launch waits for a file; a process that writes it has it for some milliseconds."""

_FOLDER: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_FOLDER: Final = (errno.ELOOP, errno.EMLINK, errno.ENOTDIR)


@contextmanager
def open_folder(path: Path, *, make: bool = False) -> Iterator[int]:
    """A descriptor of a directory whose path was settled; `make` makes what is missing of it.

    Raises:
        NotRegular: a link, or something else that is not a directory, lies in the place of a part of it.
    """
    fd = os.open("/", os.O_RDONLY | _FOLDER)
    try:
        for name in path.parts[1:]:
            below = _enter(fd, name, make=make)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def _enter(folder: int, name: str, *, make: bool) -> int:
    """A descriptor of a directory below another one; raises like `open_folder`."""
    try:
        return _open(folder, name)
    except FileNotFoundError:
        if not make:
            raise
    try:
        make_directory(name, dir_fd=folder)
    except FileExistsError:
        pass  # another process was faster
    return _open(folder, name)


def _open(folder: int, name: str) -> int:
    try:
        return os.open(name, os.O_RDONLY | _FOLDER, dir_fd=folder)
    except PermissionError:  # one may pass through some directories without reading them
        if not hasattr(os, "O_PATH"):
            raise
        return os.open(name, os.O_PATH | _FOLDER, dir_fd=folder)
    except OSError as error:
        if error.errno not in _NO_FOLDER:
            raise
        raise NotRegular(errno.ENOTDIR, f"{name!r} is not a directory", name) from error


def replace_below(folder: int, name: str, content: bytes, *, durable: bool) -> None:
    """Replace a file of a directory atomically.  It keeps its mode; a new one has the usual one."""
    inode = _stat(folder, name)
    if inode is not None:
        mode = inode.st_mode & 0o777
    else:
        with no_umask() as umask:
            mode = usual_mode(0o666, umask)
    replace_file(name, content, durable=durable, mode=mode, dir_fd=folder, exact=True, sweeps=True)
    try:
        if durable:
            os.fsync(folder)
    except OSError as error:
        if error.errno != errno.EBADF:  # a directory that may not be read: only passed through
            raise


def link_below(folder: int, name: str, target: Path) -> None:
    """A link that leads to `target`, in place of one that led elsewhere; what is not a link stays."""
    inode = _stat(folder, name)
    is_link = inode is not None and stat.S_ISLNK(inode.st_mode)
    if inode is not None and not (is_link and os.readlink(name, dir_fd=folder) != str(target)):
        return
    sweep_beside(name, dir_fd=folder)
    beside = name_beside(name)
    with suppress(FileNotFoundError):
        os.unlink(beside, dir_fd=folder)
    os.symlink(target, beside, dir_fd=folder)
    os.replace(beside, name, src_dir_fd=folder, dst_dir_fd=folder)


@contextmanager
def hold_file(path: Path, *, timeout_s: float, make: bool = False) -> Iterator[int]:
    """The descriptor of a file's directory; one process at a time is in here, for each file.

    Raises:
        SessionrunError: another process held the lock for too long.
        NotRegular: something else lies in the place of the directory, or of the lock beside the file.
    """
    lock = path.with_name(f".{path.name}.lock")
    with open_folder(path.parent, make=make) as folder:
        try:
            fd = locks.hold(lock.name, timeout_s=timeout_s, mode=0o644, dir_fd=folder)
        except NotRegular as error:
            raise NotRegular(errno.EINVAL, f"its lock {lock} is not a regular file", os.fspath(lock)) from error
        if fd is None:
            raise SessionrunError(f"{lock} was held for {timeout_s:g} s by another process")
        try:
            yield folder
        finally:
            locks.remove_held(lock.name, fd, dir_fd=folder)
            os.close(fd)


def identify(folder: int, name: str) -> tuple[int, ...] | None:
    """What changes when another program writes or replaces a file; None: there is none."""
    inode = _stat(folder, name)
    return inode and (inode.st_dev, inode.st_ino, inode.st_size, inode.st_mtime_ns, inode.st_ctime_ns)


def describe(error: Exception) -> str:
    """Why something was not done, without the path that the sentence names already."""
    reason = error.strerror if isinstance(error, OSError) else None
    return (reason or str(error) or repr(error)).replace("\n", " ")


def _stat(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None

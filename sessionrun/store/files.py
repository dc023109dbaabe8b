"""Opening regular files where something else may have been put: never followed, never waited for.

What is made here, files and directories, has its mode whatever the umask is: a umask takes rights from group and
others, and never from the owner.

A task, or another user of a shared directory, can put a link, FIFO, device or directory in the place of any
file of a session.  Opened as usual, a link leads astray and a FIFO blocks for ever.  Files of a session are opened
here, but for those that the kernel opens in a child (see `keeper.children`).

The keeper imports this module without site-packages.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from _thread import allocate_lock
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_UMASK: Final = allocate_lock()
_NOT_REGULAR: Final = "not a regular file"
_SAYS_OTHER: Final = (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR)
"""What open(2) itself refuses with: a link (as FreeBSD says it, too), a FIFO or socket, a directory."""


class NotRegular(OSError):
    """Something else than a regular file lies there."""


def open_regular(
    path: Path | str, flags: int = os.O_RDONLY, mode: int = 0o600, *, dir_fd: int | None = None
) -> int:
    """Open a file, private if it is made and nothing else is said; not blocking, which means nothing to it.

    With `dir_fd`, the descriptor of a directory, `path` is a name in that.

    Raises:
        NotRegular: a link, FIFO, device, socket or directory lies there.
    """
    try:
        fd = os.open(path, flags | _FLAGS, mode, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in _SAYS_OTHER:
            raise NotRegular(errno.EINVAL, _NOT_REGULAR, os.fspath(path)) from error
        raise
    inode = os.fstat(fd)
    if stat.S_ISREG(inode.st_mode):
        if flags & os.O_CREAT and ~inode.st_mode & mode & 0o600 and inode.st_uid == os.geteuid():
            os.fchmod(fd, stat.S_IMODE(inode.st_mode) | mode & 0o600)  # the umask took what is the owner's
        return fd
    os.close(fd)
    raise NotRegular(errno.EINVAL, _NOT_REGULAR, os.fspath(path))


def read_regular(path: Path | str, limit: int | None = None, *, dir_fd: int | None = None) -> bytes:
    """Read a file whole; one that is not regular, or has more than `limit` bytes, is refused.

    Raises:
        NotRegular: see `open_regular`.
        OSError: it is too large (EFBIG), or cannot be read.
    """
    fd = open_regular(path, dir_fd=dir_fd)
    try:
        size = os.fstat(fd).st_size
        if limit is not None and size > limit:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", os.fspath(path))
        content = os.read(fd, size)
        while len(content) < size and (more := os.read(fd, size - len(content))):
            content += more
        return content
    finally:
        os.close(fd)


def read_end(path: Path | str, most: int) -> bytes:
    """The end of a file, at most so many bytes; nothing where it cannot be read, or is not regular."""
    try:
        with open(path, "rb", opener=open_regular) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - most))
            return stream.read(most)
    except OSError:
        return b""


@contextmanager
def no_umask() -> Iterator[int]:
    """The umask takes nothing in here; it is given.  It is that of all threads: see `usual_umask`."""
    with _UMASK:
        umask = os.umask(0)
        try:
            yield umask
        finally:
            os.umask(umask)


@contextmanager
def usual_umask() -> Iterator[None]:
    """The umask is the usual one in here; a second thread starts a program so, which inherits it."""
    with _UMASK:
        yield


def make_directory(path: Path | str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
    """Make a directory that others cannot write in; with `dir_fd` it is a name in that directory."""
    with no_umask() as umask:
        os.mkdir(path, usual_mode(mode, umask), dir_fd=dir_fd)


def make_directories(path: Path | str, mode: int = 0o777) -> None:
    """The same for what is missing of a path; what is there stays as it is."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent not in ("", os.fspath(path)):
        make_directories(parent, mode)
    try:
        make_directory(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def usual_mode(mode: int, umask: int) -> int:
    """What a umask leaves of a mode: the owner keeps all, and others can never write."""
    return mode & ~(umask & 0o077) & ~0o002


def replace_file(
    path: Path | str,
    content: bytes | Iterable[bytes],
    *,
    durable: bool,
    mode: int = 0o600,
    dir_fd: int | None = None,
    exact: bool = False,
    sweeps: bool | None = None,
) -> None:
    """Write a file beside its place and rename it there: a reader sees the old or the new, never a part.

    `content` is the whole, or its pieces one after the other.  With `exact` the umask takes nothing of the mode.
    With `dir_fd` the caller makes the name durable.  `sweeps` says whether `sweep_beside` looks at the directory
    first; unless that is said, it does where the write is dear anyway.
    """
    if durable if sweeps is None else sweeps:
        sweep_beside(path, dir_fd=dir_fd)
    beside = name_beside(path)
    with suppress(FileNotFoundError):
        os.unlink(beside, dir_fd=dir_fd)
    fd = open_regular(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, dir_fd=dir_fd)
    try:
        with suppress(OSError):  # a file system without locks: then no other writer removes it either
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            for piece in (content,) if isinstance(content, bytes) else content:
                view = memoryview(piece)
                while view:
                    view = view[os.write(fd, view) :]
            if exact:
                os.fchmod(fd, mode)
            if durable:
                os.fsync(fd)
        except BaseException:
            os.unlink(beside, dir_fd=dir_fd)
            raise
        os.replace(beside, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    finally:
        os.close(fd)
    if durable and dir_fd is None:
        sync_directory(Path(path).parent)


def name_beside(path: Path | str) -> str:
    """Where this process writes a file before it renames it to its place."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{os.getpid()}.tmp")


def find_beside(folder: Path | str | int, names: Container[str]) -> list[str]:
    """What writers that died have left in a directory beside files of these names, sorted.

    A name counts only if no process here has its number.  `remove_left` asks the lock, which a writer holds that
    runs in another container, or on another machine that shares the disk.
    """
    try:
        with os.scandir(folder) as entries:
            found = [one.name for one in entries if one.name.startswith(".") and one.name.endswith(".tmp")]
    except OSError:  # gone, or a directory that may be passed through and not read
        return []
    parts = ((one, *one[1 : -len(".tmp")].rpartition(".")) for one in sorted(found))
    return [one for one, name, _, pid in parts if name in names and pid.isdecimal() and not _has_process(int(pid))]


def sweep_beside(path: Path | str, *, dir_fd: int | None = None) -> None:
    """Remove what writers of a file that died have left beside it, and nothing that is not this user's."""
    folder, name = os.path.split(path)
    for left in find_beside(folder or "." if dir_fd is None else dir_fd, (name,)):
        with suppress(OSError):
            remove_left(os.path.join(folder, left), dir_fd)


def remove_left(path: Path | str, dir_fd: int | None = None) -> None:
    """Remove what `find_beside` found, unless its writer lives, or it is another user's.

    Raises:
        OSError: it is in use, or cannot be removed.
    """
    inode = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
    if inode.st_uid != os.geteuid() or inode.st_nlink != 1:
        return
    if stat.S_ISLNK(inode.st_mode):  # see `outside.link_below`
        os.unlink(path, dir_fd=dir_fd)
        return
    fd = open_regular(path, os.O_RDWR, dir_fd=dir_fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path, dir_fd=dir_fd)
    finally:
        os.close(fd)


def _has_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError) as error:
        return isinstance(error, PermissionError)
    return True


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def expand_path(folder: str, path: str) -> str:
    """The absolute path that a user has named; ``~/`` is the home directory, others count from the folder."""
    return os.path.normpath(os.path.join(folder, os.path.expanduser(path)))


def is_folder(path: Path) -> bool:
    """Whether a directory lies there, and no link to one."""
    return path.is_dir() and not path.is_symlink()


def remove_empty(folder: Path, top: Path) -> None:
    """Remove a directory, and those above it below `top`, as far as nothing is in them."""
    while folder != top:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def list_folders(path: Path) -> list[str]:
    """The names of the directories in one, sorted; links do not count.  Empty if it is not there."""
    try:
        return sorted(entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []

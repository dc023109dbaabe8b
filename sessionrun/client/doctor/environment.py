"""Checks of what all sessions need: Python, git, the results directory and its disk, the user's index."""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sessionrun.client.cleaning.removal import find_trash, sweep_trash
from sessionrun.client.doctor.finding import Finding
from sessionrun.model.errors import InputError, NoSpace, SessionrunError
from sessionrun.store import index
from sessionrun.workspaces import git

_NETWORK: Final = (
    "nfs",
    "cifs",
    "smb",
    "afs",
    "9p",
    "ceph",
    "glusterfs",
    "lustre",
    "gpfs",
    "beegfs",
    "fuse.sshfs",
    "davfs",
)
"""How names of network file systems begin; there flock, rename or sync promise less, or nothing."""


def check_git(results_dir: Path) -> Iterator[Finding]:
    """Whether git is there and new enough for worktrees."""
    wanted = ".".join(map(str, git.MINIMUM))
    plan = f"install git {wanted} or newer; only --worktree needs it"
    try:
        version = git.version(Path("/"))
    except SessionrunError as error:
        yield Finding("git", "warning", "git", str(error), plan)
        return
    if version < git.MINIMUM:
        yield Finding("git", "warning", "git", f"this is {'.'.join(map(str, version))}", plan)


def check_configuration(results_dir: Path) -> Iterator[Finding]:
    """Whether the configuration can be read, so that a launch from here can work."""
    from sessionrun.agents.table import BUILTIN
    from sessionrun.client.config import load_config

    try:
        load_config(Path.cwd(), os.environ, BUILTIN)
    except InputError as error:
        plan = "mend it: man 5 sessionrun-input, CONFIGURATION; until then no session can be launched"
        yield Finding("configuration", "error", "configuration", str(error), plan)


def check_results_dir(results_dir: Path) -> Iterator[Finding]:
    """Whether we, and no other user, can make sessions."""
    place = _existing(results_dir)
    where, quoted = str(place), shlex.quote(str(place))
    if not os.path.isdir(place):
        yield Finding("results", "error", where, "it is not a directory", "choose another one: --results-dir")
        return
    if not os.access(place, os.W_OK | os.X_OK):
        yield Finding("results", "error", where, "it cannot be written", "choose another one: --results-dir")
    mode = place.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        what = "every user may write in it, and remove or replace sessions"
        yield Finding("results", "error", where, what, f"chmod o-w {quoted}, or chmod +t {quoted}")


def check_file_system(results_dir: Path) -> Iterator[Finding]:
    """Whether the results directory is on a disk of this machine, where locks and syncs do what they promise."""
    place = _existing(results_dir)
    yield from _judge_file_system(place, find_file_system(place))


def check_locks(results_dir: Path) -> Iterator[Finding]:
    """Whether flock works in the results directory; the test locks the directory itself, as nothing else does."""
    if not results_dir.is_dir():
        return
    fault = _try_flock(results_dir)
    if fault is not None:
        plan = "choose a local disk: --results-dir; on this one, living sessions cannot be told from dead ones"
        yield Finding("flock", "error", str(results_dir), f"flock does not work: {fault}", plan)


def check_space(results_dir: Path) -> Iterator[Finding]:
    """Whether the disk has room left."""
    from sessionrun.workspaces import space

    try:
        space.check_space(results_dir)
    except NoSpace as error:
        yield Finding(
            "space", "warning", str(results_dir), str(error), "make room; sessionrun clean --older-than 7d"
        )


def check_index(results_dir: Path) -> Iterator[Finding]:
    """Whether the user's index is a file that only the user writes."""
    path = index.index_path()
    try:
        inode = path.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        yield Finding(
            "index", "warning", str(path), f"it cannot be read: {error.strerror}", "look at its directory"
        )
        return
    if not stat.S_ISREG(inode.st_mode):
        aside = shlex.join(["mv", str(path), f"{path}.planted"])
        yield Finding("index", "error", str(path), "it is not a regular file", f"put it aside: {aside}")
    elif not os.access(path, os.R_OK | os.W_OK):
        yield Finding("index", "warning", str(path), "it cannot be read and written", "look at its owner and mode")
    elif inode.st_mode & 0o077 and inode.st_uid == os.geteuid():
        plan = "--fix takes the rights of group and others away"
        yield Finding("index", "warning", str(path), "wider than 0600", plan, lambda: os.chmod(path, 0o600))


def check_limits(results_dir: Path) -> Iterator[Finding]:
    """Whether the files in which sessions share limits can be believed."""
    from sessionrun.runtime.limits import find_damaged

    folder = index.limits_path()
    try:
        inode = folder.lstat()
    except OSError:
        return
    if not stat.S_ISDIR(inode.st_mode) or inode.st_uid != os.geteuid() or inode.st_mode & 0o077:
        what = "it is not a directory that is yours alone: sessions do not share limits"
        plan = f"remove it; the next session makes it again: {shlex.join(['rm', '-r', str(folder)])}"
        yield Finding("limits", "warning", str(folder), what, plan)
        return
    for path in find_damaged(folder, time.time()):
        fix = None if path.is_dir() and not path.is_symlink() else path.unlink
        plan = "--fix removes it" if fix else f"remove it: {shlex.join(['rm', '-r', str(path)])}"
        yield Finding("limits", "warning", str(path), "it is ignored: it is not a record of a limit", plan, fix)


def check_trash(results_dir: Path) -> Iterator[Finding]:
    """Whether a removal of sessions was broken off."""
    for path in find_trash(results_dir):
        what = "a session whose removal was broken off"
        yield Finding("trash", "warning", str(path), what, "--fix deletes it", lambda: _sweep(results_dir))


def _sweep(results_dir: Path) -> None:
    sweep_trash(results_dir)


def _judge_file_system(place: Path, kind: str | None) -> Iterator[Finding]:
    if kind is not None and kind.startswith(_NETWORK):
        what = f"it is on a network file system ({kind}): locks and syncs may not hold"
        yield Finding("network", "warning", str(place), what, "choose a local disk: --results-dir")


def _existing(path: Path) -> Path:
    """The path, or else the nearest directory above it that exists."""
    path = path.absolute()
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return path


def _try_flock(folder: Path) -> str | None:
    """Why the lock of one descriptor does not exclude another descriptor; None: it does."""
    first = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    second = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(first, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return None if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else error.strerror
    finally:
        os.close(first)
        os.close(second)
    return "two processes can hold the same lock"


def find_file_system(path: Path) -> str | None:
    """Return the name of its type, such as ``ext4``; None where that cannot be known."""
    import psutil

    real = os.path.realpath(path)
    best: tuple[str, str | None] = ("", None)
    try:
        mounts = psutil.disk_partitions(all=True)
    except (psutil.Error, OSError):
        return None
    for mount in mounts:
        inside = real == mount.mountpoint or real.startswith(mount.mountpoint.rstrip("/") + "/")
        if inside and len(mount.mountpoint) >= len(best[0]):
            best = (mount.mountpoint, mount.fstype)
    return best[1]

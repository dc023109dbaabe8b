"""What `doctor` finds on this machine: git, configuration, results directory, disk, files that sessions share."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from sessionrun.client.findings import Finding, error, warning
from sessionrun.model.errors import InputError, NoSpace, SessionrunError

NETWORK: Final = (
    *("nfs", "cifs", "smb", "afs", "9p", "ceph", "glusterfs", "lustre", "gpfs", "beegfs", "fuse.sshfs", "davfs"),
)
"""How names of network file systems begin; there flock, rename or sync promise less, or nothing."""

_ANOTHER: Final = "choose another one: --results-dir"


# --- what all sessions need ---


def check_git(_: Path) -> Iterator[Finding]:
    """Whether git is there and new enough for worktrees."""
    from sessionrun.git import git

    plan = f"install git {'.'.join(map(str, git.MINIMUM))} or newer; only --worktree needs it"
    try:
        version = git.version(Path("/"))
    except SessionrunError as fault:
        yield warning("git", str(fault), plan)
        return
    if version < git.MINIMUM:
        yield warning("git", f"this is {'.'.join(map(str, version))}", plan)


def check_configuration(_: Path) -> Iterator[Finding]:
    """Whether the configuration can be read, so that a launch from here can work."""
    from sessionrun.agents.table import BUILTIN
    from sessionrun.client.config import load_config

    try:
        load_config(Path.cwd(), os.environ, BUILTIN)
    except InputError as fault:
        plan = "mend it: man 5 sessionrun-input, CONFIGURATION; until then no session can be launched"
        yield error("configuration", str(fault), plan)


def check_results_dir(results_dir: Path) -> Iterator[Finding]:
    """Whether we, and no other user, can make sessions."""
    place = _find_existing(results_dir)
    if not place.is_dir():
        yield error(place, "it is not a directory", _ANOTHER)
        return
    if not os.access(place, os.W_OK | os.X_OK):
        yield error(place, "it cannot be written", _ANOTHER)
    mode, quoted = place.stat().st_mode, shlex.quote(str(place))
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        what = "every user may write in it, and remove or replace sessions"
        yield error(place, what, f"chmod o-w {quoted}, or chmod +t {quoted}")


def check_file_system(results_dir: Path) -> Iterator[Finding]:
    """Whether the results directory is on a disk of this machine, where locks and syncs do what they promise."""
    place = _find_existing(results_dir)
    kind = find_file_system(place)
    if kind is not None and kind.startswith(NETWORK):
        what = f"it is on a network file system ({kind}): locks and syncs may not hold"
        yield warning(place, what, "choose a local disk: --results-dir")


def check_space(results_dir: Path) -> Iterator[Finding]:
    """Whether the disk has room left."""
    from sessionrun.store import space

    try:
        space.check_space(results_dir)
    except NoSpace as fault:
        yield warning(results_dir, str(fault), "make room; sessionrun clean --older-than 7d")


def _find_existing(path: Path) -> Path:
    """The path, or else the nearest directory above it that exists."""
    path = path.absolute()
    return next((place for place in (path, *path.parents) if os.path.lexists(place)), path)


def find_file_system(path: Path) -> str | None:
    """Return the name of its type, such as ``ext4``; None where that cannot be known."""
    import psutil

    real = Path(os.path.realpath(path))
    try:
        mounts = {mount.mountpoint: mount.fstype for mount in psutil.disk_partitions(all=True)}
    except (psutil.Error, OSError):
        return None
    return next((mounts[str(place)] for place in (real, *real.parents) if str(place) in mounts), None)


# --- what sessions share ---


def check_trash(results_dir: Path) -> Iterator[Finding]:
    """Whether a removal of sessions was broken off."""
    from sessionrun.client.clean import delete, find_trash

    for path in find_trash(results_dir):
        yield warning(path, "a session whose removal was broken off", "--fix deletes it", partial(delete, path))

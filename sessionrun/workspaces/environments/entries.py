"""The cache of environments: an entry is made under another name, by one process, and renamed when it is whole.

What a killed process left has another name, and goes when the next one takes the lock of its digest.  An entry is
made of files that were on the disk before its manifest was, so that it is whole after a power failure, too.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sessionrun.store.files import make_directories, sync_directory
from sessionrun.workspaces.environments.copying import Manifest, load_manifest
from sessionrun.workspaces.environments.request import EnvironmentProblem
from sessionrun.workspaces.registration import LOCK_POLL_S, remove_tree

_LOOK_S: Final = 5.0
"""How often a process that waits says so."""


def find_entry(cache: Path, digest: str) -> Manifest | None:
    """The manifest of the entry, if there is one."""
    return load_manifest(cache / digest, digest)


def ensure_entry(
    cache: Path, digest: str, make: Callable[[Path], Manifest], *, limit_s: float, say: Callable[[str], None]
) -> tuple[Manifest, bool]:
    """The manifest of an entry that is whole, and whether it was made now: one process at a time makes it.

    Args:
        cache: the directory of all environments.
        digest: of the inputs.
        make: fills a folder and leaves its manifest there.
        limit_s: how long to wait for another process that makes it.
        say: tells people that it waits.

    Raises:
        EnvironmentProblem: it cannot be made, or another process made it for too long.
        OSError: the cache cannot be written.
    """
    make_directories(cache, 0o700)
    with hold_digest(cache, digest, limit_s, say):
        sweep(cache, digest)
        manifest = find_entry(cache, digest)
        if manifest is not None:
            return manifest, False
        discard(cache / digest, digest)
        folder = Path(tempfile.mkdtemp(prefix=f".new-{digest}-", dir=cache))
        try:
            manifest = make(folder)
        except BaseException:
            remove_tree(folder)
            raise
        os.rename(folder, cache / digest)
        sync_directory(cache)
    return manifest, True


def sweep(cache: Path, digest: str) -> None:
    """Remove what killed processes left of an entry; under the lock of its digest.

    An installer may have outlived the process that started it, and still write there: then some of it stays, until
    the next time.
    """
    for name in os.listdir(cache):
        if name.startswith((f".new-{digest}-", f".old-{digest}-")):
            try:
                remove_tree(cache / name)
            except OSError:
                continue


def sync_files(folder: Path) -> None:
    """Bring all that was written to the disk: one call for the file system, not one for each of many files."""
    try:
        import ctypes

        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(fd) == 0:
                return
        finally:
            os.close(fd)
    except (AttributeError, ImportError, OSError):
        pass  # no Linux
    os.sync()


def discard(path: Path, digest: str) -> None:
    """Remove an entry, or what a killed process left of one, under the lock of its digest.

    It gets another name first: a process that copies it sees by that that it is no longer whole.
    """
    if not path.name.startswith(".") and os.path.lexists(path):
        trash = path.with_name(f".old-{digest}-{os.getpid()}")
        os.rename(path, trash)
        path = trash
    remove_tree(path)


@contextmanager
def hold_digest(cache: Path, digest: str, limit_s: float, say: Callable[[str], None]) -> Iterator[None]:
    """Be the process that builds or removes the entry of a digest; arguments as of `ensure_entry`.

    Raises:
        EnvironmentProblem: another process held the lock for too long.
        OSError: the cache cannot be written.
    """
    from filelock import FileLock, Timeout

    path = cache / f"{digest}.lock"
    lock = FileLock(path, mode=0o600, poll_interval=LOCK_POLL_S, fallback_to_soft=False)
    begun = time.monotonic()
    while True:
        left = begun + limit_s - time.monotonic()
        try:
            lock.acquire(timeout=max(0.0, min(_LOOK_S, left)))
            break
        except Timeout:
            if left <= _LOOK_S:
                raise EnvironmentProblem(
                    f"another process did not finish this environment in {limit_s:g} s"
                ) from None
        say(f"environment: another process builds it, {time.monotonic() - begun:.0f} s so far ...")
    try:
        yield
    finally:
        lock.release()

"""Copies an entry of the cache to where a task uses it: files, then their paths, then the digests in RECORD."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from sessionrun.store.files import make_directories, replace_file
from sessionrun.workspaces.environments.copying import Copier, write_new
from sessionrun.workspaces.environments.manifest import ENV, LEFT, MANIFEST, Entry, Manifest, is_unchanged
from sessionrun.workspaces.environments.removal import beside_path, clear
from sessionrun.workspaces.environments.request import MARK, EnvironmentProblem, Mark, Tenant, tenant_path
from sessionrun.workspaces.environments.rewriting import digest_of, refuse_path, rewrite, rewrite_record


class EntryChanged(Exception):
    """A file of the entry is not what its manifest says."""


def clone(
    entry: Path, manifest: Manifest, target: Path, checkout: Path, owner: str, tenant: Tenant | None = None
) -> int:
    """Make an environment from an entry; one that an earlier start made there is replaced.

    Args:
        entry: the folder of the entry.
        manifest: of it.
        target: where the environment is to be.
        checkout: the task's.
        owner: whose it is, for people.
        tenant: the same, for `clean --cache`.

    Returns:
        How many files share their blocks with the entry.

    Raises:
        EntryChanged: the entry is not as it was.
        EnvironmentProblem: a path cannot stand in it, or another's environment is in its place.
        OSError: it cannot be written.
    """
    for path in (target, checkout):
        if (why := refuse_path(str(path))) is not None:
            raise EnvironmentProblem(f"no environment can be made for {path}: {why}")
    clear(target)
    beside = beside_path(target)
    make_directories(target.parent, 0o700)
    if tenant is not None:
        make_directories(tenant_path(target).parent, 0o700)
        replace_file(tenant_path(target), orjson.dumps(tenant), durable=False)
    os.mkdir(beside, 0o700)
    replace_file(beside / MARK, orjson.dumps(Mark(owner, manifest.digest)), durable=False)
    work = _Clone(str(entry), {manifest.root: str(target), manifest.checkout: str(checkout)})
    for file in manifest.files:
        place = _find_place(file.path, str(beside), str(checkout))
        if place is not None:
            work.copy(file, place)
    work.mend_records(str(beside), str(checkout))
    os.rename(beside, target)
    with suppress(OSError):  # removed meanwhile, or of a cache that may only be read
        os.utime(entry / MANIFEST)  # its last use, for `clean --cache`
    return work.copier.shared


@dataclass
class _Clone:
    """One copy under way: the moves of paths, and the digests of the files that were rewritten."""

    entry: str
    moves: Mapping[str, str]
    copier: Copier = field(default_factory=Copier)
    digests: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    records: list[str] = field(default_factory=list)

    def copy(self, file: Entry, place: str) -> None:
        """Make one file, link or directory; in the checkout only what is not there."""
        if file.path.startswith(f"{LEFT}/") and os.path.lexists(place):
            return
        if file.is_directory:
            with suppress(FileExistsError):
                os.mkdir(place)
        elif file.link is not None:
            if os.readlink(f"{self.entry}/{file.path}") != file.link:
                raise EntryChanged(file.path)
            os.symlink(self._move(file.link), place)
        else:
            self._copy_file(file, place)
        if file.record:
            self.records.append(file.path)

    def mend_records(self, env: str, checkout: str) -> None:
        """Give each RECORD the digests of the files that were rewritten."""
        for path in self.records:
            place = _find_place(path, env, checkout)
            assert place is not None
            record = Path(place)
            content = record.read_bytes()
            site = os.path.dirname(os.path.dirname(path))
            digests = {os.path.relpath(inner, site): digest for inner, digest in self.digests.items()}
            record.write_bytes(rewrite_record(content, digests))

    def _copy_file(self, file: Entry, place: str) -> None:
        try:
            fd = os.open(f"{self.entry}/{file.path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise EntryChanged(file.path) from error
        try:
            if not is_unchanged(file, os.fstat(fd)):
                raise EntryChanged(file.path)
            mode = stat.S_IMODE(file.mode)
            if file.rewrite:
                with os.fdopen(os.dup(fd), "rb") as stream:
                    content = rewrite(stream.read(), self.moves)
                write_new(place, content, mode)
                self.digests[file.path] = digest_of(content)
            else:
                self.copier.copy(fd, place, file.size, mode, (file.mtime_ns, file.mtime_ns))
            if not is_unchanged(file, os.fstat(fd)):
                raise EntryChanged(file.path)  # while it was read
        finally:
            os.close(fd)

    def _move(self, link: str) -> str:
        for old, new in self.moves.items():
            if link == old or link.startswith(old + os.sep):
                return new + link[len(old) :]
        return link


def _find_place(path: str, env: str, checkout: str) -> str | None:
    """Where a file of an entry goes; None where a link in the checkout would lead it elsewhere."""
    room, _, inner = path.partition("/")
    if room == ENV:
        return f"{env}/{inner}" if inner else env
    folder = os.path.dirname(f"{checkout}/{inner}")
    if not inner or os.path.realpath(folder) != folder or not os.path.isdir(folder):
        return None
    return f"{checkout}/{inner}"


def copy_checkout(top: Path, target: Path) -> None:
    """Copy a checkout for a build, without its repository but with the way to it; links stay links.

    Raises:
        OSError: it cannot be copied.
    """
    shutil.copytree(top, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", ".git"))
    link = top / ".git"
    if link.is_dir():
        (target / ".git").write_text(f"gitdir: {link}\n")
    elif link.is_file():
        shutil.copyfile(link, target / ".git")

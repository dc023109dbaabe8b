"""The manifest of an entry of the cache: each of its files as it was when the entry was made.

A file is taken to be unchanged while its size, its times of change, its inode and its mode are: no program can set
the time at which an inode changed.  Files that are not in the manifest are never copied.
"""

from __future__ import annotations

import csv
import io
import os
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Final

import orjson

from sessionrun.model.frozen import frozen
from sessionrun.store.files import read_regular, replace_file
from sessionrun.workspaces.environments.inputs import FORMAT
from sessionrun.workspaces.environments.request import StepReport
from sessionrun.workspaces.environments.rewriting import holds_path, is_text

MANIFEST: Final = "manifest.json"
ENV: Final = "env"
LEFT: Final = "left"
"""What an entry holds: the environment, and what the editable install left in the checkout."""

_MAX_TEXT_BYTES: Final = 8 * 1024 * 1024
_DROPPED: Final = frozenset(("pip", "setuptools", "pkg_resources", "wheel", "_distutils_hack"))
"""Packages whose compiled files are not kept: they are half of a small environment and hardly ever run."""


@frozen
class Entry:
    """One file (`mode` of a regular file), link (`link` is where it leads) or directory of an entry.

    `rewrite` says that paths in it become those of the copy, `record` that it lists digests of such files.
    """

    path: str
    mode: int
    size: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    inode: int = 0
    link: str | None = None
    rewrite: bool = False
    record: bool = False

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)


@frozen
class Manifest:
    """An entry that was made in whole.

    Attributes:
        format: of this file and of what lies beside it.
        digest: of its inputs.
        root: where the environment was when it was built.
        checkout: where the checkout was.
        choice: which of the ways to install was taken.
        packages: what is installed.
        steps: of the build.
        remarks: lines for people.
        files: all files, directories first.
    """

    format: int
    digest: str
    root: str
    checkout: str
    choice: str
    packages: tuple[str, ...]
    steps: tuple[StepReport, ...]
    remarks: tuple[str, ...]
    files: tuple[Entry, ...]


def load_manifest(folder: Path, digest: str) -> Manifest | None:
    """The manifest of an entry; None where there is none that holds."""
    try:
        record = orjson.loads(read_regular(folder / MANIFEST))
        steps = tuple(StepReport(**{**step, "argv": tuple(step["argv"])}) for step in record["steps"])
        files = tuple(Entry(*row) for row in record["files"])
        words = {name: tuple(record[name]) for name in ("packages", "remarks")}
        manifest = Manifest(**{**record, **words, "steps": steps, "files": files})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return manifest if manifest.digest == digest and manifest.format == FORMAT else None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Leave the manifest, durably: what has none is never trusted.

    Raises:
        OSError: it cannot be written.
    """
    names = [key.name for key in fields(Entry)]
    record = {key.name: getattr(manifest, key.name) for key in fields(Manifest)}
    record["files"] = [[getattr(entry, name) for name in names] for entry in manifest.files]
    replace_file(folder / MANIFEST, orjson.dumps(record), durable=True)


def list_files(folder: Path, paths: Sequence[str]) -> tuple[Entry, ...]:
    """All files below ENV and LEFT of an entry; drops compiled files that would be wrong in a copy.

    Args:
        folder: of the entry.
        paths: what becomes another path in a copy.
    """
    _drop_compiled(folder, paths)
    entries = sorted(_walk(folder, paths), key=lambda entry: (not entry.is_directory, entry.path))
    changed = {entry.path for entry in entries if entry.rewrite}
    return tuple(_mark_record(folder, entry, changed) for entry in entries)


def is_unchanged(entry: Entry, status: os.stat_result) -> bool:
    """Whether a file is still what the manifest says."""
    ours = (entry.mode, entry.size, entry.mtime_ns, entry.ctime_ns, entry.inode)
    return ours == (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def verify(folder: Path, manifest: Manifest) -> str | None:
    """The first file of an entry that is not as it was, or None."""
    for entry in manifest.files:
        path = folder / entry.path
        try:
            status = path.lstat()
            if entry.link is not None:
                same = os.readlink(path) == entry.link
            else:
                same = status.st_mode == entry.mode if entry.is_directory else is_unchanged(entry, status)
        except OSError:
            same = False
        if not same:
            return entry.path
    return None


def find_binaries(folder: Path, files: Collection[Entry], paths: Sequence[str]) -> list[str]:
    """Files that hold an old path and are no text: they keep it."""
    compiled = (".pyc", ".pyo")
    plain = [
        entry
        for entry in files
        if stat.S_ISREG(entry.mode) and not entry.rewrite and not entry.path.endswith(compiled)
    ]
    small = [entry.path for entry in plain if entry.size <= _MAX_TEXT_BYTES]
    return [path for path in small if holds_path((folder / path).read_bytes(), paths)]


def _walk(folder: Path, paths: Sequence[str]) -> Iterator[Entry]:
    queue = [name for name in (ENV, LEFT) if (folder / name).is_dir()]
    for name in queue:
        yield Entry(name, (folder / name).lstat().st_mode)
    while queue:
        place = queue.pop()
        for there in os.scandir(folder / place):
            status, path = there.stat(follow_symlinks=False), f"{place}/{there.name}"
            if stat.S_ISDIR(status.st_mode):
                queue.append(path)
                yield Entry(path, status.st_mode)
            elif stat.S_ISLNK(status.st_mode):
                yield Entry(path, status.st_mode, link=os.readlink(there.path))
            elif stat.S_ISREG(status.st_mode):
                yield _describe(Path(there.path), path, status, paths)


def _describe(path: Path, name: str, status: os.stat_result, paths: Sequence[str]) -> Entry:
    rewrite = False
    if status.st_size <= _MAX_TEXT_BYTES and not name.endswith((".pyc", ".pyo")):
        content = path.read_bytes()
        rewrite = holds_path(content, paths) and is_text(content)
    return Entry(
        name,
        status.st_mode,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_ino,
        rewrite=rewrite,
    )


def _drop_compiled(folder: Path, paths: Sequence[str]) -> None:
    """Delete compiled files of texts that will be rewritten: they may look fresh and hold the old paths."""
    for place, folders, names in os.walk(folder / ENV):
        if os.path.basename(place) != "__pycache__":
            if os.path.basename(place) == "site-packages":
                for name in _DROPPED & set(folders):
                    if not os.path.islink(os.path.join(place, name)):
                        _drop_all_compiled(Path(place, name))
            continue
        for name in names:
            source = Path(place).parent / (name.partition(".")[0] + ".py")
            try:
                stale = holds_path(read_regular(source), paths)
            except OSError:
                stale = False
            if stale:
                os.unlink(Path(place, name))


def _drop_all_compiled(package: Path) -> None:
    for place, _, names in os.walk(package):
        for name in names:
            if name.endswith(".pyc"):
                os.unlink(os.path.join(place, name))


def _mark_record(folder: Path, entry: Entry, changed: Collection[str]) -> Entry:
    """Say of a RECORD whether it lists a file that is rewritten."""
    if not entry.path.endswith(".dist-info/RECORD") or not stat.S_ISREG(entry.mode):
        return entry
    try:
        text = (folder / entry.path).read_bytes().decode()
    except UnicodeDecodeError:
        return entry
    site = os.path.dirname(os.path.dirname(entry.path))
    rows = (row[0] for row in csv.reader(io.StringIO(text)) if row)
    if not any(os.path.normpath(os.path.join(site, name)) in changed for name in rows):
        return entry
    return replace(entry, record=True)

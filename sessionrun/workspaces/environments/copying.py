"""An entry of the cache and its copies: what uv made at one place works at another, but for paths in a few texts.

An environment that uv makes to be relocatable does not name its own place.  What makes the project importable
names the checkout: ``*.pth``, ``__editable__*.py``, ``direct_url.json``, and what a build left there.  So the
files of an entry that name a place of its build are found once, and written anew in each copy.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

import orjson

from sessionrun.model.errors import JobFileError
from sessionrun.model.frozen import frozen
from sessionrun.store.files import make_directories, replace_file
from sessionrun.store.jobfiles import load_record_if_any
from sessionrun.workspaces.environments.removal import beside_path, clear
from sessionrun.workspaces.environments.request import (
    MARK,
    EnvironmentProblem,
    EnvironmentRequest,
    Mark,
    StepReport,
    tenant_path,
)

MANIFEST: Final = "manifest.json"
ENV: Final = "env"
LEFT: Final = "left"
"""What an entry holds: the environment, and what the editable install left in the checkout."""

_MAX_TEXT_BYTES: Final = 8 * 1024 * 1024
_CHUNK: Final = 1 << 30
_REFUSED: Final = re.compile(r"""['"\\\n\r$`%]|[^\x20-\x7e\u00a0-\U0010ffff]""")


@frozen
class Manifest:
    """An entry that was made in whole.

    Attributes:
        digest: of its inputs.
        root: where the environment was when it was built.
        checkout: where the checkout was.
        choice: which of the ways to install was taken.
        packages: what is installed.
        steps: of the build.
        remarks: lines for people.
        texts: the files, by their paths in the entry, in which one of the two places stands.
    """

    digest: str
    root: str
    checkout: str
    choice: str
    packages: tuple[str, ...]
    steps: tuple[StepReport, ...]
    remarks: tuple[str, ...]
    texts: tuple[str, ...]


def load_manifest(folder: Path, digest: str) -> Manifest | None:
    """The manifest of an entry; None where there is none that holds."""
    try:
        manifest = load_record_if_any(folder / MANIFEST, Manifest)
    except JobFileError:
        return None
    return manifest if manifest is not None and manifest.digest == digest else None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Leave the manifest, durably: what has none is never trusted.

    Raises:
        OSError: it cannot be written.
    """
    replace_file(folder / MANIFEST, orjson.dumps(manifest), durable=True)


def find_texts(folder: Path, paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """The files of an entry in which one of these paths stands: those that are text, and others.

    Code of a checkout may have made anything there, so no link is followed, and only files are read.
    """
    texts: list[str] = []
    others: list[str] = []
    spelled = [word.encode() for path in paths for word in dict.fromkeys((path, quote(path)))]
    for path, status in _iterate_files(folder):
        if status.st_size > _MAX_TEXT_BYTES or path.suffix in (".pyc", ".pyo"):
            continue
        content = path.read_bytes()
        if any(word in content for word in spelled):
            (texts if _is_text(content) else others).append(str(path.relative_to(folder)))
    return sorted(texts), sorted(others)


def _iterate_files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for room in (ENV, LEFT):
        for place, _, names in os.walk(folder / room):
            for name in names:
                status = os.lstat(os.path.join(place, name))
                if stat.S_ISREG(status.st_mode):
                    yield Path(place, name), status


def _is_text(content: bytes) -> bool:
    """Whether it may be rewritten: UTF-8 without NUL."""
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False


def refuse_path(path: str) -> str | None:
    """Why a path cannot stand in the files of an environment, or None."""
    return "it holds a character that scripts give a meaning to" if _REFUSED.search(path) else None


def clone(entry: Path, manifest: Manifest, request: EnvironmentRequest, checkout: Path) -> None:
    """Make the environment that is asked for from an entry; one that an earlier start made there is replaced.

    Args:
        entry: the folder of the entry.
        manifest: of it.
        request: where the environment is to be, and whose it is.
        checkout: the task's; what the install left in it is put there where nothing is.

    Raises:
        FileNotFoundError: the entry was removed meanwhile.
        EnvironmentProblem: a path cannot stand in it, or another's environment is in its place.
        OSError: it cannot be written.
    """
    target = Path(request.target)
    for path in (target, checkout):
        if (why := refuse_path(str(path))) is not None:
            raise EnvironmentProblem(f"no environment can be made for {path}: {why}")
    clear(target)
    make_directories(target.parent, 0o700)
    if request.tenant is not None:
        make_directories(tenant_path(target).parent, 0o700)
        replace_file(tenant_path(target), orjson.dumps(request.tenant), durable=False)
    before, beside = _identify(entry), beside_path(target)
    os.mkdir(beside, 0o700)
    replace_file(beside / MARK, orjson.dumps(Mark(request.owner, manifest.digest)), durable=False)
    try:
        shutil.copytree(entry / ENV, beside, symlinks=True, dirs_exist_ok=True, copy_function=_copy)
    except shutil.Error as error:  # it has a row for each file that could not be copied
        _check_same(entry, before)
        raise OSError(error.args[0][0][2]) from None
    moves = {manifest.root: str(target), manifest.checkout: str(checkout)}
    for name in manifest.texts:
        if name.startswith(f"{ENV}/"):
            _rewrite(beside / name[len(ENV) + 1 :], moves)
    _put_left(entry, manifest, checkout, moves)
    _check_same(entry, before)
    os.rename(beside, target)
    with suppress(OSError):  # removed meanwhile, or of a cache that may only be read
        os.utime(entry / MANIFEST)  # its last use, for `clean --cache`


def _identify(entry: Path) -> tuple[int, int]:
    status = entry.stat()
    return status.st_ino, status.st_ctime_ns


def _check_same(entry: Path, before: tuple[int, int]) -> None:
    """Check that the entry was not removed while it was copied: a removal renames it before it deletes a file.

    Raises:
        FileNotFoundError: it was removed; the copy may lack files.
    """
    if _identify(entry) != before:
        raise FileNotFoundError(entry)


def _copy(source: str, target: str) -> None:
    """Copy a file; anything else is none that an environment needs.

    Blocks are shared where the file system can, inodes never: a task that writes to a file of its environment in
    place would change the cache and the environments of all others.
    """
    if not stat.S_ISREG(os.lstat(source).st_mode):
        return
    with open(source, "rb") as old, open(target, "xb") as new:
        try:
            while os.copy_file_range(old.fileno(), new.fileno(), _CHUNK):
                pass
        except (AttributeError, OSError):  # no Linux, or a file system that cannot
            shutil.copyfileobj(old, new)
    shutil.copystat(source, target)


def _put_left(entry: Path, manifest: Manifest, checkout: Path, moves: Mapping[str, str]) -> None:
    """Put what the install left in the checkout there; nothing goes over what is there, nor through a link."""
    for place, folders, names in os.walk(entry / LEFT):
        inside = checkout / os.path.relpath(place, entry / LEFT)
        with suppress(FileExistsError):
            inside.mkdir()
        if os.path.realpath(inside) != str(inside) or not inside.is_dir():
            folders.clear()
            continue
        for name in (*names, *folders):
            source, at, beside = Path(place, name), inside / name, inside / f".new-{name}"
            if os.path.lexists(at) or not (source.is_symlink() or source.is_file()):
                continue
            with suppress(FileNotFoundError):
                beside.unlink()  # of a start that was killed
            if source.is_symlink():
                os.symlink(_move(os.readlink(source), moves), at)
                continue
            _copy(str(source), str(beside))
            if str(source.relative_to(entry)) in manifest.texts:
                _rewrite(beside, moves)
            os.rename(beside, at)


def _rewrite(place: Path, moves: Mapping[str, str]) -> None:
    """Put the new places for the old ones into a text.  What was compiled of it could look fresh, and goes."""
    mode, content = stat.S_IMODE(place.lstat().st_mode), place.read_bytes()
    place.unlink()  # it may be one that can only be read
    place.write_bytes(_move(content.decode(), moves).encode())
    place.chmod(mode)
    for stale in place.parent.glob(f"__pycache__/{place.stem}.*.pyc") if place.suffix == ".py" else ():
        stale.unlink()


def _move(text: str, moves: Mapping[str, str]) -> str:
    for old, new in moves.items():
        text = text.replace(f"file://{quote(old)}", f"file://{quote(new)}").replace(old, new)
    return text


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

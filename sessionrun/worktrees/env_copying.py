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
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

import orjson

from sessionrun.git.git import git_environ
from sessionrun.model.frozen import frozen
from sessionrun.store import programs
from sessionrun.store.files import make_directories, replace_file
from sessionrun.store.jobfiles import load_usable
from sessionrun.store.trees import make_entry, remove_entry
from sessionrun.worktrees.env_interpreter import EnvironmentProblem
from sessionrun.worktrees.env_request import MANIFEST, EnvironmentRequest, StepReport, clear, tenant_path

ENV: Final = "env"
LEFT: Final = "left"
"""What an entry holds: the environment, and what the editable install left in the checkout."""

_MAX_TEXT_BYTES: Final = 8 * 1024 * 1024
_REFUSED: Final = re.compile(r"""['"\\\n\r$`%]|[^\x20-\x7e\u00a0-\U0010ffff]""")

# blocks are shared where the file system can, inodes never: a task that writes to a file of its environment in
# place would change the cache and the environments of all others
_COPY: Final = ("cp", "-a", *(("--reflink=auto",) if sys.platform == "linux" else ()))


@frozen
class Manifest:
    """An entry that was made in whole.

    Attributes:
        root: where the environment was when it was built.
        checkout: where the checkout was.
        choice: which of the ways to install was taken.
        remarks: lines for people.
        texts: the files, by their paths in the entry, in which one of the two places stands.
        left: what the install left in the checkout, by its path there.
    """

    root: str
    checkout: str
    choice: str
    packages: tuple[str, ...]
    steps: tuple[StepReport, ...]
    remarks: tuple[str, ...]
    texts: tuple[str, ...]
    left: tuple[str, ...]


def load_manifest(entry: Path) -> Manifest | None:
    """The manifest of an entry; None where there is none that holds."""
    return load_usable(entry / MANIFEST, Manifest)


def find_texts(folder: Path, paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """The files of an entry in which one of these paths stands: those that are text, and others.

    Code of a checkout may have made anything there, so no link is followed, and only files are read.
    """
    texts: list[str] = []
    others: list[str] = []
    spelled = [word.encode() for path in paths for word in dict.fromkeys((path, quote(path)))]
    for path in _iterate_files(folder):
        content = path.read_bytes()
        if any(word in content for word in spelled):
            (texts if _is_text(content) else others).append(str(path.relative_to(folder)))
    return sorted(texts), sorted(others)


def _iterate_files(folder: Path) -> Iterator[Path]:
    for part in (ENV, LEFT):
        for place, _, names in os.walk(folder / part):
            for path in (Path(place, name) for name in names if not name.endswith((".pyc", ".pyo"))):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_TEXT_BYTES:
                    yield path


def _is_text(content: bytes) -> bool:
    """Whether it may be rewritten: UTF-8 without NUL."""
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False


def refuse_path(path: str) -> str | None:
    """Why a path cannot stand in the files of an environment, or None."""
    return "it holds a character that scripts give a meaning to" if _REFUSED.search(path) else None


def copy_entry(entry: Path, manifest: Manifest, request: EnvironmentRequest, checkout: Path) -> None:
    """Make the environment that is asked for from an entry; one that an earlier start made there is replaced.

    Args:
        entry: its folder; it is not removed meanwhile.
        request: where the environment is to be, and whose it is.
        checkout: the task's; what the install left in it is put there where nothing is.

    Raises:
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
    moves = {manifest.root: str(target), manifest.checkout: str(checkout)}
    with make_entry(target) as beside:
        words = (*_COPY, "--", f"{entry / ENV}/.", str(beside))
        done = programs.run(words, environ=git_environ(os.environ), limit_s=None)
        if done.returncode != 0:
            raise OSError(done.stderr.decode("utf-8", "replace").strip().partition("\n")[0])
        for name in manifest.texts:
            if name.startswith(f"{ENV}/"):
                _rewrite(beside / name[len(ENV) + 1 :], moves)
        for name in manifest.left:
            _put_left(entry, manifest, name, checkout, moves)


def _put_left(entry: Path, manifest: Manifest, name: str, checkout: Path, moves: Mapping[str, str]) -> None:
    """Put what the install left in the checkout there; nothing goes over what is there, nor through a link."""
    source, target = entry / LEFT / name, checkout / name
    if os.path.lexists(target) or os.path.realpath(target.parent) != str(target.parent):
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        return
    if source.is_symlink():
        os.symlink(_move(os.readlink(source), moves), target)
    elif source.is_file():
        beside = target.with_name(f".new-{target.name}")
        remove_entry(beside)  # of a start that was killed
        shutil.copy2(source, beside)
        if f"{LEFT}/{name}" in manifest.texts:
            _rewrite(beside, moves)
        os.rename(beside, target)


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

"""An entry of the cache and its copies: what uv made at one place works at another, but for paths in a few texts.

What makes the project importable names the checkout: ``*.pth``, ``__editable__*.py``, ``direct_url.json``, and
what a build left there.  So the files of an entry that name a place of its build are found once, and written anew
in each copy.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from sessionrun.git.git import git_environ
from sessionrun.model.frozen import frozen
from sessionrun.store import programs
from sessionrun.store.jobfiles import load_usable
from sessionrun.store.trees import remove_entry
from sessionrun.worktrees.environments.inputs import iterate_names
from sessionrun.worktrees.environments.request import MANIFEST, EnvironmentProblem

ENV: Final = "env"
LEFT: Final = "left"
"""What an entry holds: the environment, and what the editable install left in the checkout."""

CHECKOUT: Final = "checkout"
"""In an entry while it is built: the copy of the checkout in which uv works."""

_REFUSED: Final = re.compile(r"""['"\\\n\r$`%:]|[^\x20-\x7e\u00a0-\U0010ffff]""")

# blocks are shared where the file system can, inodes never: a task that writes to a file of its environment in
# place would change the cache and the environments of all others
_COPY: Final = ("cp", "-a", *(("--reflink=auto",) if sys.platform == "linux" else ()))


@frozen
class Manifest:
    """An entry that was made in whole: `texts` are the files in which the place stands where it was `made_at`."""

    made_at: str
    choice: str
    packages: tuple[str, ...]
    texts: tuple[str, ...]


def load_manifest(entry: Path) -> Manifest | None:
    """The manifest of an entry, if there is one that holds."""
    return load_usable(entry / MANIFEST, Manifest)


def find_texts(entry: Path, made_at: str) -> tuple[str, ...]:
    """The texts of an entry in which this path stands, as it is or as a part of a URL.

    Code of a checkout may have made anything there: grep follows no link, and reads only files.
    """
    words = ("-rlIF", "--null", "-D", "skip", "--exclude=*.py[co]", "-e", made_at, "-e", quote(made_at))
    found = _run("grep", *words, "--", ENV, LEFT, cwd=entry, codes=(0, 1))
    return tuple(sorted(os.fsdecode(found).split("\0")[:-1]))


def _run(*argv: str, cwd: Path, codes: Sequence[int] = (0,)) -> bytes:
    done = programs.run(argv, cwd=cwd, environ=git_environ(os.environ), limit_s=None)
    if done.returncode not in codes:
        raise OSError(done.stderr.decode("utf-8", "replace").strip().partition("\n")[0])
    return done.stdout


def refuse_path(path: str) -> str | None:
    """Why a path cannot stand in the files of an environment, or None."""
    return "it holds a character to which scripts or PATH give a meaning" if _REFUSED.search(path) else None


def copy_entry(entry: Path, manifest: Manifest, target: Path, checkout: Path) -> None:
    """Make an environment from an entry; one that is there already, whole or not, is replaced; a file is not.

    What the install left in its checkout is put into the task's `checkout` where nothing is.
    """
    for path in (target, checkout):  # a link may lead from the one name to the other
        if (why := refuse_path(str(path))) is not None:
            raise EnvironmentProblem(f"no environment can be made for {path}: {why}")
    if target.is_file() and not target.is_symlink():  # beside a worktree that was moved
        raise EnvironmentProblem(f"{target} is a file, where its environment has its place: move it away")
    remove_entry(target)
    moves = {f"{manifest.made_at}/{ENV}": str(target), f"{manifest.made_at}/{CHECKOUT}": str(checkout)}
    _run(*_COPY, "--", ENV, str(target), cwd=entry)
    for name in manifest.texts:
        if name.startswith(f"{ENV}/"):
            _rewrite(target / name[len(ENV) + 1 :], moves)
    for name in iterate_names(entry / LEFT):
        _put_left(entry / LEFT / name, checkout / name, moves, is_text=f"{LEFT}/{name}" in manifest.texts)


def _put_left(source: Path, target: Path, moves: Mapping[str, str], *, is_text: bool) -> None:
    """Put what the install left in the checkout there; nothing goes over what is there, nor through a link."""
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
        if is_text:
            _rewrite(beside, moves)
        os.rename(beside, target)


def _rewrite(place: Path, moves: Mapping[str, str]) -> None:
    """Put the new places for the old ones into a text.  What was compiled of it could look fresh, and goes."""
    mode, content = stat.S_IMODE(place.lstat().st_mode), place.read_bytes()
    place.unlink()  # it may be one that can only be read
    place.write_bytes(os.fsencode(_move(os.fsdecode(content), moves)))
    place.chmod(mode)
    for stale in place.parent.glob(f"__pycache__/{place.stem}.*.pyc") if place.suffix == ".py" else ():
        stale.unlink()


def _move(text: str, moves: Mapping[str, str]) -> str:
    for old, new in moves.items():
        text = text.replace(f"file://{quote(old)}", f"file://{quote(new)}").replace(old, new)
    return text

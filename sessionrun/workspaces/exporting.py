"""Runs the program inside of a view that prints its commits (`walls.export`), and checks what it prints.

The walls around it hold nothing but the view.  The task may have made anything of that, so nothing that is printed
is believed before it is checked; what it names is checked by `bringing_out`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.store import programs
from sessionrun.store.files import open_regular
from sessionrun.walls import export, inner
from sessionrun.walls.argv import EXPORT, TMP_FOLDER, VIEW_FOLDER, Walls, build_argv
from sessionrun.walls.clearing import clear_ways
from sessionrun.walls.programs import NOT_INSTALLED, find_bwrap, find_python, find_system_links, is_hidden
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.view import BroughtOut, list_alternates

_MAX_HEADER: Final = 1 << 16
_COMMIT: Final = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")


class CannotBringOut(SessionrunError):
    """The commits of a walled task cannot be taken out of its view; view and worktree stay as they are."""


@frozen
class Exported:
    """Where a view's HEAD is.

    Attributes:
        head: its commit; None: there is none.
        reference: the full name of the branch that it names; None: it names none.
        own: the commit of the task's own branch; None: that is gone.
        merge: the commits that are being merged into it.
        unmerged: whether the merge is unfinished.
        staged: files that the index has beside HEAD.
        left: in one line what does not come out.
    """

    head: str | None
    reference: str | None
    own: str | None
    merge: tuple[str, ...]
    unmerged: bool
    staged: tuple[str, ...]
    left: str

    @property
    def state(self) -> BroughtOut:
        """What of it is outside, too, once it is brought out."""
        reference = None if self.reference is None else _as_text(self.reference)
        staged = tuple(map(_as_text, self.staged))
        return BroughtOut(self.head, reference, self.own, self.merge, self.unmerged, staged)


def _as_text(name: str) -> str:
    """A name as JSON can have it; git's may be of any bytes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def export_view(
    git: Git, walls: Path, common_dir: Path, branch: str, known: Sequence[str], pack: Path, *, limit_s: float
) -> Exported:
    """Run the program inside; what it prints comes into a file, and the pack in that into the repository."""
    assert git.git_dir is not None
    argv = (
        *_enclose(walls, common_dir),
        find_python()[0],
        "-I",
        "-S",
        EXPORT,
        str(common_dir),
        branch,
        known[0],
        *known,
    )
    environ = {
        "PATH": os.environ.get("PATH") or os.defpath,
        "HOME": "/",
        "GIT_DIR": str(git.git_dir),
        "LC_ALL": "C",
    }
    environ |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    fd = open_regular(pack, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    with open(pack, "w+b", opener=lambda path, flags: fd) as stream:
        header = _run(argv, environ, stream, limit_s)
        found = _read_header(header)
        if os.fstat(fd).st_size > len(header):
            os.lseek(fd, len(header), os.SEEK_SET)
            git("index-pack", "--stdin", "--strict", stdin=fd, stdout=subprocess.DEVNULL)
    return found


def _enclose(walls: Path, common_dir: Path) -> tuple[str, ...]:
    """Walls with nothing in them but the view: no network, no worktree, no home directory."""
    bwrap = find_bwrap()
    if bwrap is None:
        raise CannotBringOut(NOT_INSTALLED)
    python, folders = find_python()
    shown = (*folders, *(path for path in list_alternates(common_dir) if os.path.isdir(path)))
    settings = str(common_dir / "config")
    built = Walls(
        bwrap=bwrap,
        policy="strict",
        as_root=os.geteuid() == 0,
        home=os.path.expanduser("~"),
        python=python,
        inner=inner.__file__,
        tmp=str(walls / TMP_FOLDER),
        network=False,
        common_dir=str(common_dir),
        view=str(walls / VIEW_FOLDER),
        system_links=find_system_links(),
        shown=tuple(path for path in shown if is_hidden(path, "strict")),
        ro_binds=(
            (export.__file__, EXPORT),
            *(((settings, export.SETTINGS),) if os.path.isfile(settings) else ()),
        ),
    )
    clear_ways(built)
    return build_argv(built, "/", dies_with_us=True)


def _run(argv: Sequence[str], environ: Mapping[str, str], stream: IO[bytes], limit_s: float) -> bytes:
    """Run the program; what it prints goes to the file, and the first line of that is returned.

    What the task made the program print to standard error may have no end, so that goes to a file, too.
    """
    with tempfile.TemporaryFile(dir=os.path.dirname(stream.name)) as errors:
        try:
            done = programs.run(
                argv, environ=environ, limit_s=limit_s, stdout=stream.fileno(), stderr=errors.fileno()
            )
        except subprocess.TimeoutExpired:
            raise CannotBringOut(f"its commits are not out after {limit_s:g} s") from None
        stream.seek(0)
        header = stream.readline(_MAX_HEADER + 1)
        if len(header) > _MAX_HEADER:
            raise CannotBringOut(f"what its view prints of its commits is more than {_MAX_HEADER >> 10} KiB")
        if done.returncode or not header.endswith(b"\n"):
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - _MAX_HEADER))
            messages = errors.read().decode("utf-8", "replace").strip().splitlines()
            why = messages[-1] if messages else f"exit code {done.returncode}"
            raise CannotBringOut(f"its commits cannot be read: {why}")
    return header


def _read_header(content: bytes) -> Exported:
    """Check what the program printed.

    Raises:
        CannotBringOut: it is not what `walls.export` prints.
    """
    try:
        found = json.loads(content)
        merge, reference = found["merge"], found["reference"]
        own, head = found["own"], found["head"]
        commits = [*(commit for commit in (own, head) if commit is not None), *merge]
        if not all(isinstance(commit, str) and _COMMIT.fullmatch(commit) for commit in commits):
            raise ValueError
        if not (reference is None or isinstance(reference, str)):
            raise ValueError
        staged = found["staged"]
        if not (isinstance(staged, list) and all(isinstance(name, str) and _is_inside(name) for name in staged)):
            raise ValueError
        unmerged, left = bool(found["unmerged"]), _word_left(found)
        return Exported(head, reference, own, tuple(merge)[:32], unmerged, tuple(staged), left)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CannotBringOut("what its view prints of its commits cannot be used") from None


def _is_inside(name: str) -> bool:
    """Whether a name is one of a file in the worktree, and none of git's."""
    parts = name.split("/")
    return all(part not in ("", ".", "..") and part.lower() != ".git" for part in parts) and "\0" not in name


def _word_left(found: Mapping[str, Any]) -> str:
    parts = []
    if isinstance(found["stashes"], int) and found["stashes"] > 0:
        parts.append(f"{found['stashes']} stashes" if found["stashes"] > 1 else "a stash")
    for word, plural, names in (("branch", "branches", found["branches"]), ("tag", "tags", found["tags"])):
        texts = [_word_name(name, "refs/heads/" if word == "branch" else "refs/tags/") for name in names]
        if texts:
            parts.append(f"{word if len(texts) == 1 else plural} {', '.join(texts[:5])}")
    if found["many"] is True:
        parts.append("which of its new files git ignores, for there are too many")
    return f"stayed inside of its walls: {'; '.join(parts)}" if parts else ""


def _word_name(name: object, prefix: str) -> str:
    """A name of a ref for people, on one line."""
    text = str(name).removeprefix(prefix)[:100]
    return "".join(sign if sign.isprintable() else "?" for sign in text)

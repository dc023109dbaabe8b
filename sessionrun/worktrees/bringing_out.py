"""How the commits of a walled task come out of its view (see `view`).

What reads the worktree outside of the walls first brings out the commits, by one `git fetch`.  Its other end is a
program inside (`walls.upload`), in walls that hold nothing but the view.  The task may have made anything of that,
so all that comes is checked in a quarantine: a repository of ours which borrows the objects of the task's.  Git
checks each object, and that all are there.  Then the pack is moved in, and the task's own branch, HEAD and index
of its worktree, are moved to where they are inside.  No git of ours ever reads a view from outside.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.git.clone import list_alternates, make_repository
from sessionrun.git.git import MARKER, Git
from sessionrun.git.large_files import take_large_files
from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import Place
from sessionrun.store import programs
from sessionrun.store.files import read_regular, replace_file
from sessionrun.store.jobfiles import load_record_if_any, load_usable
from sessionrun.store.processes import JOB_MARKER
from sessionrun.store.trees import remove_tree
from sessionrun.walls import upload
from sessionrun.walls.argv import OURS, TMP_FOLDER, UPLOAD, VIEW_FOLDER, build_argv, clear_ways
from sessionrun.walls.programs import make_walls
from sessionrun.worktrees.registration import find_lost_admins, load_owner, trash_path
from sessionrun.worktrees.request import WorkspaceRequest
from sessionrun.worktrees.view import BROUGHT, BroughtOut, note_brought

QUARANTINE: Final = "sessionrun-in-"
"""In the administrative directory of a worktree: how the name of a quarantine begins."""

UNMERGED: Final = ".sessionrun-unmerged"
_MOVED: Final = "{} was moved from outside while the task ran"
_PASSED: Final = ("PATH", "LC_ALL", MARKER, JOB_MARKER)
"""What the program inside has of our variables, beside git's: others may hold keys."""

LEFT: Final = upload.LEFT.encode()
_MAX_OUTPUT: Final = 1 << 16
_MAX_LINE: Final = 1000

_SETTINGS: Final = (
    ("core.bare", "true"),
    ("core.alternateRefsCommand", "true"),
    ("fetch.fsckObjects", "true"),
    ("fetch.unpackLimit", "1"),
)
"""Of a quarantine: each object is checked, and all stay in their pack.  Git does not list the refs of the
repository from which it borrows: it would read the settings of that, which any task without walls can write."""


class CannotBringOut(SessionrunError):
    """The commits of a walled task cannot be taken out of its view; view and worktree stay as they are."""


def bring_out_of(request: WorkspaceRequest, git: Git) -> None:
    """Bring out the commits of the task of a request: branch and HEAD are then where the task left them.

    What is outside only moves if the task has moved it inside since the view was made or was brought out last.  So
    commits of ours that lie above the task's stay where they are, and those of a user who goes on in a worktree
    that was kept.  A second call changes nothing.  `git` is in the task's worktree.

    Raises:
        CannotBringOut: they cannot be read inside, take too long, or are not whole.
        SessionrunError, OSError: they cannot be stored.
    """
    place, walls, common_dir = request.place, Path(request.walls or ""), Path(request.repository.common_dir)
    if request.walls is None or place is None or place.branch is None or not (walls / VIEW_FOLDER).is_dir():
        return
    name = f"refs/heads/{place.branch}"
    tip = git.commit_of(name)
    known = [commit for commit in (place.base_commit, place.setup_commit, place.taken_up, tip) if commit]
    with _open_quarantine(git, common_dir, known) as quarantine:
        words = (place.branch, known[0], str(git.git_dir))
        found = _fetch(quarantine, (*_enclose(walls, common_dir), *words), common_dir, request.export_limit_s)
        before = load_record_if_any(walls / BROUGHT, BroughtOut)
        moves = before is None or before.refs != found.refs
        if moves:
            _check_unmoved(git, name, tip, before, found)
        _move_in(quarantine.directory, common_dir / "objects")
    take_large_files(walls / VIEW_FOLDER, common_dir)
    if moves:
        _move(git, name, tip, found.refs)
    note_brought(walls, found)


def bring_out_of_gone(request: WorkspaceRequest, main: Git, path: Path, folder: Path) -> None:
    """The same for a worktree that is gone from `path`, by its books, if the repository still has them.

    Args:
        folder: a directory of ours that stands for it.

    Raises:
        SessionrunError, OSError: as `bring_out_of`.
    """
    # An earlier start renames the worktree once all has come out; a kill may have left a part of the books.
    is_removed = trash_path(path, request.owner).exists()
    for admin in find_lost_admins(request.repository, path):
        if load_owner(admin) == request.owner and not (is_removed and not (admin / "HEAD").exists()):
            bring_out_of(request, replace(main, directory=folder, git_dir=admin))


def read_left(walls: Path) -> str:
    """In one line what a task has in its view that did not come out; '' for nothing."""
    before = load_usable(walls / BROUGHT, BroughtOut)
    return before.left if before is not None else ""


def leave_walls(request: WorkspaceRequest, released: Place) -> Place:
    """View and /tmp of a walled task go with its worktree; a remark names what did not come out.

    What cannot be deleted stays, and goes with the session.
    """
    walls = Path(request.walls or "")
    left = read_left(walls)
    for path in (walls / VIEW_FOLDER, *walls.glob(f"{TMP_FOLDER}*")) if released.worktree is None else ():
        with suppress(OSError):
            remove_tree(path)
    return replace(released, remark="; ".join(part for part in (released.remark, left) if part) or None)


@contextmanager
def _open_quarantine(git: Git, common_dir: Path, known: Sequence[str]) -> Iterator[Git]:
    """Git in a repository that borrows all objects, knows these commits, and has nothing else of the task's."""
    assert git.git_dir is not None
    for left in git.git_dir.glob(f"{QUARANTINE}*"):  # of an earlier start that was killed
        remove_tree(left)
    words = ("config", "--get-regexp", r"^(core\.sharedrepository|extensions\.objectformat)$")
    pairs = [line.partition(" ")[::2] for line in git.attempt(*words).stdout.decode().splitlines()]
    shallow = common_dir / "shallow"
    with tempfile.TemporaryDirectory(prefix=QUARANTINE, dir=git.git_dir, ignore_cleanup_errors=True) as made:
        top = Path(made)
        make_repository(
            top,
            "ref: refs/heads/none",
            (*_SETTINGS, *pairs),
            borrow=[common_dir / "objects"],
            # else all of the history would come, with faults that it may have
            refs="".join(f"{commit} refs/known/{number}\n" for number, commit in enumerate(known)).encode(),
            shallow=read_regular(shallow, 1 << 30) if shallow.exists() else b"",
        )
        yield Git(top, common=top, git_dir=top, limit_s=git.limit_s)


def _enclose(walls: Path, common_dir: Path) -> tuple[str, ...]:
    """The words of the program inside; its walls hold the view: no network, no worktree, no home directory."""
    settings, stores = common_dir / "config", filter(os.path.isdir, list_alternates(common_dir))
    built = replace(
        make_walls("strict", str(walls / TMP_FOLDER), network=False, shown=stores),
        common_dir=str(common_dir),
        view=str(walls / VIEW_FOLDER),
        ro_binds=((upload.__file__, UPLOAD), *(((str(settings), upload.SETTINGS),) if settings.is_file() else ())),
    )
    clear_ways(built)
    return (*build_argv(built, "/", stdin=OURS, dies_with_us=True), built.python, "-I", "-S", UPLOAD)


def _fetch(quarantine: Git, inside: Sequence[str], common_dir: Path, limit_s: float) -> BroughtOut:
    """Fetch what the program inside serves, whole and checked, into the quarantine.

    What is printed goes to a file: the task may have made it without end.
    """
    words = ("-q", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance")
    # git adds the address as the last word: the place of the view
    served = (f"--upload-pack=exec {shlex.join(inside)}", str(common_dir), "+refs/out/*:refs/in/*")
    ours = quarantine.environ()
    environ = {name: ours[name] for name in ours if name in _PASSED or name.startswith("GIT_")}
    environ |= {"HOME": "/", "GIT_ALLOW_PROTOCOL": "file"}
    with open(quarantine.directory / "output", "w+b") as output:
        try:
            done = programs.run(
                ("git", "-c", "core.hooksPath=/dev/null", "fetch", *words, *served),
                cwd=quarantine.directory,
                environ=environ,
                limit_s=limit_s,
                stdout=output,
                stderr=output,
            )
        except subprocess.TimeoutExpired:
            raise CannotBringOut(f"its commits are not out after {limit_s:g} s") from None
        output.seek(0)
        first, _, rest = output.read(_MAX_OUTPUT).partition(b"\n")
    if done.returncode != 0 or not first.startswith(LEFT):
        text = _shorten(rest if first.startswith(LEFT) else first)
        raise CannotBringOut(f"its commits cannot be read: {text or f'exit code {done.returncode}'}")
    form = "--format=%(refname:lstrip=2) %(objectname) %(objecttype)"
    rows = [line.split(" ") for line in quarantine.line("for-each-ref", form, "refs/in").splitlines()]
    for name, _, kind in rows:
        if kind != ("tree" if name == "index" else "commit"):
            raise CannotBringOut(f"its commits cannot be read: {name} is a {kind}")
    return BroughtOut({name: found for name, found, _ in rows}, _shorten(first.removeprefix(LEFT)))


def _shorten(content: bytes) -> str:
    """The first line of a text for people."""
    line = content.strip().partition(b"\n")[0].rstrip()[:_MAX_LINE].decode("utf-8", "replace")
    return "".join(sign if sign.isprintable() else "?" for sign in line)


def _move_in(quarantine: Path, objects: Path) -> None:
    """Move what came to the other objects.

    A pack without its index, which comes last, is nothing to git: a kill leaves what `git gc` removes.
    """
    packs = sorted((quarantine / "objects" / "pack").glob("pack-*"), key=lambda path: path.suffix == ".idx")
    for path in packs:
        (objects / "pack").mkdir(exist_ok=True)
        os.rename(path, objects / "pack" / path.name)


def _check_unmoved(git: Git, name: str, tip: str | None, before: BroughtOut | None, found: BroughtOut) -> None:
    """Check that what moves outside is where the task's view had it from.

    Raises:
        CannotBringOut: somebody outside has moved it.
    """
    if before is None:
        return
    moved = name if tip not in (before.refs.get("own"), found.refs.get("own")) else None
    if moved is None and git.commit_of("HEAD") not in (before.refs.get("head"), found.refs.get("head")):
        moved = "HEAD"
    if moved is not None:
        raise CannotBringOut(_MOVED.format(moved))


def _move(git: Git, name: str, tip: str | None, found: Mapping[str, str]) -> None:
    """Move the branch, HEAD and index; if HEAD is on another branch inside, it names none outside.

    The index inside is not believed: what comes of it is a tree, without flags and times by which a change could
    be hidden, and one entry that stands for all conflicts.
    """
    assert git.git_dir is not None
    own, head = found.get("own"), found.get("head")
    if own is not None and own != tip and not git.set_ref(name, own, tip):
        raise CannotBringOut(_MOVED.format(name))
    if head is None:
        return
    if "attached" in found:
        git("symbolic-ref", "HEAD", name)
    else:
        git("update-ref", "--no-deref", "HEAD", head)
    git.settle_index(found.get("index", head))
    if "unmerged" in found:
        blob = git.line("hash-object", "-w", "--stdin")
        git("update-index", "--index-info", stdin=f"100644 {blob} 2\t{UNMERGED}\n".encode())
    merging = git.git_dir / "MERGE_HEAD"
    merged = [commit for name, commit in found.items() if name.startswith("merge")]
    if merged:
        replace_file(merging, "".join(f"{commit}\n" for commit in merged).encode(), durable=False)
    else:
        merging.unlink(missing_ok=True)

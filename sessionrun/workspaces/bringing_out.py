"""How the commits of a walled task come out of its view (see `view`).

What reads the worktree outside of the walls first brings out the commits.  A program inside (`walls.export`)
prints where HEAD is, and a pack; both are checked here, and then the task's own branch, and HEAD of its worktree,
are moved to where they are inside.  No git of ours ever reads a view from outside.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.store.files import open_regular, read_regular, replace_file
from sessionrun.walls import export, inner
from sessionrun.walls.argv import EXPORT, TMP_FOLDER, VIEW_FOLDER, Walls, build_argv
from sessionrun.walls.programs import NOT_INSTALLED, find_bwrap, find_python, find_system_links, is_hidden
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.registration import remove_tree
from sessionrun.workspaces.request import WorkspaceRequest
from sessionrun.workspaces.view import list_alternates

LEFT: Final = "left-inside"
"""In a task's folder of walls: in one line what the task has in its view that does not come out."""

PACK: Final = "export.pack"
UNMERGED: Final = ".sessionrun-unmerged"
MAX_PACK: Final = 4 << 30
"""The most that the new commits of a task may come to (bytes)."""

EXPORT_LIMIT_S: Final = 600.0
"""How long the program inside may take (seconds), where a session sets no limit."""

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
        left: in one line what does not come out.
    """

    head: str | None
    reference: str | None
    own: str | None
    merge: tuple[str, ...]
    unmerged: bool
    left: str


def bring_out_of(request: WorkspaceRequest, git: Git) -> None:
    """Bring out the commits of the task of a request; `git` is in its worktree.

    Raises:
        SessionrunError, OSError: they cannot be brought out.
    """
    place, walls = request.place, Path(request.walls or "")
    if request.walls is None or place is None or place.branch is None or not (walls / VIEW_FOLDER).is_dir():
        return
    known = [commit for commit in (place.base_commit, place.setup_commit, place.taken_up) if commit]
    bring_out(git, walls, Path(request.repository.common_dir), place.branch, known)


def bring_out(git: Git, walls: Path, common_dir: Path, branch: str, known: Sequence[str]) -> None:
    """Bring the commits of a walled task into its repository; branch and HEAD are then where the task left them.

    A second call does the same again and changes nothing.

    Args:
        git: in the task's worktree.
        walls: the task's folder of walls.
        common_dir: the common directory of the repository.
        branch: the task's own.
        known: commits that the view has had since it was made; the first one is where the task began.

    Raises:
        CannotBringOut: the program inside fails, takes too long, or prints what cannot be used.
        GitError, OSError: it cannot be stored.
    """
    assert git.git_dir is not None
    name = f"refs/heads/{branch}"
    tip = git.commit_of(name)
    known = tuple(dict.fromkeys([*known, *([tip] if tip else [])]))
    pack = walls / PACK
    try:
        found = _export(git, walls, common_dir, branch, known, pack)
        if pack.stat().st_size:
            with open(open_regular(pack), "rb") as stream:
                git.from_file(stream.fileno(), "index-pack", "--stdin", "--strict")
        _check_there(git, found)
    finally:
        pack.unlink(missing_ok=True)
    _move(git, name, tip, found)
    replace_file(walls / LEFT, found.left.encode("utf-8", "replace"), durable=False)


def read_left(walls: Path) -> str:
    """In one line what a task has in its view that did not come out; '' for nothing."""
    try:
        return read_regular(walls / LEFT, _MAX_HEADER).decode("utf-8", "replace")
    except OSError:
        return ""


def drop_view(walls: Path) -> None:
    """Delete a view and what is /tmp inside; what cannot be deleted stays, and goes with the session."""
    for name in (VIEW_FOLDER, TMP_FOLDER):
        with suppress(OSError):
            remove_tree(walls / name)


def _move(git: Git, name: str, tip: str | None, found: Exported) -> None:
    """Move the branch and HEAD; if HEAD is on another branch inside, it names none outside."""
    assert git.git_dir is not None
    if found.own is not None and found.own != tip and not git.set_ref(name, found.own, tip):
        raise CannotBringOut(f"{name} was moved from outside while the task ran; its commits stay in its view")
    if found.head is None:
        return
    if found.reference == name:
        git("symbolic-ref", "HEAD", name)
    else:
        git("update-ref", "--no-deref", "HEAD", found.head)
    merging = git.git_dir / "MERGE_HEAD"
    if found.merge:
        replace_file(merging, "".join(f"{commit}\n" for commit in found.merge).encode(), durable=False)
    else:
        merging.unlink(missing_ok=True)
    _mark_unmerged(git, unmerged=found.unmerged)


def _mark_unmerged(git: Git, *, unmerged: bool) -> None:
    """Say in the worktree's own index whether a merge is unfinished inside: one entry stands for all.

    The index inside is not believed, so nothing else of it comes out.
    """
    marked = bool(git("ls-files", "--unmerged", "--", UNMERGED))
    if unmerged and not marked:
        blob = git.line("hash-object", "-w", "--stdin")
        git("update-index", "--index-info", stdin=f"100644 {blob} 2\t{UNMERGED}\n".encode())
    elif marked and not unmerged:
        git("update-index", "--force-remove", "--", UNMERGED)


def _check_there(git: Git, found: Exported) -> None:
    """Check that all that was named came whole.

    Raises:
        CannotBringOut: something is missing.
    """
    for commit in dict.fromkeys((found.head, found.own, *found.merge)):
        if commit is None:
            continue
        if git.commit_of(commit) != commit:
            raise CannotBringOut(f"the task names commit {commit}, and did not send it")
        done = git.attempt("rev-list", "--objects", "--quiet", commit, "--not", "--all")
        if done.returncode != 0:
            raise CannotBringOut(f"the task sent commit {commit} without all of its files")


def _export(git: Git, walls: Path, common_dir: Path, branch: str, known: Sequence[str], pack: Path) -> Exported:
    """Run the program inside; its pack comes into a file."""
    assert git.git_dir is not None
    argv = (*_enclose(walls, common_dir), find_python()[0], "-I", "-S", EXPORT, branch, known[0], *known)
    limit_s = git.limit_s or EXPORT_LIMIT_S
    environ = {
        "PATH": os.environ.get("PATH") or os.defpath,
        "HOME": "/",
        "GIT_DIR": str(git.git_dir),
        "LC_ALL": "C",
    }
    environ |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    with open(open_regular(pack, os.O_RDWR | os.O_CREAT | os.O_TRUNC), "w+b") as stream:
        header = _run(argv, environ, stream.fileno(), limit_s)
    return _read_header(header)


def _enclose(walls: Path, common_dir: Path) -> tuple[str, ...]:
    """Walls with nothing in them but the view: no network, no worktree, no home directory."""
    bwrap = find_bwrap()
    if bwrap is None:
        raise CannotBringOut(NOT_INSTALLED)
    python, folders = find_python()
    shown = (*folders, *(path for path in list_alternates(common_dir) if os.path.isdir(path)))
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
        ro_binds=((export.__file__, EXPORT),),
    )
    return build_argv(built, "/", dies_with_us=True)


def _run(argv: Sequence[str], environ: Mapping[str, str], fd: int, limit_s: float) -> bytes:
    """Run the program: its first line is returned, the rest goes to `fd`, as far as it is not too much."""
    process = subprocess.Popen(
        argv, env=dict(environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    deadline = time.monotonic() + limit_s
    header, errors, size, whole = b"", b"", 0, False
    try:
        with selectors.DefaultSelector() as selector:
            for stream in (process.stdout, process.stderr):
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready and time.monotonic() >= deadline:
                    raise CannotBringOut(f"its commits are not out after {limit_s:g} s")
                for key, _ in ready:
                    chunk = os.read(key.fd, 1 << 16)
                    if not chunk:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is process.stderr:
                        errors = (errors + chunk)[-_MAX_HEADER:]
                    elif not whole:
                        header, newline, chunk = (header + chunk).partition(b"\n")
                        whole = bool(newline)
                        size += _write(fd, chunk)
                    else:
                        size += _write(fd, chunk)
                if size > MAX_PACK or len(header) > _MAX_HEADER:
                    raise CannotBringOut(f"its commits are more than {MAX_PACK >> 20} MiB")
        code = process.wait()
    finally:
        _end(process)
    if code or not whole:
        said = errors.decode("utf-8", "replace").strip().splitlines()
        raise CannotBringOut(f"its commits cannot be read: {said[-1] if said else f'exit code {code}'}")
    return header


def _write(fd: int, chunk: bytes) -> int:
    view = memoryview(chunk)
    while view:
        view = view[os.write(fd, view) :]
    return len(chunk)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what still runs: with bubblewrap all that is inside."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        pass
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    process.wait()


def _read_header(content: bytes) -> Exported:
    """Check what the program printed.

    Raises:
        CannotBringOut: it is not what `walls.export` prints.
    """
    try:
        found = json.loads(content)
        merge, reference = found["merge"], found["reference"]
        own, head = found["own"], found["head"]
        commits = [commit for commit in (own, head, *merge) if commit is not None]
        if not all(isinstance(commit, str) and _COMMIT.fullmatch(commit) for commit in commits):
            raise ValueError
        if not (reference is None or isinstance(reference, str)):
            raise ValueError
        return Exported(head, reference, own, tuple(merge)[:32], bool(found["unmerged"]), _word_left(found))
    except (ValueError, KeyError, TypeError):
        raise CannotBringOut("what its view prints of its commits cannot be used") from None


def _word_left(found: Mapping[str, Any]) -> str:
    parts = []
    if isinstance(found["stashes"], int) and found["stashes"] > 0:
        parts.append(f"{found['stashes']} stashes" if found["stashes"] > 1 else "a stash")
    for word, plural, names in (("branch", "branches", found["branches"]), ("tag", "tags", found["tags"])):
        texts = [str(name).rpartition("refs/heads/" if word == "branch" else "refs/tags/")[2] for name in names]
        if texts:
            parts.append(f"{word if len(texts) == 1 else plural} {', '.join(texts[:5])}")
    return f"stayed inside of its walls: {'; '.join(parts)}" if parts else ""

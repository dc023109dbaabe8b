"""Lands in a work tree in which the target is checked out: the files first, then the ref, then the index.

All this time git's own lock of the index keeps the user's commands out.  The lock bears our mark from its first
moment, so that after a crash it is known whose it is, and how far we came.  If the ref were moved first, a crash
would show the landing as staged changes that take it back, and a ``git commit -a`` would do so.

    <admin>/index.lock          "sessionrun landing OLD NEW", and a line "writing" before the first file changes
    <admin>/sessionrun-lock     the same file by another name: it still tells how far we came when a person has
                                removed git's lock, as git advises
    <admin>/sessionrun-index    the index as it is to be
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.landing.records import Checkout, Hold
from sessionrun.landing.slot import Slot
from sessionrun.landing.target import Moved, is_main, show_head, update_ref
from sessionrun.landing.writing import put_back
from sessionrun.model.frozen import frozen
from sessionrun.model.phrases import name_some
from sessionrun.store import crashpoint
from sessionrun.store.files import open_regular
from sessionrun.workspaces.fence import Fence
from sessionrun.workspaces.git import Git

LOCK: Final = "index.lock"
BESIDE: Final = "sessionrun-lock"
INDEX: Final = "sessionrun-index"
MARK: Final = "sessionrun landing "
WRITING: Final = "writing"

_BUSY: Final = {
    "MERGE_HEAD": ("a merge", "merge --continue"),
    "CHERRY_PICK_HEAD": ("a cherry-pick", "cherry-pick --continue"),
    "REVERT_HEAD": ("a revert", "revert --continue"),
}
_MAX_NAMED: Final = 5


@frozen
class Tree:
    """A work tree in which a landing from `old` to `new` is done."""

    slot: Slot
    fence: Fence
    checkout: Checkout
    old: str
    new: str

    @property
    def top(self) -> Path:
        """Its directory."""
        return Path(self.checkout.top)

    def path(self, name: str) -> Path:
        """A file of its administrative directory."""
        return Path(self.checkout.git_dir, name)

    def git(self) -> Git:
        """Git in it, with the settings of the launch and the user's own index."""
        if not is_main(self.slot.repository, self.checkout):
            return self.fence.inside(self.top, Path(self.checkout.git_dir))
        sparse, own = self.path("info/sparse-checkout"), self.fence.common / "info" / "sparse-checkout"
        own.unlink(missing_ok=True)
        if sparse.is_file():
            shutil.copyfile(sparse, own)
        return replace(self.fence.inside(self.top, self.fence.common), index=self.path("index"))

    def private(self) -> Git:
        """The same with the private index."""
        return replace(self.git(), index=self.path(INDEX))

    def hint(self, *words: str) -> str:
        """A command of git in it, for a person."""
        return shlex.join(["git", "-C", self.checkout.top, *words])


def land_checked_out(tree: Tree) -> Moved | Hold:
    """Land; if something is in the way, nothing has changed.

    Raises:
        GitError, OSError: git failed for another reason; what was begun is undone.
    """
    if not _take_lock(tree):
        return _explain_lock(tree)
    try:
        return _land_locked(tree)
    except BaseException:
        mend(tree, has_landed=tree.fence.main().commit_of(tree.slot.target) == tree.new)
        raise


def follow(tree: Tree) -> Hold | None:
    """Let files and index follow a target that was checked out in the very moment in which it moved.

    If they are not those of the old commit, the user's git came later, and has done so itself.

    Raises:
        GitError, OSError: git failed; the next landing mends it.
    """
    if not _take_lock(tree):
        return _explain_lock(tree)
    is_behind = _is_behind(tree)
    hold = _prepare_index(tree) if is_behind else None
    if is_behind and hold is None:
        _write_files(tree)
        mend(tree, has_landed=True)
    else:
        release(tree)
    return hold


def _is_behind(tree: Tree) -> bool:
    """Whether the index has the old commit's entry of each path that the landing changes."""
    changed = set(tree.git().names("diff-tree", "-r", "-z", "--no-renames", "--name-only", tree.old, tree.new))
    others = tree.git().names("diff-index", "--cached", "-z", "--no-renames", "--name-only", tree.old)
    return changed.isdisjoint(others)


def _explain_lock(tree: Tree) -> Hold:
    lock = tree.path(LOCK)
    reason = f"{lock} is there: another git is at work, or was killed"
    return Hold("index_locked", reason, f"rm {shlex.quote(str(lock))}")


def _land_locked(tree: Tree) -> Moved | Hold:
    hold = _find_unfinished(tree)
    if hold is not None:
        release(tree)
        return hold
    head = tree.path("HEAD").read_bytes()
    show_head(tree.fence, head)
    is_there = os.fsdecode(head).rstrip("\n") == f"ref: {tree.slot.target}"
    if not is_there or tree.fence.main().commit_of(tree.slot.target) != tree.old:
        release(tree)
        return "again"
    hold = _prepare_index(tree)
    if hold is not None:
        release(tree)
        return hold
    _write_files(tree)
    moved = update_ref(tree.slot, tree.git(), tree.new, tree.old)
    mend(tree, has_landed=moved == "moved")
    return moved


def _find_unfinished(tree: Tree) -> Hold | None:
    for name, (what, ending) in _BUSY.items():
        if os.path.lexists(tree.path(name)):
            return Hold("checkout_busy", f"{tree.top} is in {what}", tree.hint(*ending.split()))
    return None


def _take_lock(tree: Tree) -> bool:
    """Take git's lock of the index, so that it is never without our mark."""
    beside = tree.path(BESIDE)
    _write(beside, f"{MARK}{tree.old} {tree.new}\n", os.O_CREAT | os.O_TRUNC)
    crashpoint.step()
    try:
        os.link(beside, tree.path(LOCK))
    except FileExistsError:
        beside.unlink()
        return False
    crashpoint.step()
    return True


def _prepare_index(tree: Tree) -> Hold | None:
    """Make the index as it is to be, beside the user's; a hold if what lies in the work tree is in the way."""
    in_the_way = find_in_the_way(tree)
    if in_the_way:
        first = str(tree.top / in_the_way[0])
        reason = (
            f"{name_some(in_the_way, _MAX_NAMED)} in {tree.top} would be overwritten, and git does not track it"
        )
        return Hold("checkout_untracked", reason, shlex.join(["mv", first, f"{first}.mine"]))
    hidden = find_hidden(tree)
    if hidden:
        hints = [tree.hint("update-index", f"--no-{flag}", "--", *names) for flag, names in hidden.items()]
        named = name_some([name for names in hidden.values() for name in names], _MAX_NAMED)
        reason = f"{named} in {tree.top} has changes that git was told to hide"
        return Hold("checkout_hidden", reason, " && ".join(hints))
    try:
        shutil.copy2(tree.path("index"), tree.path(INDEX))
    except FileNotFoundError:
        return Hold("checkout_empty", f"{tree.top} has no index", tree.hint("reset", "--hard"))
    crashpoint.step()
    git = tree.private()
    git.attempt("update-index", "-q", "--refresh")
    tried = git.attempt("read-tree", "-m", "-u", "-n", tree.old, tree.new)
    if tried.returncode == 0:
        return None
    why = tried.stderr.decode("utf-8", "replace").strip().split("\n")[0].removeprefix("error: ")
    return Hold("checkout_dirty", f"{tree.top} has changes of its own: {why}", tree.hint("stash"))


def find_in_the_way(tree: Tree) -> list[str]:
    """What lies, untracked or ignored, where the landing adds files: git would overwrite what is ignored."""
    git = tree.git()
    words = ("diff-tree", "-r", "-z", "--no-renames", "--name-only", "--diff-filter=AT")
    added = git.names(*words, tree.old, tree.new)
    if not added:
        return []
    tracked = set(git.names("ls-files", "-z"))
    return list(dict.fromkeys(name for path in added for name in _iterate_untracked(tree.top, path, tracked)))


def _iterate_untracked(top: Path, path: str, tracked: set[str]) -> Iterator[str]:
    parts = path.split("/")
    for depth in range(1, len(parts)):
        parent = "/".join(parts[:depth])
        if parent not in tracked and (os.path.islink(top / parent) or (top / parent).is_file()):
            yield parent
            return
    if path in tracked or not os.path.lexists(top / path):
        return
    if not (top / path).is_dir() or os.path.islink(top / path):
        yield path
        return
    for root, folders, files in os.walk(top / path):
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]
        for name in (*files, *links):
            inside = os.path.relpath(os.path.join(root, name), top)
            if inside not in tracked:
                yield inside


def find_hidden(tree: Tree) -> dict[str, list[str]]:
    """Files that the landing changes and whose own changes git does not see, by the flag that tells it so."""
    git = tree.git()
    listed = [(line[0], line[2:]) for line in git.names("ls-files", "-v", "-z") if not line.startswith("H ")]
    flagged = {name: "skip-worktree" if tag in "Ss" else "assume-unchanged" for tag, name in listed}
    if not flagged:
        return {}
    names = git.names(
        "diff-tree", "-r", "-z", "--no-renames", "--name-only", "--diff-filter=a", tree.old, tree.new
    )
    hidden: dict[str, list[str]] = {}
    for name in names:
        if name in flagged and _has_changed(tree, git, name):
            hidden.setdefault(flagged[name], []).append(name)
    return hidden


def _has_changed(tree: Tree, git: Git, name: str) -> bool:
    path = tree.top / name
    if not os.path.lexists(path):
        return False
    was = git.attempt("rev-parse", "--verify", "--quiet", f"{tree.old}:{name}").stdout.strip()
    if path.is_symlink() or not path.is_file():
        return True
    return git("hash-object", f"--path={name}", "--", name).strip() != was


def _write_files(tree: Tree) -> None:
    _write(tree.path(LOCK), f"{WRITING}\n", os.O_APPEND)
    crashpoint.step()
    tree.private()("read-tree", "-m", "-u", tree.old, tree.new)
    crashpoint.step()


def _write(path: Path, text: str, flags: int) -> None:
    with os.fdopen(open_regular(path, os.O_WRONLY | flags, 0o644), "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def mend(tree: Tree, *, has_landed: bool) -> list[str]:
    """Bring a work tree that bears our mark to an end: to the new commit if that has landed, else back to the old.

    Returns the files that were to be put back, and hold something that is not ours.
    """
    is_locked = find_mark(tree.path(LOCK)) is not None
    mark = find_mark(tree.path(LOCK if is_locked else BESIDE))
    if mark is None or [*mark[:2]] != [tree.old, tree.new]:
        return []  # it came to its end
    foreign = []
    if has_landed and not is_locked:
        if _is_behind(tree):  # what the person has staged since stays
            tree.git()("read-tree", "-i", "-m", tree.old, tree.new)
    elif has_landed and tree.path(INDEX).exists():
        os.replace(tree.path(INDEX), tree.path("index"))
        crashpoint.step()
    elif not has_landed and WRITING in mark[2:]:
        foreign = put_back(tree.git(), tree.old, tree.new)
    release(tree)
    return foreign


def release(tree: Tree) -> None:
    """Give the index free; it is as it was."""
    names = (f"{INDEX}.lock", INDEX, *([LOCK] if find_mark(tree.path(LOCK)) is not None else []), BESIDE)
    for name in names:
        tree.path(name).unlink(missing_ok=True)
        crashpoint.step()


def find_mark(lock: Path) -> Sequence[str] | None:
    """The words of our mark in the lock of an index: old, new, perhaps `WRITING`; None: the lock is not ours."""
    try:
        text = lock.read_text(errors="replace")
    except OSError:
        return None
    return text.removeprefix(MARK).split() if text.startswith(MARK) else None

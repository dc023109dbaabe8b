"""Lands in a work tree in which the target is checked out: the files first, then the ref, then the index.

All this time git's own lock of the index keeps the user's commands out.  The lock is a link of the slot's record
from its first moment, so that after a crash it is known whose it is, and how far we came: the record says so
before the first file changes.  It is also there when a person has removed git's lock, as git advises.  If the
ref were moved first, a crash would show the landing as staged changes that take it back, and a ``git commit -a``
would do so.

    <admin>/sessionrun-index-H    the index as it is to be
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.git.git import Git
from sessionrun.git.private import Fence
from sessionrun.git.rooms import is_behind_link
from sessionrun.landing.places import LOCK, explain_lock, give_back, is_locked_by, take_lock
from sessionrun.landing.records import Checkout, Hold, digest_target, find_changed
from sessionrun.landing.target import Moved, Slot, show_head, update_ref
from sessionrun.model.errors import name_some, printable
from sessionrun.model.frozen import frozen
from sessionrun.store.files import NotRegular, is_folder, read_regular, remove_empty
from sessionrun.worktrees.registration import find_table, read_head

_BUSY: Final = {
    "MERGE_HEAD": ("a merge", "merge --continue"),
    "CHERRY_PICK_HEAD": ("a cherry-pick", "cherry-pick --continue"),
    "REVERT_HEAD": ("a revert", "revert --continue"),
}
_MAX_NAMED: Final = 5

_SPECIAL: Final = b"\0special"
_REPOSITORY: Final = b"\0repository"
"""What something holds that holds nothing of a file; no file of a landing begins so."""


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
        return Path(self.checkout.top)

    def path(self, name: str) -> Path:
        """A file of its administrative directory."""
        return Path(self.checkout.git_dir, name)

    @property
    def index(self) -> Path:
        """The private index: the index as it is to be."""
        return self.path(f"sessionrun-index-{digest_target(self.slot.target)}")

    @property
    def is_begun(self) -> bool:
        """Whether a landing of this slot has begun here, and not come to its end."""
        return self.index.exists() or is_locked_by(self.checkout, self.slot.record_path)

    def git(self) -> Git:
        """Git in it, with the settings of the launch and the user's own index."""
        if self.checkout.git_dir != self.slot.repository.common_dir:
            return self.fence.inside(self.top, Path(self.checkout.git_dir))
        sparse, own = self.path("info/sparse-checkout"), self.fence.common / "info" / "sparse-checkout"
        own.unlink(missing_ok=True)
        if sparse.is_file():
            shutil.copyfile(sparse, own)
        return replace(self.fence.inside(self.top, self.fence.common), index=self.path("index"))

    def private(self) -> Git:
        """The same with the private index."""
        return replace(self.git(), index=self.index)

    def hint(self, *words: str) -> str:
        """A command of git in it, for a person."""
        return shlex.join(["git", "-C", self.checkout.top, *words])


def land_checked_out(tree: Tree) -> Moved | Hold:
    """Land; if something is in the way, nothing has changed.

    Raises:
        GitError, OSError: git failed for another reason; what was begun is undone.
    """
    if not take_lock(tree.checkout, tree.slot.record_path):
        return "again"
    try:
        hold: Moved | Hold | None = _find_unfinished(tree)
        if hold is None:
            head = read_head(Path(tree.checkout.git_dir))
            show_head(tree.fence, head)
            is_there = head == f"ref: {tree.slot.target}"
            is_old = is_there and tree.fence.main().commit_of(tree.slot.target) == tree.old
            hold = _prepare_index(tree) if is_old else "again"
        if hold is not None:
            release(tree)
            return hold
        tree.slot.note_writing()
        tree.private()("read-tree", "-m", "-u", tree.old, tree.new)
        # While a branch is checked out here, git lets no switch to it begin elsewhere: no other lock is needed.
        moved = update_ref(tree.slot, tree.git(), tree.new, tree.old)
        if moved == "moved":
            os.replace(tree.index, tree.path("index"))
            release(tree)
        else:
            mend(tree, has_landed=False)
        return moved
    except BaseException:
        mend(tree, has_landed=tree.fence.main().commit_of(tree.slot.target) == tree.new)
        raise


def follow(tree: Tree) -> Hold | None:
    """Let files and index follow a target that was checked out in the very moment in which it moved.

    Raises:
        GitError, OSError: git failed; the next landing mends it.
    """
    if not take_lock(tree.checkout, tree.slot.record_path):
        return explain_lock(tree.path(LOCK))
    hold = (_find_unfinished(tree) or _prepare_index(tree)) if is_behind(tree, tree.git()) else None
    if hold is None and tree.index.exists():
        tree.slot.note_writing()
        tree.private()("read-tree", "-m", "-u", tree.old, tree.new)
        os.replace(tree.index, tree.path("index"))
    release(tree)
    return hold


def is_behind(tree: Tree, git: Git) -> bool:
    """Whether an index has the old commit's entry of each path that the landing changes."""
    changed = find_changed(git, tree.old, tree.new)
    others = git.names("diff-index", "--cached", "-z", "--no-renames", "--name-only", tree.old)
    return bool(changed) and changed.isdisjoint(others)


def is_taken_back(tree: Tree) -> bool:
    """Whether the target has nothing of the landing any more: then an index without it is a person's wish."""
    git = tree.fence.main()
    tip = git.commit_of(tree.slot.target)
    return tip is None or find_changed(git, tree.old, tree.new).isdisjoint(find_changed(git, tree.old, tip))


def _find_unfinished(tree: Tree) -> Hold | None:
    has_table = find_table(Path(tree.checkout.git_dir)) is not None
    for name, (what, ending) in _BUSY.items():
        if os.path.lexists(tree.path(name)) or (has_table and tree.git().commit_of(name)):
            return Hold("checkout_busy", f"{tree.top} is in {what}", tree.hint(*ending.split()))
    return None


def _prepare_index(tree: Tree) -> Hold | None:
    """Make the index as it is to be, beside the user's; a hold if what lies in the work tree is in the way."""
    in_the_way = find_in_the_way(tree)
    if in_the_way:
        first = printable(str(tree.top / in_the_way[0]))
        named = name_some(in_the_way, _MAX_NAMED)
        reason = f"{named} in {tree.top} would be overwritten, and git does not track it"
        return Hold("checkout_untracked", reason, shlex.join(["mv", first, f"{first}.mine"]))
    hidden = find_hidden(tree)
    if hidden:
        words = (("update-index", f"--no-{flag}", "--", *names) for flag, names in hidden.items())
        hints = [printable(tree.hint(*each)) for each in words]
        named = name_some([name for names in hidden.values() for name in names], _MAX_NAMED)
        reason = f"{named} in {tree.top} has changes that git was told to hide"
        return Hold("checkout_hidden", reason, " && ".join(hints))
    try:
        shutil.copy2(tree.path("index"), tree.index)
    except FileNotFoundError:
        return Hold("checkout_empty", f"{tree.top} has no index", tree.hint("reset", "--hard"))
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
    added = sorted(find_changed(git, tree.old, tree.new, "AT"))
    if not added:
        return []
    tracked = set(git.names("ls-files", "-z"))
    return list(dict.fromkeys(name for path in added for name in _iterate_untracked(tree.top, path, tracked)))


def _iterate_untracked(top: Path, path: str, tracked: set[str]) -> Iterator[str]:
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        at = "/".join(parts[:depth])
        if os.path.lexists(top / at) and not is_folder(top / at):
            if at not in tracked:
                yield at
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
    hidden: dict[str, list[str]] = {}
    for name in sorted(flagged.keys() & find_changed(git, tree.old, tree.new, "a")):
        held = _read(tree.top / name)
        if held is not None and held != _content(git, tree.old, name):
            hidden.setdefault(flagged[name], []).append(name)
    return hidden


def mend(tree: Tree, *, has_landed: bool) -> list[str]:
    """End what a landing began in a work tree: go on to the new commit if that has landed, else back to the old.

    Returns the files that were to be put back, and hold something that is not ours.
    """
    foreign = []
    is_made = tree.index.exists() and not is_behind(tree, tree.private())
    if has_landed and not is_locked_by(tree.checkout, tree.slot.record_path):
        # all files are written; what the person has staged since stays
        if is_made and is_behind(tree, tree.git()) and not is_taken_back(tree):
            tree.git()("read-tree", "-i", "-m", tree.old, tree.new)
    elif has_landed and is_made:
        os.replace(tree.index, tree.path("index"))
    elif (tree.index.exists() or not has_landed) and tree.slot.has_written():
        foreign = put_back(tree.git(), tree.old, tree.new)
    release(tree)
    return foreign


def release(tree: Tree) -> None:
    """Give the index free; it is as it was."""
    tree.index.with_name(f"{tree.index.name}.lock").unlink(missing_ok=True)
    tree.index.unlink(missing_ok=True)
    give_back(tree.checkout, tree.slot.record_path)


def put_back(git: Git, old: str, new: str) -> list[str]:
    """Make the files between two commits those of `old`; return the paths that hold something else than either.

    A file is put back only if we know that the landing wrote it: what it holds is what the new commit has there,
    or a beginning of that, or it is gone.  Anything else is the user's, and stays.  The index of
    `git` is that of `old`.
    """
    foreign, missing, repositories = [], [], set()
    tracked = set(git.names("ls-files", "-z"))
    for name in sorted(find_changed(git, old, new)):
        held, was, now = _read(git.directory / name), _content(git, old, name), _content(git, new, name)
        if was == _REPOSITORY:
            repositories.add(name)
        if was is None and (held is None or is_behind_link(git.directory, name)):
            continue  # it is gone, or the link that was to become a directory is still there
        if held not in (None, was) and (now is None or not now.startswith(held)):
            foreign.append(name)
        elif was is not None:
            missing.append(name)  # also if it holds that: it may have the other commit's mode
        elif name not in tracked:  # else a person removed our lock, and has committed or staged the file
            (git.directory / name).unlink()
            remove_empty((git.directory / name).parent, git.directory)
    stays = {name: _make_way(git.directory, name) for name in missing}
    foreign += dict.fromkeys(at for at in stays.values() if at and at not in foreign and at not in repositories)
    names = "".join(f"{name}\0" for name, at in stays.items() if at is None)
    git("checkout-index", "-f", "-z", "--stdin", stdin=os.fsencode(names))
    return foreign


def _make_way(top: Path, name: str) -> str | None:
    """Remove an empty directory where a file is to be; what else is there, or above, that git would remove."""
    for above in reversed(Path(name).parents):
        if os.path.lexists(top / above) and not is_folder(top / above):
            return str(above)
    if not is_folder(top / name):
        return None
    with suppress(OSError):
        (top / name).rmdir()
    return name if is_folder(top / name) else None


def _read(path: Path) -> bytes | None:
    """What a file or a link holds; None where there is nothing, or a directory."""
    if not os.path.lexists(path) or is_folder(path):
        return None
    try:
        return os.fsencode(os.readlink(path)) if path.is_symlink() else read_regular(path)
    except NotRegular:
        return _SPECIAL


def _content(git: Git, commit: str, name: str) -> bytes | None:
    """What a commit lets a file or a link hold; None where it has neither."""
    listed = git("--literal-pathspecs", "ls-tree", "-z", "--full-tree", commit, "--", name)
    kind = listed.split(b" ")[1:2]
    if kind == [b"blob"]:
        return git("cat-file", "--filters", f"{commit}:{name}")
    return _REPOSITORY if kind == [b"commit"] else None

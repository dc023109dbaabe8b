"""The commits of a mend: where it begins, what is refused of what it ends with, and the commit that lands.

A mend begins at a commit of ours with two parents, the target and the work; its files have marks of the
conflicts, as git leaves them.  So the index is clean, and an agent may commit as in any worktree.  What it ends
with becomes a commit with the same two parents: the marks are in no history, and the work stays an ancestor.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.model.errors import SessionrunError
from sessionrun.model.landings import DROPPED, KEPT, MendBase
from sessionrun.model.phrases import name_some
from sessionrun.model.places import Place
from sessionrun.workspaces.commits import commit_repeatably
from sessionrun.workspaces.fence import Fence
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.merging import open_merge_room
from sessionrun.workspaces.request import WorkspaceRequest

SUBJECT: Final = "Mend of "
_MARK: Final = re.compile(rb"^(?:<{7} |\|{7} |={7}$|>{7} )", re.MULTILINE)
_MOST_NAMED: Final = 5
_MOST: Final = 4 << 20
"""Bytes of a file that is looked at; bigger ones are hardly text."""


def find_mend_base(fence: Fence, request: WorkspaceRequest, base: MendBase, folder: Path) -> str:
    """The commit at which a mend begins; the same for the same target and work, so also after a crash.

    Raises:
        SessionrunError: the target or the work is gone, or git failed.
    """
    git = fence.main()
    target, tip = git.commit_of(base.target), git.commit_of(base.tip)
    if target is None or tip is None:
        lost = f"the branch {base.target.removeprefix('refs/heads/')}" if target is None else "the work"
        raise SessionrunError(f"{lost} that is to be mended is gone")
    with open_merge_room(fence, target, folder) as room:
        tree = room.mark(target, tip)
    return commit_repeatably(git, tree, (target, tip), f"{SUBJECT}{request.task}: both sides\n")


def finish_mend(git: Git, request: WorkspaceRequest, released: Place) -> Place:
    """What RELEASE found, with the commit that lands in the place of the work; or why it is refused.

    Raises:
        SessionrunError: git failed, or the branch has moved.
    """
    base, commit, mend = released.base_commit, released.commit, request.mend
    if mend is None or None in (base, commit, released.branch) or released.rescue is not None:
        return released
    assert base is not None and commit is not None
    target, tip = _parents(git, base)
    if _parents(git, commit) == [target, tip] and commit != base:
        return released  # an earlier start came so far
    commits = (base, commit, target, tip)
    why = _find_refusal(git, commits, insists=mend.insists)
    if why is None and not mend.insists:
        why = _find_untouched(git, commits, mend.files) or _find_undone(git, commits)
    if why is not None:
        return replace(released, refused=why)
    tree = git.line("rev-parse", f"{commit}^{{tree}}")
    made = commit_repeatably(git, tree, (target, tip), f"{SUBJECT}{request.task}\n\n{request.title}\n")
    git("update-ref", "-m", "mended", f"refs/heads/{released.branch}", made, commit)
    return replace(released, commit=made, remark=_name_others(git, (base, commit, target, tip)) or released.remark)


def _name_others(git: Git, commits: tuple[str, str, str, str]) -> str | None:
    """Which files a mend of a conflict has changed beside those in conflict; None: no others."""
    base, end, target, tip = commits
    merged = set(_list_merged(git, base, target, tip))
    marked = {name for name in merged if _count(_read(git, base, name))}
    others = sorted(set(git.names("diff-tree", "-r", "-z", "--no-renames", "--name-only", base, end)) - marked)
    if not marked or not others:
        return None
    return f"beside the conflict it changed {name_some(others, _MOST_NAMED)}"


def _find_refusal(git: Git, commits: tuple[str, str, str, str], *, insists: bool) -> str | None:
    """Why the end of a mend cannot land; None: it can.  `commits` are its base, its end, and the two sides."""
    base, end, target, tip = commits
    since = git.attempt("merge-base", target, tip).stdout.decode().strip()
    for name in _list_merged(git, base, target, tip):
        blobs = {side: _read(git, side, name) for side in (end, target, tip, since) if side}
        if _count(blobs[end]) > max(_count(blobs[target]), _count(blobs[tip])):
            return f"marks of the conflict are left in {name}"
        for side, whose in ((target, "the branch"), (tip, "the work")) if not insists else ():
            added = _lines(blobs[side]) - _lines(blobs.get(since))
            if blobs[end] is not None and added and not added & _lines(blobs[end]):
                return f"it {DROPPED} {whose} has added to {name}"
    return None


def _find_untouched(git: Git, commits: tuple[str, str, str, str], files: Sequence[str]) -> str | None:
    """Which file in conflict is still as git left it where no marks can be: as one side has it.  None: none is.

    So it is with a file that is no text, and with one that one side has changed and the other has deleted.
    """
    base, end, target, tip = commits
    since = git.attempt("merge-base", target, tip).stdout.decode().strip()
    for name in files:
        left, found = _find_entry(git, base, name), _find_entry(git, end, name)
        mine, theirs = _find_entry(git, target, name), _find_entry(git, tip, name)
        before = _find_entry(git, since, name) if since else ""
        if found == left and left in (mine, theirs) and len({mine, theirs, before}) == 3:
            whose = "the work" if left == mine else "the branch"
            return f"it leaves {name} {KEPT} {whose} has made of it"
    return None


def _find_undone(git: Git, commits: tuple[str, str, str, str]) -> str | None:
    """Whether nothing of the work is left, as if it had never been done."""
    _, end, target, _ = commits
    same = git.line("rev-parse", f"{end}^{{tree}}") == git.line("rev-parse", f"{target}^{{tree}}")
    return f"it {DROPPED} the work has added, and all else of it" if same else None


def _find_entry(git: Git, commit: str, name: str) -> str:
    """Mode and object of a path in a commit; empty: there is none."""
    found = git.names("--literal-pathspecs", "ls-tree", "-z", commit, "--", name)
    return found[0].partition("\t")[0] if found else ""


def _list_merged(git: Git, base: str, target: str, tip: str) -> list[str]:
    """The files of the base that are as in neither side."""
    words = ("diff-tree", "-r", "-z", "--no-renames", "--name-only")
    return sorted(set(git.names(*words, target, base)) & set(git.names(*words, tip, base)))


def _read(git: Git, commit: str, name: str) -> bytes | None:
    """The content of a file, if the commit has it and it is not too big."""
    for entry in git.names("--literal-pathspecs", "ls-tree", "-z", "-l", commit, "--", name):
        _, kind, blob, size = entry.partition("\t")[0].split()
        if kind == "blob" and int(size) <= _MOST:
            return git("cat-file", "blob", blob)
    return None


def _count(content: bytes | None) -> int:
    return len(_MARK.findall(content or b""))


def _lines(content: bytes | None) -> set[bytes]:
    return {line.strip() for line in (content or b"").split(b"\n") if line.strip()}


def _parents(git: Git, commit: str) -> list[str]:
    return git.line("rev-list", "--no-walk", "--parents", commit).split(" ")[1:]

"""Finds the commit at which a worktree begins: where a mirror's ref stands, its needs ended, or a mend begins.

Of a mend also: what is refused of what it ends with, and the commit that lands.  Of a mirror's task: how its
branches come home.  They are in the mirror.  If the repository is one on this disk, its user looks for them there:
they are fetched into it, too.  Neither side's settings are read for that, and none of its hooks run.

The ends of several needs are merged in the object database: no branch, index or file of the repository changes,
and a merge that is done again after a crash is the same commit (see `git.merging`).

A mend begins at a commit of ours with two parents, the target and the work; its files have marks of the
conflicts, as git leaves them.  So the index is clean, and an agent may commit as in any worktree.  What it ends
with becomes a commit with the same two parents: the marks are in no history, and the work stays an ancestor.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from sessionrun.git.clone import make_excerpt, open_room
from sessionrun.git.git import Git
from sessionrun.git.merging import commit_repeatably, open_merge_room
from sessionrun.git.mirrors import use_mirror
from sessionrun.git.private import Fence
from sessionrun.model.errors import InputError, SessionrunError, name_some
from sessionrun.model.landings import DROPPED, KEPT, MendBase
from sessionrun.model.places import Handed, Place, begin_at
from sessionrun.worktrees.registration import branch_stem, read_heads
from sessionrun.worktrees.request import NeedsConflict, WorkspaceRequest

if TYPE_CHECKING:
    from sessionrun.model.spec import TaskSpec

SUBJECT: Final = "Needs of task "
MAX_NAMED: Final = 5
"""How many files a message names at most."""


def find_base(fence: Fence, request: WorkspaceRequest, folder: Path) -> str:
    """The commit at which a worktree begins; `NeedsConflict` if the work of its needs cannot be merged."""
    git, base = fence.main(), request.repository.base_commit
    needs = [need for need in request.needs if need.commit != base]  # these have changed something
    ends: dict[str, Handed] = {}  # each commit with the first need that ended there
    if request.target is not None:
        name = request.target.removeprefix("refs/heads/")
        tip = git.commit_of(request.target)
        if tip is None:
            raise SessionrunError(f"the branch {name}, at which it begins, is gone")
        ends[tip] = Handed("", tip, name)
    for need, commit in zip(needs, find_tips(git, needs), strict=True):
        ends.setdefault(commit, need)
    if len(ends) > 1:
        words = git.line("merge-base", "--independent", *ends).split("\n")
        ends = {commit: end for commit, end in ends.items() if commit in words}
    return merge_ends(fence, request, ends, folder) if len(ends) > 1 else next(iter(ends), base)


def find_tips(git: Git, needs: Sequence[Handed]) -> list[str]:
    """Where each need ended: its commit or, if the branch is to be followed, the tip of its branch."""
    if not needs:
        return []
    asked = [name for need in needs for name in (need.commit or "no", f"refs/heads/{need.branch or need.commit}")]
    lines = "".join(f"{name}^{{commit}}\n" for name in asked).encode()
    answers = git("cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=lines).decode().splitlines()
    objects = [line.split(" ") for line in answers]
    tips = []
    for need, commit, tip in zip(needs, objects[::2], objects[1::2], strict=True):
        if need.commit is None or commit[-1] != "commit":
            branch = f"branch {need.branch}" if need.branch else "its branch"
            why = need.why if need.commit is None else f"{branch} and its commit {need.commit[:12]} are gone"
            raise SessionrunError(f"nothing holds the work of task {need.task!r}, which it needs: {why}")
        ahead = need.follow and tip[-1] == "commit" and tip != commit
        if ahead and git.attempt("merge-base", "--is-ancestor", need.commit, tip[0]).returncode == 0:
            tips.append(tip[0])
        else:
            tips.append(need.commit)
    return tips


def merge_ends(fence: Fence, request: WorkspaceRequest, ends: Mapping[str, Handed], folder: Path) -> str:
    """Merge commits in their order, each with the need that ended there; the commit that holds all of them.

    Raises:
        NeedsConflict: one of the commits cannot be merged with those before it.
    """
    git, commits = fence.main(), list(ends)
    head = commits[0]
    whose = "".join(f"{_name(end)} at {commit}\n" for commit, end in ends.items())
    message = f"{SUBJECT}{request.task}\n\n{whose}"
    with open_merge_room(fence, head, folder) as room:
        for number, commit in enumerate(commits[1:], 2):
            tree, files = room.merge(head, commit)
            if tree is None:
                against = commits[: number - 1]
                if len(against) > 1:  # it may conflict with none of them alone
                    against = [end for end in against if room.merge(end, commit).tree is None] or against
                raise NeedsConflict(_describe_conflict([ends[other] for other in against], ends[commit], files))
            parents = [head, commit] if number < len(commits) else commits
            head = commit_repeatably(git, tree, parents, message)
    return head


def _describe_conflict(against: Sequence[Handed], end: Handed, files: Sequence[str]) -> str:
    shown = [file if file.isprintable() else repr(file) for file in files]
    where = f" in {name_some(shown, MAX_NAMED)}" if shown else ""
    others = f"{', '.join(map(_name, against[:MAX_NAMED]))}{' ...' if len(against) > MAX_NAMED else ''}"
    mend = f"merge {against[0].branch} into {end.branch}" if len(against) == 1 else "merge one into the other"
    return f"{others} and {_name(end)} conflict{where}: {mend}, then retry"


def _name(end: Handed) -> str:
    return repr(end.task) if end.task else str(end.branch)


MEND_SUBJECT: Final = "Mend of "
_MARK: Final = re.compile(rb"^(?:<{7} |\|{7} |={7}$|>{7} )", re.MULTILINE)
_MOST: Final = 4 << 20
"""Bytes of a file that is looked at; bigger ones are hardly text."""


def find_mend_base(fence: Fence, request: WorkspaceRequest, base: MendBase, folder: Path) -> str:
    """The commit at which a mend begins; the same for the same target and work, so also after a crash."""
    git = fence.main()
    target, tip = git.commit_of(base.target), git.commit_of(base.tip)
    if target is None or tip is None:
        lost = f"the branch {base.target.removeprefix('refs/heads/')}" if target is None else "the work"
        raise SessionrunError(f"{lost} that is to be mended is gone")
    with open_merge_room(fence, target, folder) as room:
        tree = room.merge(target, tip, marks=True).tree
    return commit_repeatably(git, tree or "", (target, tip), f"{MEND_SUBJECT}{request.task}: both sides\n")


def finish_mend(git: Git, request: WorkspaceRequest, released: Place) -> Place:
    """What RELEASE found, with the commit that lands in the place of the work; or why it is refused."""
    base, commit, mend = released.base_commit, released.commit, request.mend
    if mend is None or None in (base, commit, released.branch) or released.rescue is not None:
        return released
    assert base is not None and commit is not None
    target, tip = _parents(git, base)
    if _parents(git, commit) == [target, tip] and commit != base:
        return released  # an earlier start came so far
    since = git.attempt("merge-base", target, tip).stdout.decode().strip()
    merged = sorted({*_list_changed(git, target, base)} & {*_list_changed(git, tip, base)})
    sides = _Sides(base, commit, target, tip, since, merged)
    if (why := _find_refusal(git, sides, mend)) is not None:
        return replace(released, refused=why)
    tree = git.line("rev-parse", f"{commit}^{{tree}}")
    made = commit_repeatably(git, tree, (target, tip), f"{MEND_SUBJECT}{request.task}\n\n{request.title}\n")
    git("update-ref", "-m", "mended", f"refs/heads/{released.branch}", made, commit)
    return replace(released, commit=made, remark=_name_others(git, sides) or released.remark)


class _Sides(NamedTuple):
    """The commits of a mend: where it began and ended, the two sides, and where these parted ('': nowhere).

    `merged` are the files that the beginning has as neither side has them.
    """

    base: str
    end: str
    target: str
    tip: str
    since: str
    merged: list[str]


def _name_others(git: Git, sides: _Sides) -> str | None:
    """Which files a mend of a conflict has changed beside those in conflict; None: no others."""
    marked = {name for name in sides.merged if _count(_read(git, sides.base, name))}
    others = sorted(set(_list_changed(git, sides.base, sides.end)) - marked)
    if not marked or not others:
        return None
    return f"beside the conflict it changed {name_some(others, MAX_NAMED)}"


def _find_refusal(git: Git, sides: _Sides, mend: MendBase) -> str | None:
    """Why what a mend ends with does not land; one that insists may have dropped or left what it likes."""
    _, end, target, tip, since, merged = sides
    for name in merged:
        blobs = {side: _read(git, side, name) for side in (end, target, tip, since) if side}
        if _count(blobs[end]) > max(_count(blobs[target]), _count(blobs[tip])):
            return f"marks of the conflict are left in {name}"
        for side, whose in ((target, "the branch"), (tip, "the work")) if not mend.insists else ():
            added = _lines(blobs[side]) - _lines(blobs.get(since))
            if blobs[end] is not None and added and not added & _lines(blobs[end]):
                return f"it {DROPPED} {whose} has added to {name}"
    if mend.insists:
        return None
    for name in mend.files:
        # git leaves a file that is no text, or that one side has deleted, as one side has it, and without marks
        left, found, mine, theirs, before = (_find_entry(git, commit, name) for commit in sides[:5])
        if found == left and left in (mine, theirs) and len({mine, theirs, before}) == 3:
            whose = "the work" if left == mine else "the branch"
            return f"it leaves {name} {KEPT} {whose} has made of it"
    return None if _list_changed(git, target, end) else f"it {DROPPED} the work has added, and all else of it"


def _find_entry(git: Git, commit: str, name: str) -> str:
    """Mode, kind, object and size of a path in a commit; empty: there is none."""
    if not commit:
        return ""
    found = git.names("--literal-pathspecs", "ls-tree", "-z", "-l", commit, "--", name)
    return found[0].partition("\t")[0] if found else ""


def _list_changed(git: Git, old: str, new: str) -> list[str]:
    words = ("-r", "-z", "--no-renames", "--name-only", "--ignore-submodules=none")
    return git.names("diff-tree", *words, old, new)


def _read(git: Git, commit: str, name: str) -> bytes | None:
    """The content of a file, if the commit has it and it is not too big."""
    _, kind, blob, size = (_find_entry(git, commit, name) or "- - - -").split()
    return git("cat-file", "blob", blob) if kind == "blob" and int(size) <= _MOST else None


def _count(content: bytes | None) -> int:
    return len(_MARK.findall(content or b""))


def _lines(content: bytes | None) -> set[bytes]:
    return {line.strip() for line in (content or b"").split(b"\n") if line.strip()}


def _parents(git: Git, commit: str) -> list[str]:
    return git.line("rev-list", "--no-walk", "--parents", commit).split(" ")[1:]


# --- tasks of mirrors ---


@contextmanager
def settle_start(request: WorkspaceRequest, folder: Path) -> Iterator[WorkspaceRequest]:
    """The request of a PREPARE with the commit at which the session begins, see `use_mirror`; or as it is."""
    upstream = request.upstream
    if upstream is None:
        yield request
        return
    import hashlib

    # in the session's folder of jobs: where the ref stands for all tasks of the session
    ref = hashlib.sha256(f"{upstream.mirror}\0{upstream.ref}".encode("utf-8", "surrogateescape")).hexdigest()
    note = folder.absolute().parents[1] / f".start-{ref[:20]}.json"
    limit_s = request.git_limit_s
    with use_mirror(upstream, note, folder, require_cache=request.require_cache, limit_s=limit_s) as start:
        repository = begin_at(request.repository, start)
        if upstream.history is not None:
            path, mirror = Path(repository.common_dir), Path(upstream.mirror)
            make_excerpt(path, mirror, start.commit, upstream.history, folder, limit_s=limit_s)
        yield replace(request, repository=repository)


def settle_starts(
    tasks: Iterable[TaskSpec], known: Iterable[TaskSpec] = (), *, require_cache: bool
) -> tuple[TaskSpec, ...]:
    """The tasks with the commits at which their repositories' refs stand; what is lacking of these is fetched.

    A ref stands where it does for tasks that are `known`.

    Raises:
        InputError: one cannot be fetched, or lacks what was asked for.
    """
    starts = {(one.upstream.mirror, one.upstream.ref): one.upstream.start for one in known if one.upstream}

    def settle(task: TaskSpec) -> TaskSpec:
        upstream = task.upstream
        if upstream is None:
            return task
        ref = upstream.mirror, upstream.ref
        if starts.get(ref) is None:
            try:
                with use_mirror(upstream, None, require_cache=require_cache) as starts[ref]:
                    pass
            except (SessionrunError, OSError) as error:
                raise InputError(str(error)) from error
        return replace(task, upstream=replace(upstream, start=starts[ref]))

    return tuple(map(settle, tasks))


def list_home(request: WorkspaceRequest, stem: str) -> set[str]:
    """The branches of the local repository whose names begin so: what is brought home there needs a free one."""
    home = request.upstream and request.upstream.home
    if not home or not os.path.isdir(home):
        return set()
    with open_room(Path(home), "", limit_s=request.git_limit_s) as room:
        return {*room.git.list_branches(stem)}


def list_taken(git: Git, request: WorkspaceRequest) -> tuple[str, set[str]]:
    """The name of the task's branch, if it is free, and the branches there are that begin so."""
    stem = branch_stem(request.repository, request.task, request.branch)
    return stem, {*git.list_branches(stem)} | list_home(request, stem)


def bring_home(request: WorkspaceRequest, place: Place, folder: Path) -> Place:
    """Fetch a place's branches into the local repository; a remark tells if that cannot be done.

    A branch that its user has checked out meanwhile stays as it is.  Done again, it changes nothing.
    """
    home = request.upstream and request.upstream.home
    names = [f"refs/heads/{name}" for name in (place.branch, place.rescue) if name]
    if not home or not names or place.holds_no_work:
        return place
    common_dir, limit_s = request.repository.common_dir, request.git_limit_s
    try:
        if not os.path.isdir(home):
            raise SessionrunError(f"{home} is gone")
        with (
            open_room(Path(common_dir), "", folder, limit_s=limit_s) as mirror,
            open_room(Path(home), str(mirror.git.directory), folder, limit_s=limit_s) as room,
        ):
            heads = read_heads(replace(request.repository, common_dir=home), None)
            for name in {f"refs/heads/{head}" for head in heads}.intersection(names):
                if room.git.commit_of(name) != mirror.git.commit_of(name):
                    raise SessionrunError(f"{name.removeprefix('refs/heads/')} is checked out in {home}")
            room.fetch(*(f"{name}:{name}" for name in names))
    except (SessionrunError, OSError) as error:
        words = f"{place.remark}; " if place.remark else ""
        return replace(place, remark=f"{words}its branch is only in {common_dir}: {error}")
    return place

"""A repository on another machine: what a node needs of it comes as a pack of objects, and the work goes back so.

A node has a replica of each repository whose tasks it runs: objects, and worktrees, but no checkout.  PREPARE puts
into it what the task begins with.  At the end of PARK and RELEASE the new objects are packed; on the session's
machine they come into the user's repository, and the task's branch is made there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from hashlib import sha256
from pathlib import Path
from typing import Final

from sessionrun.cluster.companions import ARCHIVE, RECEIVED, Remote, fetch_missing, make_links, unpack_included
from sessionrun.git.clone import open_room
from sessionrun.git.git import Git
from sessionrun.git.repository import read_author
from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.places import Handed, Place, Repository
from sessionrun.store.files import NotRegular, make_directories, read_regular, replace_file
from sessionrun.store.jobfiles import LEFT, REPLICA, load_record
from sessionrun.store.trees import hold_entry, remove_tree, remove_unused
from sessionrun.worktrees.bases import find_tips
from sessionrun.worktrees.request import WorkspaceRequest
from sessionrun.worktrees.site import kept_path

PACK: Final = "replica.pack"
"""File in the folder of a PREPARE on a node: objects for the replica."""

WORK: Final = "work.pack"
"""File in the folder of a PARK or RELEASE: the objects of the work."""

MAX_PACK: Final = 128 * 1024 * 1024
"""Most that a repository may send to a node at once (bytes)."""

SHALLOW: Final = "shallow"
"""File in a repository with a part of a history: the first commits that it has."""

MAX_LEFT: Final = 1024 * 1024
"""Most that the file may have which goes home with a RELEASE (bytes)."""

ARRIVAL_S: Final = 20.0
"""So long a PREPARE waits for objects that another one of this node brings."""

ARRIVAL_LOOK_S: Final = 0.1
NAME_TRIES: Final = 100


@frozen
class ReplicaWish:
    """What a job needs of the replica, and what of its worktree has to come home.

    Attributes:
        known: commits that have to be there, by their full names; the session's machine has them.
        inside: where the task's links lead that stand inside of the checkout.
        brings: the name of a file in the top of the worktree that goes home with RELEASE also if git ignores it.
        settings: those of git by which commits name their author.
        tags: what the tags of the user's repository stand for, by their full names.
        shallow: commits before which the replica has no history.
        is_own: the replica is for one task alone, and goes with its worktree.
        remote: where the node gets the commits from which the pack goes on; None: the pack is enough.
    """

    known: tuple[str, ...]
    inside: Mapping[str, str] = field(default_factory=dict)
    brings: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    shallow: tuple[str, ...] = ()
    is_own: bool = False
    remote: Remote | None = None


class ObjectsMissing(SessionrunError):
    """The replica lacks what the task begins with; the session sends it with the next order."""

    job_code = 76


def receive(request: WorkspaceRequest, folder: Path) -> None:
    """Before the work of a job: see that the replica is there, and has what the job needs.

    Raises:
        ObjectsMissing: it lacks something, and nothing brought it in time.
        SessionrunError, OSError: it cannot be made.
    """
    wish = load_record(folder / REPLICA, ReplicaWish)
    top = Path(request.repository.top)
    with hold_entry(top.parent, None):
        make_directories(top, 0o700)
        os.utime(top.parent)  # `clean` shows when it was used last
        git = Git(top, limit_s=request.git_limit_s)
        if not (top / ".git" / "HEAD").exists():
            kind = "sha256" if len(request.repository.base_commit) > 40 else "sha1"
            git("init", "-q", "-b", "sessionrun-replica", f"--object-format={kind}")
        for ref in git.list_refs(_kept_prefix(request)):  # of an attempt before this one, whose RELEASE is done
            git("update-ref", "-d", ref)
        if wish.remote is not None:
            fetch_missing(git, top, wish.remote, request.git_limit_s)
        if (folder / PACK).exists():
            if wish.shallow:
                lines = "".join(f"{commit}\n" for commit in wish.shallow)
                replace_file(top / ".git" / SHALLOW, lines.encode(), durable=False)
            take_pack(git, folder / PACK)
            for commit in wish.known:
                git("update-ref", f"{RECEIVED}{commit}", commit)
            lines = "".join(f"update {name} {target}\n" for name, target in wish.tags.items())
            git.attempt("update-ref", "--stdin", stdin=os.fsencode(lines))  # an older tag may stand in the way
            (folder / PACK).unlink()
        make_links(top, request.links, wish.inside)
        if wish.settings != read_author(git, "--local"):
            for name, value in wish.settings.items():
                git("config", name, value)
    if (folder / ARCHIVE).exists():
        unpack_included(folder / ARCHIVE, kept_path(top, request.owner))
    deadline = time.monotonic() + ARRIVAL_S
    while missing := [commit for commit in wish.known if git.commit_of(commit) is None]:
        if time.monotonic() > deadline:
            raise ObjectsMissing(f"commit {missing[0]} is not in the replica {top}")
        time.sleep(ARRIVAL_LOOK_S)


@contextmanager
def open_home(repository: Repository) -> Iterator[Git]:
    """Git in the repository of work that is done on nodes: in the user's own, or in a room of a mirror."""
    if repository.upstream is None:
        yield Git(Path(repository.top), limit_s=None)
        return
    with open_room(Path(repository.top), repository.upstream, limit_s=None) as room:
        if shallow := read_shallow(repository.top):
            (room.git.directory / SHALLOW).write_text("".join(f"{commit}\n" for commit in shallow))
        yield room.git


def read_shallow(common_dir: str) -> tuple[str, ...]:
    """The commits before which a repository has no history."""
    path = Path(common_dir, SHALLOW)
    return tuple(read_regular(path).decode().split()) if path.exists() else ()


def close_replica(request: WorkspaceRequest, place: Place, folder: Path) -> None:
    """After RELEASE has answered: delete what was for its task alone; `clean --cache` deletes the rest.

    Its branch becomes a ref, from which a RELEASE whose end was not seen, and which is done again, takes it back.

    Raises:
        JobFileError: the wish is damaged.
    """
    wish, top = load_record(folder / REPLICA, ReplicaWish), Path(request.repository.top)
    if place.worktree is not None:
        return
    with suppress(SessionrunError, OSError):
        if request.walls is not None:
            remove_tree(Path(request.walls).parent)
        if wish.is_own:
            remove_unused(top.parent)
            return
        name, git = place.rescue or place.branch, Git(top, limit_s=request.git_limit_s)
        if name is None or place.commit is None:
            return
        with hold_entry(top.parent, None):
            # in one step; a branch that has moved since stays
            steps = (
                f"update {_kept_prefix(request)}{name} {place.commit}\ndelete refs/heads/{name} {place.commit}\n"
            )
            if git.attempt("update-ref", "--stdin", stdin=os.fsencode(steps)).returncode == 0:
                git.attempt("-c", "gc.autoDetach=false", "gc", "--auto", "--quiet")


def name_commits(request: WorkspaceRequest) -> WorkspaceRequest:
    """The request of a PREPARE with commits in place of branches: a replica has none of the user's.

    A branch or a commit that is gone keeps its name, and PREPARE reports that.
    """
    with open_home(request.repository) as git:
        with suppress(SessionrunError):
            tips = zip(request.needs, find_tips(git, request.needs), strict=True)
            request = replace(request, needs=tuple(replace(need, commit=tip, follow=False) for need, tip in tips))
        tip = git.commit_of(request.target) if request.target is not None else None
        if request.target is not None and tip is not None:
            end = Handed("", tip, request.target.removeprefix("refs/heads/"))
            request = replace(request, target=None, needs=(end, *request.needs))
        target = git.commit_of(request.mend.target) if request.mend is not None else None
        if request.mend is not None and target is not None:
            request = replace(request, mend=replace(request.mend, target=target))
    return request


def open_release(request: WorkspaceRequest, folder: Path) -> None:
    """Before RELEASE: give back what is left of the branch, and keep the file that the session asks for.

    Raises:
        SessionrunError, OSError: the wish is damaged, or it cannot be done.
    """
    git = Git(Path(request.repository.top), limit_s=request.git_limit_s)
    for ref, commit in git.list_refs(_kept_prefix(request)).items():
        git.set_ref(f"refs/heads/{ref.partition('/branch/')[2]}", commit, None)  # unless there is one
    wish, worktree = load_record(folder / REPLICA, ReplicaWish), request.place and request.place.worktree
    if wish.brings is not None and worktree is not None:
        with suppress(FileNotFoundError, NotRegular):
            replace_file(folder / LEFT, read_regular(Path(str(worktree), wish.brings), MAX_LEFT), durable=False)


def send(request: WorkspaceRequest, place: Place, folder: Path) -> None:
    """After PARK or RELEASE: leave what the session's machine lacks of the work."""
    wish = load_record(folder / REPLICA, ReplicaWish)
    tips = [commit for commit in (place.commit, place.setup_commit, place.base_commit) if commit is not None]
    if place.commit is None:
        return
    if place.worktree is None:
        remove_tree(kept_path(Path(request.repository.top), request.owner))
    git = Git(Path(request.repository.top), limit_s=request.git_limit_s)
    if place.commit not in wish.known:
        replace_file(folder / WORK, pack_objects(git, tips, wish.known), durable=False)


def _kept_prefix(request: WorkspaceRequest) -> str:
    """How the refs begin that are left of a task's branches."""
    return f"refs/sessionrun/sent/{sha256(os.fsencode(request.owner)).hexdigest()[:16]}/branch/"


def pack_objects(git: Git, commits: Iterable[str], known: Iterable[str]) -> bytes:
    """A pack with all objects of commits but those of commits that are known.

    Raises:
        GitError: git fails, as for a commit that is not there.
    """
    lines = [*commits, *(f"^{commit}" for commit in known)]
    return git("pack-objects", "--revs", "--stdout", "-q", stdin="".join(f"{line}\n" for line in lines).encode())


def take_work(
    repository: Repository,
    place: Place,
    folder: Path,
    before: Sequence[str] = (),
    taken: Collection[str] = (),
) -> Place:
    """Take what a node left of a task's work into its repository, and make its branch; see `set_branch`.

    `place` is as the job on the node answered.  A second call changes nothing.
    """
    name = place.rescue or place.branch
    if name is None or place.commit is None or not (folder / WORK).exists():
        return place
    with open_home(repository) as git:
        take_pack(git, folder / WORK)
        chosen = set_branch(git, name, place.commit, before, taken)
    return replace(place, rescue=chosen) if place.rescue else replace(place, branch=chosen)


def set_branch(git: Git, name: str, commit: str, before: Sequence[str] = (), taken: Collection[str] = ()) -> str:
    """Make a branch, or move on what is one of the task; returns its name, which has a number if others have it.

    One that stands at a commit of the task's work `before` is its own; names that are `taken` no new one may have.

    Raises:
        SessionrunError: no name is free.
    """
    for number in range(1, NAME_TRIES + 1):
        chosen = name if number == 1 else f"{name}-{number}"
        tip = git.commit_of(f"refs/heads/{chosen}")
        if tip == commit:
            return chosen
        is_free = tip is not None or chosen not in taken
        if is_free and git.set_ref(f"refs/heads/{chosen}", commit, tip if tip in before else None):
            return chosen
    raise SessionrunError(f"no name is free for the branch {name}")


def take_pack(git: Git, path: Path) -> None:
    """Put the objects of a pack into a repository.

    Raises:
        GitError, OSError: the pack is damaged, not whole, or cannot be read.
    """
    git("index-pack", "--stdin", "--strict", stdin=read_regular(path))

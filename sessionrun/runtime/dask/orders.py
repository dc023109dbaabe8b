"""A job as it travels to a node, and the files that come back.

The node has no part of the session's directory: an order brings the files that the job reads, and names those that
it writes.  What comes back is written only where a job of that task may leave something.
"""

from __future__ import annotations

import base64
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import orjson

from sessionrun.cluster.messages import Message
from sessionrun.model.errors import SessionrunError, StoreError
from sessionrun.model.keys import WORKSPACE_PHASES, JobKey
from sessionrun.model.places import Place, Repository
from sessionrun.model.spec import Job
from sessionrun.model.upstreams import is_commit
from sessionrun.runtime.dask.placing import PLACED, find_replica, place_request
from sessionrun.runtime.executors.orders import describe_job
from sessionrun.runtime.keeper.command import PACKAGE_ROOT
from sessionrun.store.files import open_regular, read_regular
from sessionrun.store.jobfiles import REQUEST, load_request
from sessionrun.store.session import SessionDir
from sessionrun.walls.wish import INSIDE
from sessionrun.workspaces.clone import make_excerpt
from sessionrun.workspaces.companions import ARCHIVE, pack_included, place_links
from sessionrun.workspaces.environments.removal import PHASES
from sessionrun.workspaces.environments.request import WISH as ENVIRONMENT
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.remotes import find_remote, is_larger
from sessionrun.workspaces.replica import (
    MAX_PACK,
    PACK,
    WISH,
    ReplicaWish,
    list_tags,
    open_home,
    pack_objects,
    read_author,
    read_shallow,
)
from sessionrun.workspaces.request import WorkspaceRequest, load_place
from sessionrun.workspaces.rescue_names import FOLDER as RESCUE

MAX_BYTES: Final = 32 * 1024 * 1024
"""Most that the files of one order may have together, but for objects of the repository."""


def make_order(session: SessionDir, job: Job, repository: Repository | None = None) -> Message:
    """What a node has to know to run a job; of a `repository` it has a replica.

    Raises:
        OSError: a file of it cannot be read.
        StoreError: its files are too big to travel.
    """
    root, folder = str(session.path), str(session.job_path(job.key))
    words = (*job.argv, *job.env.values(), job.stdin or "", job.cwd)
    inside = f"{folder}/{INSIDE}"
    if os.path.exists(inside):  # of a walled job: the words that it becomes
        words = (*words, read_regular(inside).decode())
    files: dict[str, str] = {}
    folders: set[str] = set()
    size = 0
    place = _load_place(session, job.key) if repository is not None else None
    for path in sorted({*_find_paths(root, words), folder}):
        if os.path.isdir(path) and not os.path.islink(path):
            folders.add(_name(root, path))
            found = [os.path.join(within, each) for within, _, names in os.walk(path) for each in names]
        else:
            found = [path]
        for each in found:
            if os.path.islink(each) or not os.path.isfile(each):
                continue
            content = read_regular(each)
            if repository is not None and os.path.basename(each) in PLACED:
                content = place_request(content, repository, place)
            size += len(content)
            files[_name(root, each)] = base64.b64encode(content).decode()
    if size > MAX_BYTES:
        raise StoreError(f"the files of {job.key.text()} have {size} bytes: more than {MAX_BYTES} do not travel")
    moved = {} if repository is None else {repository.top: find_replica(repository)}
    return {
        **describe_job(job),
        "cwd": moved.get(job.cwd, job.cwd),
        "env": {name: moved.get(value, value) for name, value in job.env.items()},
        "stdout": _name(root, job.stdout),
        "stderr": _name(root, job.stderr),
        "session": root,
        "python": sys.executable,
        "package": PACKAGE_ROOT,
        "files": files,
        "folders": sorted(folders),
        "folder": _name(root, folder),
        "placed": PLACED,
    }


def _name(root: str, path: str) -> str:
    """A path below the session's directory as a node knows it; the node refuses any other."""
    return path.removeprefix(f"{root}/")


def _find_paths(root: str, words: tuple[str, ...]) -> Iterator[str]:
    """Paths below the session's directory that a word names, alone or within a command."""
    for word in words:
        if root not in word:
            continue
        for match in re.finditer(re.escape(root) + r"/[^\s'\":;,]+", word):
            yield str(Path(match.group()))


def find_prepare(session: SessionDir, key: JobKey) -> Path | None:
    """The folder of the last PREPARE of a job's attempt; None: its task has no worktree."""
    folder = next(session.find_starts(key._replace(round=1, phase="prepare")), None)
    return folder if folder is not None and (folder / REQUEST).exists() else None


def find_workspace(session: SessionDir, key: JobKey) -> WorkspaceRequest | None:
    """What the PREPARE was asked that makes the worktree in which a job works; None: there is none.

    Raises:
        JobFileError: its request is damaged.
    """
    folder = find_prepare(session, key)
    return None if folder is None else load_request(folder, WorkspaceRequest)


def _load_place(session: SessionDir, key: JobKey) -> Place | None:
    """The worktree in which a job works, as its PREPARE answered; None: it is yet to be made, or there is none."""
    folder = find_prepare(session, key)
    return load_place(folder) if folder is not None else None


class Replicas:
    """What the nodes' replicas of a session's repository have, as far as this supervisor has brought it."""

    def __init__(self, session: SessionDir, asked: WorkspaceRequest, brings: str | None = None) -> None:
        """
        Args:
            session: the session.
            asked: what a PREPARE is asked that makes a worktree of the repository.
            brings: see `ReplicaWish`.
        """
        self._session = session
        self._repository = asked.repository
        self._upstream = asked.upstream
        self._brings = brings
        where = session.path if asked.upstream is not None else Path(asked.repository.top)
        self._author = read_author(Git(where, limit_s=None))
        self._there: dict[str, set[str]] = {}
        self._sending: dict[JobKey, tuple[str, list[str]]] = {}
        self._known: dict[JobKey, tuple[str, list[str]]] = {}

    def equip(self, node: str, job: Job, order: Message, asked: WorkspaceRequest) -> None:
        """Put into the order of a workspace's job what the replica of its node needs.

        Args:
            node: where it goes.
            job: it.
            order: is added to.
            asked: of its PREPARE, see `find_workspace`.

        Raises:
            SessionrunError: the objects cannot be packed, or are too big to travel.
        """
        if job.key.phase == "work":
            self._equip_rescue(job.key, order, asked)
        if job.key.phase not in WORKSPACE_PHASES:
            return
        path = self._session.job_path(job.key)
        folder, files = str(path.relative_to(self._session.path)), order["files"]
        known, (_, inside) = self._find_known(asked), place_links(self._repository.top, asked.links)
        is_own = self._upstream is not None and self._upstream.history is not None
        wish = ReplicaWish(tuple(known), inside, self._brings, self._author, is_own=is_own)
        if job.key.phase == "release":
            self._equip_removal(job.key, order)
            if is_own:
                self._there.pop(node, None)
        if job.key.phase == "prepare":
            included = pack_included(self._repository, path) if self._upstream is None else None
            if included is not None:
                files[f"{folder}/{ARCHIVE}"] = _encode(included)
            pack, wish = self._bring(job.key, node, wish)
            if pack is not None:
                files[f"{folder}/{PACK}"] = _encode(pack)
        files[f"{folder}/{WISH}"] = _encode(orjson.dumps(wish))

    def _bring(self, key: JobKey, node: str, wish: ReplicaWish) -> tuple[bytes | None, ReplicaWish]:
        """A pack of what the replica lacks, unless another PREPARE brings it now; with the base come its tags."""
        self._known[key] = node, [*wish.known]
        there = self._there.setdefault(node, set())
        under_way = {commit for where, commits in self._sending.values() if where == node for commit in commits}
        missing = [commit for commit in wish.known if commit not in there]
        if under_way.issuperset(missing):
            return None, wish
        repository, upstream = self._repository, self._upstream
        if upstream is not None and upstream.history is not None:
            path, mirror = Path(repository.common_dir), Path(upstream.mirror)
            make_excerpt(path, mirror, repository.base_commit, upstream.history)
        with open_home(repository) as git:
            if repository.base_commit in missing:
                tags = list_tags(git, repository.base_commit)
                wish = replace(wish, tags=tags, shallow=read_shallow(repository.common_dir))
            if not wish.shallow and is_larger(git, MAX_PACK, missing, there):
                wish = replace(wish, remote=find_remote(git, repository, missing))
            fetched = wish.remote.commits if wish.remote is not None else ()
            pack = pack_objects(git, [*missing, *wish.tags.values()], [*there, *fetched])
        if len(pack) > MAX_PACK:
            why = "push it to a remote from which nodes can fetch" if wish.remote is None else "push them there"
            raise SessionrunError(
                f"{len(pack)} bytes that its nodes lack are more than the {MAX_PACK} that travel: {why}"
            )
        self._sending[key] = node, missing
        return pack, wish

    def _equip_removal(self, key: JobKey, order: Message) -> None:
        """Let a RELEASE find the environments of its attempt: what asked for them is not on the node any more."""
        place, folder = _load_place(self._session, key), self._session.job_path(key).parent
        for phase in PHASES:
            for wish in folder.glob(f"a{key.attempt}-*-{phase}*/{ENVIRONMENT}"):
                placed = place_request(read_regular(wish), self._repository, place)
                order["files"][str(wish.relative_to(self._session.path))] = _encode(placed)

    def _find_known(self, request: WorkspaceRequest) -> list[str]:
        """The commits with which the task begins, as its PREPARE was asked: the session's machine has them."""
        ends = [need.commit for need in request.needs]
        if request.earlier is not None:
            ends.append(request.earlier.commit)
        if request.mend is not None:
            ends += [request.mend.target, request.mend.tip]
        commits = [end for end in ends if end is not None and is_commit(end)]
        return list(dict.fromkeys([self._repository.base_commit, *commits]))

    def _equip_rescue(self, key: JobKey, order: Message, asked: WorkspaceRequest) -> None:
        """Let the node send the work in progress: what PREPARE was asked, and what it made, say where that is."""
        place = _load_place(self._session, key)
        if place is None:
            return
        known, placed = self._find_known(asked), replace(asked, place=place)
        folder = str(self._session.job_path(key).relative_to(self._session.path))
        files = {
            REQUEST: place_request(orjson.dumps(placed), self._repository),
            WISH: orjson.dumps(ReplicaWish(tuple(known))),
        }
        order["files"] |= {f"{folder}/{RESCUE}/{name}": _encode(content) for name, content in files.items()}
        order["rescue"] = folder

    def note_end(self, key: JobKey, *, ok: bool) -> None:
        """A PREPARE has ended: what it needed is there, or nothing is known of the replica any more."""
        node, known = self._known.pop(key, ("", []))
        self._sending.pop(key, None)
        if ok:
            self._there.setdefault(node, set()).update(known)
        else:
            self._there.pop(node, None)


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


def write_turn(folder: Path) -> None:
    """Write what the job of a workspace prints when it has its turn: its time counts from there.

    Raises:
        OSError: the disk refuses.
    """
    with open(open_regular(folder / "stdout", os.O_WRONLY | os.O_CREAT), "wb") as stream:
        stream.write(b"begun\n")

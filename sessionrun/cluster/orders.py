"""A job as it travels to a node: its words, the files that it reads, and the places that these name there.

The node has no part of the session's directory: an order brings the files that the job reads, and names those that
it writes.  In place of a path that each machine has of its own there is a token (`messages`).  Requests of
our own jobs are about the node's replica:

    NODE/repositories/DIGEST/replica      the repository
                             worktrees    of its tasks
                             walls        what these have inside of walls

With the orders of a task's jobs goes what the replica of their node lacks.
"""

from __future__ import annotations

import base64
import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Final

import orjson

from sessionrun.cluster.companions import ARCHIVE, find_remote, is_larger, pack_included, place_links
from sessionrun.cluster.messages import Message, put_tokens
from sessionrun.cluster.replica import (
    MAX_PACK,
    PACK,
    ReplicaWish,
    open_home,
    pack_objects,
    read_shallow,
)
from sessionrun.cluster.rescues import FOLDER as RESCUE
from sessionrun.git.clone import make_excerpt
from sessionrun.git.git import Git
from sessionrun.git.repository import read_author
from sessionrun.model.asked import NODE_TOKEN
from sessionrun.model.errors import SessionrunError, StoreError
from sessionrun.model.keys import WORKSPACE_PHASES, JobKey
from sessionrun.model.places import Place, Repository, is_commit
from sessionrun.model.spec import Job
from sessionrun.session.executor import as_order, describe_order, move
from sessionrun.session.shared import list_placed
from sessionrun.store.files import is_folder, read_regular
from sessionrun.store.jobfiles import REPLICA, REQUEST
from sessionrun.store.session import SessionDir
from sessionrun.walls.wish import INSIDE
from sessionrun.worktrees.environments.inputs import find_tag_behind
from sessionrun.worktrees.request import WorkspaceRequest

MAX_BYTES: Final = 32 * 1024 * 1024
"""Most that the files of one order may have together, but for objects of the repository."""

PLACED: Final = (REQUEST, *list_placed())
"""Files of a job's folder that name places: on a node they name those of the node."""

WALLS: Final = "walls"
"""Directory beside a replica: what tasks have inside of walls."""


# --- the order ---


def make_order(session: SessionDir, job: Job, repository: Repository | None, place: Place | None) -> Message:
    """What a node has to know to run a job; of a `repository` it has a replica, with the task's `place`.

    Raises:
        OSError: a file of it cannot be read.
        StoreError: its files are too big to travel.
    """
    root, folder = str(session.path), str(session.job_path(job.key))
    there = put_tokens(root)
    words = [*job.argv, *job.env.values(), job.stdin or "", job.cwd]
    if os.path.exists(inside := f"{folder}/{INSIDE}"):  # of a walled job: the words that it becomes
        words.append(read_regular(inside).decode())
    pattern = re.escape(root) + r"/[^\s'\":;,]+"
    paths = sorted({folder, *(str(Path(found)) for word in words for found in re.findall(pattern, word))})
    files: dict[str, str] = {}
    size = 0
    for path in (each for top in paths for each in _list_files(top)):
        content = read_regular(path)
        if repository is not None and os.path.basename(path) in PLACED:
            content = place_request(content, repository, place)
        size += len(content)
        files[os.path.relpath(path, root)] = encode(path, content, there)
    if size > MAX_BYTES:
        raise StoreError(f"the files of {job.key.text()} have {size} bytes: more than {MAX_BYTES} do not travel")
    moved = {} if repository is None else {repository.top: find_replica(repository)}
    env = {name: moved.get(value, value) for name, value in job.env.items()}
    about = describe_order(move(as_order(replace(job, cwd=moved.get(job.cwd, job.cwd), env=env)), there))
    outputs = {name: os.path.relpath(getattr(job, name), root) for name in ("stdout", "stderr")}
    folders = [os.path.relpath(path, root) for path in paths if is_folder(Path(path))]
    own = {"files": files, "folders": folders, "folder": os.path.relpath(folder, root), "placed": PLACED}
    return {**about, **outputs, **own}


def _list_files(path: str) -> Iterator[str]:
    """The regular files at a path, or below it."""
    walked = os.walk(path) if is_folder(Path(path)) else [(os.path.dirname(path), [], [os.path.basename(path)])]
    for folder, _, names in walked:
        for each in (os.path.join(folder, name) for name in names):
            if os.path.isfile(each) and not os.path.islink(each):
                yield each


def encode(path: str, content: bytes, there: Callable[[str], str]) -> str:
    """The content of a file in an order; one that names places has tokens."""
    if os.path.basename(path) in PLACED:
        content = there(content.decode()).encode()
    return base64.b64encode(content).decode()


def find_prepare(session: SessionDir, key: JobKey) -> Path | None:
    """The folder of the last PREPARE of a job's attempt; None: its task has no worktree."""
    folder = next(session.find_starts(key._replace(round=1, phase="prepare")), None)
    return folder if folder is not None and (folder / REQUEST).exists() else None


# --- places ---


def find_replica(repository: Repository) -> str:
    """Where a node has its replica: one for each checkout of each machine."""
    unique = f"{socket.gethostname()}:{repository.common_dir}:{repository.top}".encode()
    return f"{NODE_TOKEN}/repositories/{sha256(unique).hexdigest()[:16]}/replica"


def place_request(content: bytes, repository: Repository, place: Place | None = None) -> bytes:
    """A request as the node's job is to read it: about the replica, and the `place` that PREPARE made there."""
    replica = find_replica(repository)
    there = replace(
        repository,
        top=replica,
        common_dir=f"{replica}/.git",
        worktree_dir=str(Path(replica).with_name("worktrees")),
        settings=repository.settings and replace(repository.settings, git_dir=f"{replica}/.git"),
        upstream=None,
    )
    return orjson.dumps(_place_record(orjson.loads(content), repository, there, place))


def _place_record(record: Message, here: Repository, there: Repository, place: Place | None) -> Message:
    """The same of a part of a request: that of a round is within the request of a CHECK or WORK."""
    placed = {**record}
    if place is not None and record.get("place") and record["place"]["branch"] is not None:
        placed["place"] = {**record["place"], "branch": place.branch}
    if record.get("repository"):
        placed["repository"] = there
    if record.get("upstream"):  # to the node its mirror is a repository as any other
        placed |= {"upstream": None, "start": None, "gives_way": record["upstream"]["history"] is not None}
    if isinstance(record.get("walls"), str):  # of a workspace
        placed["walls"] = _place_walls(record["walls"], record["session_id"], there)
    if "plain_env" in record:
        placed |= _place_wish(record, here, there)
    if "links" in record:
        placed["links"] = place_links(here.top, record["links"])[0]
    if "pristine" in record:  # of an environment, which may be that of a room
        for name in ("top", "directory"):
            placed[name] = record[name].replace(f"{here.worktree_dir}/", f"{there.worktree_dir}/")
        if record["mirror"] is not None:
            placed |= {"mirror": None, "tag": find_tag_behind(record["mirror"], record["commit"])}
    for name in ("workspace", "environment", "verification", "walls"):
        if isinstance(record.get(name), dict):
            placed[name] = _place_record(record[name], here, there, place)
    return placed


def _place_wish(record: Message, here: Repository, there: Repository) -> Message:
    """What changes in what walls a job is to have: they hide the books of the node, too."""
    room, moved = (f"{here.worktree_dir}/", f"{there.worktree_dir}/"), {here.top: there.top}
    return {
        "folder": _place_walls(record["folder"], record["session_id"], there),
        "hidden": [*record["hidden"], f"{NODE_TOKEN}/.."],
        "env": {name: moved.get(value, value) for name, value in record["env"].items()},
        **{name: record[name] and record[name].replace(*room) for name in ("room", "git", "environment")},
    }


def _place_walls(folder: str, session_id: str, there: Repository) -> str:
    """Where an attempt's folder of walls is on a node: beside the replica, for all of its jobs."""
    path = Path(folder)
    return str(Path(there.top).with_name(WALLS) / session_id / path.parent.name / path.name)


# --- what orders bring to a replica, by what it has already ---


class Replicas:
    """What the nodes' replicas of a session's repository have, as far as this supervisor has brought it.

    `_open` has of each PREPARE that has not ended its node, what the task begins with, and what it brings of that.
    """

    def __init__(self, session: SessionDir, asked: WorkspaceRequest, brings: str | None = None) -> None:
        self._tokens = put_tokens(str(session.path))
        self._repository = asked.repository
        self._upstream = asked.upstream
        self._is_own = asked.upstream is not None and asked.upstream.history is not None
        self._brings = brings
        where = session.path if asked.upstream is not None else Path(asked.repository.top)
        self._author = read_author(Git(where, limit_s=None))
        self._there: dict[str, set[str]] = {}
        self._open: dict[JobKey, tuple[str, Sequence[str], Sequence[str]]] = {}

    def equip(self, node: str, job: Job, order: Message, asked: WorkspaceRequest, place: Place | None) -> None:
        """Add to the order of a workspace's job what the replica of its node needs.

        `asked` is what its PREPARE was asked, and `place` what that has made.

        Raises:
            SessionrunError: the objects cannot be packed, or are too big to travel.
        """
        files, wish = dict[str, bytes](), ReplicaWish(tuple(self._find_known(asked)))
        if job.key.phase == "work" and place is not None:
            # what PREPARE was asked, and made, lets the node send the work in progress
            request = place_request(orjson.dumps(replace(asked, place=place)), self._repository)
            files = {f"{RESCUE}/{REQUEST}": request, f"{RESCUE}/{REPLICA}": orjson.dumps(wish)}
            order["rescue"] = order["folder"]
        if job.key.phase in WORKSPACE_PHASES:
            inside = place_links(self._repository.top, asked.links)[1]
            wish = replace(wish, inside=inside, brings=self._brings, settings=self._author, is_own=self._is_own)
            if job.key.phase == "prepare":
                included = None  # a mirror has no files
                if self._upstream is None:
                    included = pack_included(self._repository)
                pack, wish = self._bring(job.key, node, wish)
                files = {name: content for name, content in ((ARCHIVE, included), (PACK, pack)) if content}
            files[REPLICA] = orjson.dumps(wish)
        if job.key.phase == "release" and self._is_own:
            self._there.pop(node, None)
        for name, content in files.items():
            order["files"][f"{order['folder']}/{name}"] = encode(name, content, self._tokens)

    def _bring(self, key: JobKey, node: str, wish: ReplicaWish) -> tuple[bytes | None, ReplicaWish]:
        """A pack of what the replica lacks, unless another PREPARE brings it now; with the base come its tags."""
        there = self._there.setdefault(node, set())
        under_way = {commit for where, _, brought in self._open.values() if where == node for commit in brought}
        missing = [commit for commit in wish.known if commit not in there]
        self._open[key] = node, wish.known, ()
        if under_way.issuperset(missing):
            return None, wish
        repository, upstream = self._repository, self._upstream
        if upstream is not None and upstream.history is not None:
            path, mirror = Path(repository.common_dir), Path(upstream.mirror)
            make_excerpt(path, mirror, repository.base_commit, upstream.history)
        with open_home(repository) as git:
            if repository.base_commit in missing:
                # by some of the tags before a commit projects find their version
                tags = git.list_refs(f"--merged={repository.base_commit}", "refs/tags")
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
        self._open[key] = node, wish.known, missing
        return pack, wish

    def _find_known(self, request: WorkspaceRequest) -> list[str]:
        """The commits with which the task begins, as its PREPARE was asked: the session's machine has them."""
        ends = [need.commit for need in request.needs]
        if request.earlier is not None:
            ends.append(request.earlier.commit)
        if request.mend is not None:
            ends += [request.mend.target, request.mend.tip]
        commits = [end for end in ends if end is not None and is_commit(end)]
        return list(dict.fromkeys([self._repository.base_commit, *commits]))

    def note_end(self, key: JobKey, *, ok: bool) -> None:
        """A PREPARE has ended: what it needed is there, or nothing is known of the replica any more."""
        node, known, _ = self._open.pop(key, ("", (), ()))
        if ok:
            self._there.setdefault(node, set()).update(known)
        else:
            self._there.pop(node, None)

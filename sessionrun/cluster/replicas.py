"""What the orders of a task's jobs bring to the replica of their node, by what the replica has already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import orjson

from sessionrun.cluster.companions import ARCHIVE, find_remote, is_larger, pack_included, place_links
from sessionrun.cluster.messages import Message
from sessionrun.cluster.orders import encode, load_prepared, place_request
from sessionrun.cluster.replica import (
    MAX_PACK,
    PACK,
    ReplicaWish,
    open_home,
    pack_objects,
    read_shallow,
)
from sessionrun.cluster.rescues import FOLDER as RESCUE
from sessionrun.cluster.tokens import put_tokens
from sessionrun.git.clone import make_excerpt
from sessionrun.git.git import Git
from sessionrun.git.repository import read_author
from sessionrun.model.errors import SessionrunError
from sessionrun.model.keys import WORKSPACE_PHASES, JobKey
from sessionrun.model.places import is_commit
from sessionrun.model.spec import Job
from sessionrun.store.files import read_regular
from sessionrun.store.jobfiles import REPLICA, REQUEST
from sessionrun.store.session import SessionDir
from sessionrun.worktrees.env_request import PHASES
from sessionrun.worktrees.env_request import WISH as ENVIRONMENT
from sessionrun.worktrees.request import WorkspaceRequest


class Replicas:
    """What the nodes' replicas of a session's repository have, as far as this supervisor has brought it.

    `_open` has of each PREPARE that has not ended its node, what the task begins with, and what it brings of that.

    Args:
        asked: what a PREPARE is asked that makes a worktree of the repository.
        brings: see `ReplicaWish`.
    """

    def __init__(self, session: SessionDir, asked: WorkspaceRequest, brings: str | None = None) -> None:
        self._session = session
        self._tokens = put_tokens(str(session.path))
        self._repository = asked.repository
        self._upstream = asked.upstream
        self._is_own = asked.upstream is not None and asked.upstream.history is not None
        self._brings = brings
        where = session.path if asked.upstream is not None else Path(asked.repository.top)
        self._author = read_author(Git(where, limit_s=None))
        self._there: dict[str, set[str]] = {}
        self._open: dict[JobKey, tuple[str, Sequence[str], Sequence[str]]] = {}

    def equip(self, node: str, job: Job, order: Message, asked: WorkspaceRequest) -> None:
        """Put into the order of a workspace's job what the replica of its node needs.

        Args:
            order: is added to.
            asked: of its PREPARE, see `orders.find_workspace`.

        Raises:
            SessionrunError: the objects cannot be packed, or are too big to travel.
        """
        files, wish = dict[str, bytes](), ReplicaWish(tuple(self._find_known(asked)))
        if job.key.phase == "work":
            files = self._list_rescue(job.key, wish, asked)
            order["rescue"] = order["folder"] if files else None
        if job.key.phase in WORKSPACE_PHASES:
            inside = place_links(self._repository.top, asked.links)[1]
            wish = replace(wish, inside=inside, brings=self._brings, settings=self._author, is_own=self._is_own)
            if job.key.phase == "prepare":
                included = None  # a mirror has no files
                if self._upstream is None:
                    included = pack_included(self._repository, self._session.job_path(job.key))
                pack, wish = self._bring(job.key, node, wish)
                files = {name: content for name, content in ((ARCHIVE, included), (PACK, pack)) if content}
            files[REPLICA] = orjson.dumps(wish)
        if job.key.phase == "release":
            self._equip_removal(job.key, order)
            if self._is_own:
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

    def _equip_removal(self, key: JobKey, order: Message) -> None:
        """Let a RELEASE find the environments of its attempt: what asked for them is not on the node any more."""
        place, folder = load_prepared(self._session, key), self._session.job_path(key).parent
        for phase in PHASES:
            for wish in folder.glob(f"a{key.attempt}-*-{phase}*/{ENVIRONMENT}"):
                placed = place_request(read_regular(wish), self._repository, place)
                name = str(wish.relative_to(self._session.path))
                order["files"][name] = encode(name, placed, self._tokens)

    def _find_known(self, request: WorkspaceRequest) -> list[str]:
        """The commits with which the task begins, as its PREPARE was asked: the session's machine has them."""
        ends = [need.commit for need in request.needs]
        if request.earlier is not None:
            ends.append(request.earlier.commit)
        if request.mend is not None:
            ends += [request.mend.target, request.mend.tip]
        commits = [end for end in ends if end is not None and is_commit(end)]
        return list(dict.fromkeys([self._repository.base_commit, *commits]))

    def _list_rescue(self, key: JobKey, wish: ReplicaWish, asked: WorkspaceRequest) -> dict[str, bytes]:
        """What lets the node send the work in progress: what PREPARE was asked, and made, says where that is."""
        place = load_prepared(self._session, key)
        if place is None:
            return {}
        request = place_request(orjson.dumps(replace(asked, place=place)), self._repository)
        return {f"{RESCUE}/{REQUEST}": request, f"{RESCUE}/{REPLICA}": orjson.dumps(wish)}

    def note_end(self, key: JobKey, *, ok: bool) -> None:
        """A PREPARE has ended: what it needed is there, or nothing is known of the replica any more."""
        node, known, _ = self._open.pop(key, ("", (), ()))
        if ok:
            self._there.setdefault(node, set()).update(known)
        else:
            self._there.pop(node, None)

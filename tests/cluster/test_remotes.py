"""Large repositories on nodes: what the remote has a node fetches there, and the rest travels."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from clusters import real_cluster
from conftest import Command
from stages import git
from test_cluster import make_repository
from test_cluster_parts import run
from test_replica import Node

from sessionrun.cluster.companions import Remote, fetch_missing, find_remote, is_larger
from sessionrun.cluster.replica import PACK, ReplicaWish, pack_objects, receive
from sessionrun.git.git import Git
from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import Repository
from sessionrun.store.files import replace_file
from sessionrun.store.jobfiles import REPLICA

BIG = 140 << 20


class Hub:
    """A bare repository that others push to, and a clone with a commit that it lacks."""

    def __init__(self, place: Path) -> None:
        self.path, self.top = place / "hub.git", place / "clone"
        (place / "first").mkdir()
        make_repository(place / "first")
        subprocess.run(["git", "clone", "-q", "--bare", str(place / "first"), str(self.path)], check=True)
        subprocess.run(["git", "clone", "-q", str(self.path), str(self.top)], check=True)
        self.pushed = git(self.top, "rev-parse", "HEAD")
        (self.top / "mine").write_text("mine\n")
        git(self.top, "add", "mine")
        git(self.top, "commit", "-q", "-m", "mine")
        self.own = git(self.top, "rev-parse", "HEAD")

    @property
    def git(self) -> Git:
        return Git(self.top, limit_s=None)

    @property
    def repository(self) -> Repository:
        return Repository(str(self.top), str(self.top / ".git"), "main", self.own, str(self.top.parent))


@pytest.fixture
def hub(own_place: Path) -> Hub:
    return Hub(own_place)


def test_a_remote_has_what_was_pushed_there(hub: Hub) -> None:
    found = find_remote(hub.git, hub.repository, [hub.own, hub.pushed])
    assert found == Remote(str(hub.path), {hub.pushed: "main"})
    git(hub.top, "remote", "set-url", "origin", "https://ann:secret@example.org:8443/hub.git")
    found = find_remote(hub.git, hub.repository, [hub.own])
    assert found is not None and found.url == "https://example.org:8443/hub.git"
    git(hub.top, "remote", "set-url", "origin", "git@example.org:hub.git")
    found = find_remote(hub.git, hub.repository, [hub.own])
    assert found is not None and found.url == "git@example.org:hub.git"
    git(hub.top, "remote", "set-url", "origin", "../hub.git")
    found = find_remote(hub.git, hub.repository, [hub.own])
    assert found is not None and found.url == str(hub.path)
    git(hub.top, "remote", "rename", "origin", "far")
    found = find_remote(hub.git, hub.repository, [hub.own])
    assert found is not None, "it is the only one"
    git(hub.top, "remote", "remove", "far")
    assert find_remote(hub.git, hub.repository, [hub.own]) is None


def test_a_history_that_no_remote_has_a_part_of(hub: Hub) -> None:
    git(hub.top, "checkout", "-q", "--orphan", "new")
    git(hub.top, "commit", "-q", "-m", "new")
    assert find_remote(hub.git, hub.repository, [git(hub.top, "rev-parse", "HEAD")]) is None


def test_what_is_there_already_does_not_count(hub: Hub) -> None:
    noise = random.Random(5).randbytes(300_000)
    (hub.top / "noise").write_bytes(noise)
    git(hub.top, "add", "noise")
    git(hub.top, "commit", "-q", "-m", "noise")
    last = git(hub.top, "rev-parse", "HEAD")
    assert not is_larger(hub.git, 1 << 20, [last], [])
    assert is_larger(hub.git, 1 << 18, [last], [hub.own])
    assert not is_larger(hub.git, 1 << 18, [hub.own], [])
    assert not is_larger(hub.git, 1 << 18, [last], [last])


def test_a_node_fetches_and_takes_the_rest(own_place: Path, hub: Hub) -> None:
    (own_place / "node" / "source").mkdir(parents=True)
    node = Node(own_place / "node")
    node.base = hub.own
    folder = node.folder("job")
    wish = ReplicaWish((hub.own,), remote=Remote(str(hub.path), {hub.pushed: "main"}))
    replace_file(folder / REPLICA, orjson.dumps(wish), durable=False)
    replace_file(folder / PACK, pack_objects(hub.git, [hub.own], [hub.pushed]), durable=False)
    receive(node.request(), folder)
    assert git(node.top, "show", f"{hub.own}:mine") == "mine"
    git(node.top, "fsck", "--connectivity-only")
    hub.path.rename(own_place / "gone.git")
    receive(node.request(), folder)  # nothing has to be fetched


def test_a_remote_that_lost_a_commit_is_named(own_place: Path, hub: Hub) -> None:
    (own_place / "node" / "source").mkdir(parents=True)
    node = Node(own_place / "node")
    node.top.mkdir(parents=True)
    make_repository(node.top)
    with pytest.raises(SessionrunError, match=f"{hub.path} does not have {hub.own} any more: push it there again"):
        fetch_missing(Git(node.top, limit_s=None), node.top, Remote(str(hub.path), {hub.own: "main"}), None)
    with pytest.raises(SessionrunError, match="cannot be fetched"):
        fetch_missing(Git(node.top, limit_s=None), node.top, Remote(str(hub.path), {hub.own: ""}), None)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_a_repository_that_is_too_large_to_travel(sessionrun: Command, hub: Hub) -> None:
    for top in (hub.top, hub.path):  # else git would try long to make noise smaller
        git(top, "config", "core.compression", "0")
        git(top, "config", "core.bigFileThreshold", "1m")
    noise = random.Random(6).randbytes(BIG)
    (hub.top / "noise").write_bytes(noise)
    git(hub.top, "add", "noise")
    git(hub.top, "commit", "-q", "-m", "noise")
    sessionrun.cwd, sessionrun.results = hub.top, hub.top.parent / "results"
    plan = hub.top.parent / "plan.json"
    digest = hashlib.sha256(noise).hexdigest()
    check = f"sha256sum noise | grep -q {digest}; cat mine later > made"
    plan.write_bytes(orjson.dumps([{"id": "a", "prompt": check}, {"id": "b", "prompt": check}]))
    words = ("--agent", "shell", "--worktree", str(plan))
    with real_cluster(sessionrun, nodes=1) as cluster:
        refused = run(sessionrun, "--cluster", cluster.address, *words)["tasks"]
        for task in refused:
            assert task["reason"].endswith("are more than the 134217728 that travel: push them there"), task[
                "reason"
            ]
        git(hub.top, "push", "-q", "origin", "main")
        (hub.top / "later").write_text("later\n")
        git(hub.top, "add", "later")
        git(hub.top, "commit", "-q", "-m", "later")
        for task in run(sessionrun, "--cluster", cluster.address, *words)["tasks"]:
            assert task["outcome"] == "succeeded", task["reason"]
            assert git(hub.top, "show", f"{task['branch']}:made") == "mine\nlater"

"""Replicas of repositories on nodes: what stays in them, and what goes."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import orjson
import pytest
from stages import git
from test_cluster import make_repository

from sessionrun.client.clean import clean_cache
from sessionrun.cluster import replica
from sessionrun.cluster.dask_executor import DaskExecutor
from sessionrun.cluster.ends import Head
from sessionrun.cluster.findings import check_clusters, check_replicas
from sessionrun.cluster.messages import LEASE_OVER
from sessionrun.cluster.node_directory import iterate_replicas, remove_replica
from sessionrun.cluster.orders import Replicas
from sessionrun.cluster.replica import (
    WORK,
    ReplicaWish,
    close_replica,
    name_commits,
    open_release,
    pack_objects,
    receive,
    send,
    take_work,
)
from sessionrun.git.git import Git
from sessionrun.model.events import JobLost
from sessionrun.model.keys import JobKey
from sessionrun.model.landings import MendBase
from sessionrun.model.places import Handed, Place, Repository
from sessionrun.store.files import replace_file
from sessionrun.store.jobfiles import REPLICA
from sessionrun.store.session import SessionDir
from sessionrun.worktrees.request import WorkspaceRequest


class Node:
    """A replica as PREPARE and RELEASE of a node see it, with a folder for each job."""

    def __init__(self, place: Path) -> None:
        self.source = make_repository(place / "source")
        self.base = git(self.source, "rev-parse", "HEAD")
        self.nodes = place / "nodes"
        self.jobs = self.nodes / "n" / "node-n@1" / "jobs"
        self.home = self.nodes / "n" / "repositories" / "0123"
        self.top = self.home / "replica"

    def request(self) -> WorkspaceRequest:
        repository = Repository(
            top=str(self.top),
            common_dir=str(self.top / ".git"),
            worktree_dir=str(self.home / "worktrees"),
            base_branch="main",
            base_commit=self.base,
        )
        return WorkspaceRequest(repository, "s", "t", "title")

    def folder(self, job: str, *known: str) -> Path:
        path = self.jobs / job
        path.mkdir(parents=True)
        replace_file(path / REPLICA, orjson.dumps(ReplicaWish(known or (self.base,))), durable=False)
        return path

    def receive(self, job: str) -> None:
        receive(self.request(), self.folder(job))

    def branches(self) -> list[str]:
        return git(self.top, "for-each-ref", "--format=%(refname:short)", "refs/heads").split()


@pytest.fixture
def node(own_place: Path) -> Node:
    """A replica that has the base, and a branch with work that was packed for its session."""
    (own_place / "source").mkdir()
    node = Node(own_place)
    node.top.parent.mkdir(parents=True)
    git(own_place, "clone", "-q", str(node.source), str(node.top))
    git(node.top, "checkout", "-q", "--detach")
    git(node.top, "branch", "-q", "-D", "main")
    git(node.top, "commit", "-q", "--allow-empty", "-m", "work")
    git(node.top, "branch", "task-a")
    place = Place(branch="task-a", commit=git(node.top, "rev-parse", "HEAD"), base_commit=node.base)
    answer(node, place, "release")
    return node


def answer(node: Node, place: Place, job: str) -> None:
    """A RELEASE from the work on: it leaves the work, answers, and closes."""
    folder = node.folder(job)
    send(node.request(), place, folder)
    close_replica(node.request(), place, folder)


@pytest.mark.parametrize("killed_at", ["before its pack", "before its answer"])
def test_a_branch_stays_whose_release_was_killed(
    node: Node, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    """The worktree was gone already: the next RELEASE finds the work on the branch."""
    commit = git(node.top, "rev-parse", "HEAD")
    git(node.top, "branch", "task-b")
    killed = node.folder("killed")
    if killed_at == "before its pack":
        monkeypatch.setattr(replica, "pack_objects", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        send(node.request(), Place(branch="task-b", commit=commit, base_commit=node.base), killed)
        raise KeyboardInterrupt
    shutil.rmtree(killed)  # the session has heard that it is lost
    node.receive("prepare")
    assert "task-b" in node.branches()


def test_a_release_that_is_done_again_when_its_branch_has_gone_finds_the_work(node: Node) -> None:
    """Its end was not seen, so the node forgot it without the session taking the work; then another task began."""
    commit = git(node.top, "rev-parse", "HEAD")
    assert node.branches() == [], "it went when the RELEASE had answered"
    receive(replace(node.request(), task="u"), node.folder("p"))
    assert node.branches() == []
    git(node.top, "checkout", "-q", "--detach", node.base)
    for _ in range(2):
        open_release(node.request(), node.folder("again"))
        assert node.branches() == ["task-a"] and git(node.top, "rev-parse", "task-a") == commit
        shutil.rmtree(node.jobs / "again")
    git(node.top, "branch", "-q", "-D", "task-a")
    node.receive("p2")  # the task begins anew: nothing of before comes back
    open_release(node.request(), node.folder("later"))
    assert node.branches() == []


def test_a_branch_that_has_moved_stays(node: Node) -> None:
    git(node.top, "branch", "task-a", node.base)
    answer(node, Place(branch="task-a", commit=git(node.top, "rev-parse", "HEAD")), "r2")
    assert node.branches() == ["task-a"] and git(node.top, "rev-parse", "task-a") == node.base


def test_a_node_gets_commits_in_the_place_of_branches(node: Node) -> None:
    source = node.source
    git(source, "commit", "-q", "--allow-empty", "-m", "later")
    later = git(source, "rev-parse", "HEAD")
    repository = replace(node.request().repository, top=str(source), common_dir=str(source / ".git"))
    request = WorkspaceRequest(
        repository,
        "s",
        "t",
        "title",
        target="refs/heads/main",
        needs=(Handed("a", node.base, "main", follow=True),),
        mend=MendBase("refs/heads/main", node.base),
    )
    named = name_commits(request)
    assert named.target is None and named.needs == (Handed("", later, "main"), Handed("a", later, "main"))
    assert named.mend == MendBase(later, node.base)
    gone = replace(request, target="refs/heads/gone", mend=None, needs=(Handed("a", None, why="it is gone"),))
    assert name_commits(gone) == gone


def test_a_branch_that_came_home_before_goes_on_and_others_stay(node: Node) -> None:
    source = node.source
    repository = replace(node.request().repository, top=str(source), common_dir=str(source / ".git"))
    git(source, "branch", "task-a")  # a person's
    first = git(node.top, "rev-parse", "HEAD")
    git(node.top, "commit", "-q", "--allow-empty", "-m", "more")
    second = git(node.top, "rev-parse", "HEAD")
    folder = node.jobs / "release"
    place = Place(branch="task-a", commit=first, base_commit=node.base)
    assert take_work(repository, place, folder).branch == "task-a-2"
    (folder / WORK).write_bytes(pack_objects(Git(node.top), [second], [node.base]))
    for _ in range(2):
        assert take_work(repository, replace(place, commit=second), folder, [first]).branch == "task-a-2"
    assert git(source, "rev-parse", "task-a", "task-a-2").split() == [node.base, second]


def test_what_a_lost_prepare_was_to_bring_is_sent_again(node: Node, own_place: Path) -> None:
    """Its node may have been lost while the objects came, and come back without them."""
    asked = replace(node.request(), repository=replace(node.request().repository, top=str(node.source)))
    replicas = Replicas(SessionDir(own_place / "session-x"), asked)
    first, second = (JobKey(task, 1, 1, "prepare", 1) for task in ("a", "b"))
    assert replicas._bring(first, "n", ReplicaWish((node.base,)))[0] is not None
    assert replicas._bring(second, "n", ReplicaWish((node.base,)))[0] is None, "the first one brings it"
    executor = object.__new__(DaskExecutor)
    executor._replicas, executor._opened = {"": replicas}, {}
    executor._carrier = Mock(lock=threading.Lock(), head=Head("x", 1, {}))
    dead = {"job": f"x/{first.text()}", "reason": LEASE_OVER, "ran": True}
    assert [lost.verdict for lost in executor._hear_death(first, dead) if isinstance(lost, JobLost)] == ["lost"]
    assert replicas._bring(second, "n", ReplicaWish((node.base,)))[0] is not None


def forget(node: Node, job: str) -> None:
    """As the node does when its session has the end of a job."""
    for path in (node.jobs / job).iterdir():
        path.unlink()
    (node.jobs / job).rmdir()


def test_a_replica_goes_when_nothing_uses_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSIONRUN_NODES", str(node.nodes))
    (replica,) = iterate_replicas(node.nodes)
    assert replica.path == node.home and replica.size > 0
    assert remove_replica(replica) == "the node n has jobs"
    forget(node, "release")
    (node.home / "worktrees" / "w").mkdir(parents=True)
    (finding,) = check_replicas(node.nodes)
    assert finding.where == str(node.home / "worktrees" / "w")
    assert "there are worktrees in it" in str(remove_replica(replica))
    (node.home / "worktrees" / "w").rmdir()
    assert not list(check_replicas(node.nodes))
    assert remove_replica(replica, dry_run=True) is None and node.home.exists()
    (record,) = [one for one in clean_cache() if one["what"] == "replica"]
    assert record["removed"] and not node.home.exists()


def test_a_configured_cluster_is_asked_unless_one_session_is_meant(own_place: Path) -> None:
    (own_place / "sessionrun.toml").write_text('cluster = "tls://127.0.0.1:1"\n')
    (finding,) = check_clusters([], with_config=True)
    assert finding.where == "tls://127.0.0.1:1"
    assert not list(check_clusters([], with_config=False))

"""Replicas of repositories on nodes: what stays in them, and what goes."""

from __future__ import annotations

import io
import os
import random
import shutil
import subprocess
import sys
import tarfile
import threading
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import orjson
import pytest
from clusters import SHORT_WORDS, make_repository, real_cluster
from conftest import Command, eventually
from stages import commit_all, git
from test_cluster import start

from sessionrun.client.clean import clean_cache
from sessionrun.cluster import orders, replica
from sessionrun.cluster.companions import (
    Remote,
    fetch_missing,
    find_remote,
    is_larger,
    make_links,
    pack_included,
    place_links,
    unpack_included,
)
from sessionrun.cluster.dask_executor import DaskExecutor
from sessionrun.cluster.ends import Head
from sessionrun.cluster.findings import check_clusters, check_replicas, iterate_replicas, remove_replica
from sessionrun.cluster.homecoming import take_rescue
from sessionrun.cluster.orders import Replicas, place_request
from sessionrun.cluster.permits import LEASE_OVER
from sessionrun.cluster.replica import (
    PACK,
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
from sessionrun.cluster.rescues import commit_of, drop_older, list_packs
from sessionrun.git.git import Git
from sessionrun.git.repository import find_repository
from sessionrun.model.asked import CACHE_TOKEN, NODE_TOKEN, Sandbox
from sessionrun.model.errors import SessionrunError
from sessionrun.model.events import JobLost
from sessionrun.model.keys import JobKey
from sessionrun.model.landings import MendBase
from sessionrun.model.places import Handed, Place, Repository
from sessionrun.store.files import replace_file
from sessionrun.store.jobfiles import REPLICA
from sessionrun.store.session import SessionDir
from sessionrun.store.trees import IN_USE, hold_entry
from sessionrun.walls.wish import WallsWish
from sessionrun.worktrees.environments.build import make_environment
from sessionrun.worktrees.request import EnvironmentRequest, WorkspaceRequest


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
    executor._waiting, executor._told, executor._nodes = {}, [], {}
    executor._carrier = Mock(lock=threading.Lock(), head=Head("x", 1, {}))
    dead = {"job": f"x/{first.text()}", "reason": LEASE_OVER, "ran": True}
    assert [lost.verdict for lost in executor._hear("dead", dead) if isinstance(lost, JobLost)] == ["lost"]
    assert replicas._bring(second, "n", ReplicaWish((node.base,)))[0] is not None


def test_a_replica_goes_when_nothing_uses_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSIONRUN_NODES", str(node.nodes))
    (replica,) = iterate_replicas(node.nodes)
    assert replica.path == node.home and replica.size > 0
    assert remove_replica(replica) == "the node n has jobs"
    shutil.rmtree(node.jobs / "release")  # the session has its end
    for name in ("w", ".env-w"):
        (node.home / "worktrees" / name).mkdir(parents=True)
    (finding,) = check_replicas(node.nodes)
    assert finding.where == str(node.home / "worktrees" / "w")
    assert "there are worktrees in it" in str(remove_replica(replica))
    (node.home / "worktrees" / "w").rmdir()
    assert not list(check_replicas(node.nodes))
    receiving = threading.Thread(target=node.receive, args=("prepare",))
    with hold_entry(node.home, 0.0):  # one process at a time changes it
        assert remove_replica(replica) == IN_USE
        receiving.start()
        receiving.join(0.5)
        assert receiving.is_alive()
    receiving.join()
    shutil.rmtree(node.jobs / "prepare")
    assert remove_replica(replica, dry_run=True) is None and node.home.exists()
    (record,) = [one for one in clean_cache() if one["what"] == "replica"]
    assert record["removed"] and not node.home.exists()


def test_a_configured_cluster_is_asked_unless_one_session_is_meant(own_place: Path) -> None:
    (own_place / "sessionrun.toml").write_text('cluster = "tls://127.0.0.1:1"\n')
    (finding,) = check_clusters([], with_config=True)
    assert (finding.where, "ca.pem is not there" in finding.what) == ("tls://127.0.0.1:1", True)
    assert not list(check_clusters([], with_config=False))
    (own_place / "sessionrun.toml").write_text('cluster = "slurm"\n')
    assert not list(check_clusters([], with_config=True))


# --- What tasks on a node have beside their commits: included files, links, and secrets that are given by ---


def test_a_secret_by_name_on_this_machine_is_in_no_file(
    sessionrun: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEAM_KEY", "s3cret-value")
    env = {"KEY": "{env:TEAM_KEY}", "TEXT": "a {env:TEAM_KEY}", "BRACES": "{env:}"}
    has = "test ${#KEY} = 12 -a \"$TEXT$BRACES\" = 'a {env:TEAM_KEY}{env:}'"
    plan = [
        {"id": "has", "prompt": has, "env": env},
        {"id": "lacks", "prompt": "true", "env": {"KEY": "{env:OTHER_KEY}"}},
    ]
    session_id = sessionrun.start(plan)
    ended, lacks = sessionrun.wait(session_id)["tasks"]
    assert ended["outcome"] == "succeeded" and lacks["reason_class"] == "start_failed"
    assert "the variable OTHER_KEY, which KEY is to be, is not set" in lacks["reason"]
    directory = sessionrun.directory(session_id)
    eventually(lambda: not SessionDir(directory).is_alive())  # until then a file may go while it is looked at
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert files and not [path for path in files if b"s3cret-value" in path.read_bytes()]


def test_links_lead_to_the_same_places_on_a_node(own_place: Path) -> None:
    top = str(own_place / "project")
    links = ["cache/models", "../data", "/opt/tools", "~/sets"]
    placed, inside = place_links(top, links)
    assert placed == ["cache/models", str(own_place / "data"), "/opt/tools", "~/sets"]
    assert inside == {"cache/models": f"{top}/cache/models"}
    replica = own_place / "replica"
    replica.mkdir()
    for link, target in ((placed[0], f"{top}/cache/models"), (placed[1], placed[1])):
        with pytest.raises(SessionrunError, match=f"links: there is no {target} on this node"):
            make_links(replica, [link], inside)
    (own_place / "project" / "cache" / "models").mkdir(parents=True)
    for _ in range(2):
        make_links(replica, placed[:1], inside)
    assert os.readlink(replica / "cache" / "models") == f"{top}/cache/models"


def test_a_request_and_those_within_it_are_about_the_replica_and_the_walls_of_the_node(own_place: Path) -> None:
    repository = Repository(str(own_place), str(own_place / ".git"), "main", "0" * 40, str(own_place / "w"))
    room = f"{repository.worktree_dir}/.room-1"
    walls = WallsWish(
        session_id="s",
        job="t/1/1/check/1",
        sandbox=Sandbox("project"),
        repository=repository,
        worktree="/node/w/t",
        folder="/results/session-s/jobs/t/a1-walls",
        record="/results/session-s/jobs/t/a1-r1-check",
        session="/results/session-s",
        cwd=str(own_place),
        cache=f"{CACHE_TOKEN}/environments",
        env={"SESSIONRUN_REPOSITORY": repository.top, "OTHER": "x"},
        room=room,
        environment=f"{repository.worktree_dir}/.env-room-1",
    )
    workspace = {"repository": repository, "links": ["../data"], "task": "t", "round": "a1-round-2"}
    request = {
        "directory": "/w",
        "walls": walls,
        "workspace": {**workspace, "walls": walls.folder, "session_id": "s"},
        "environment": EnvironmentRequest(room, f"{room}/src", "/cache/tasks/1"),
    }
    placed = orjson.loads(place_request(orjson.dumps(request), repository, Place(branch="b", worktree="/n/b")))
    base = placed["workspace"]["repository"]["top"].removesuffix("/replica")
    assert base.startswith(NODE_TOKEN) and placed["directory"] == "/w"
    there, folder = f"{base}/worktrees/.room-1", f"{base}/walls/s/t/a1-walls"
    assert placed["workspace"] == {
        **workspace,
        "repository": placed["walls"]["repository"],
        "links": [str(own_place.parent / "data")],
        "walls": folder,
        "session_id": "s",
    }
    assert [placed["environment"][name] for name in ("top", "directory")] == [there, f"{there}/src"]
    changed = {
        name: each for name, each in placed["walls"].items() if each != orjson.loads(orjson.dumps(walls))[name]
    }
    assert changed == {  # of the record the node makes a path of its own
        "repository": placed["workspace"]["repository"],
        "folder": folder,
        "room": there,
        "environment": f"{base}/worktrees/.env-room-1",
        "env": {"SESSIONRUN_REPOSITORY": f"{base}/replica", "OTHER": "x"},
        "hidden": [f"{NODE_TOKEN}/.."],
    }


def test_walls_that_are_only_wished_for_start_nothing(own_place: Path) -> None:
    repository = Repository("/r", "/r/.git", "main", "0" * 40, "/w")
    wish = WallsWish("s", "t/1/1/setup/1", Sandbox("project"), repository, "/w/t", "/f", "/j", "/s", "/", "/c")
    request = EnvironmentRequest(str(own_place), str(own_place), "/c", walls=wish)
    with pytest.raises(ValueError, match="only wished for"):
        make_environment(request, own_place)


def test_included_files_are_those_of_the_checkout_and_no_archive_leads_out(own_place: Path) -> None:
    top = own_place / "project"
    (top / "local").mkdir(parents=True)
    make_repository(top)
    (top / ".gitignore").write_text(".env\nlocal/\nnever\n")
    (top / ".worktreeinclude").write_text(".env\nlocal/**\n")
    for name in (".env", "local/a", "never"):
        (top / name).write_text(name)
    repository, _ = find_repository(top, base=None, worktree_dir=own_place / "worktrees", keep="never")
    packed = pack_included(repository)
    assert packed is not None
    (own_place / "archive").write_bytes(packed)
    kept = own_place / "kept" / "t"
    (kept / "old").mkdir(parents=True)
    unpack_included(own_place / "archive", kept)
    found = {str(path.relative_to(kept)): path.read_text() for path in kept.rglob("*") if path.is_file()}
    assert found == {".env": ".env", "local/a": "local/a"} and not (kept / "old").exists()
    evil = io.BytesIO()
    with tarfile.open(fileobj=evil, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../evil"))
    (own_place / "archive").write_bytes(evil.getvalue())
    with pytest.raises(SessionrunError, match="is not a path below the worktree"):
        unpack_included(own_place / "archive", kept)


@pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="a Python that refuses no links")
def test_a_link_among_included_files_travels_as_it_is(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where Python refuses links that lead out, as it does from 3.14 on."""
    monkeypatch.setattr(tarfile.TarFile, "extraction_filter", staticmethod(tarfile.data_filter))
    with tarfile.open(own_place / "archive", "w") as archive:
        link = tarfile.TarInfo("data")
        link.type, link.linkname = tarfile.SYMTYPE, "/somewhere/data"
        archive.addfile(link)
    unpack_included(own_place / "archive", own_place / "kept")
    assert os.readlink(own_place / "kept" / "data") == "/somewhere/data"


# --- Large repositories on nodes: what the remote has a node fetches there, and the rest travels ---


class Hub:
    """A bare repository that others push to, and a clone with a commit that it lacks."""

    def __init__(self, place: Path) -> None:
        self.path, self.top = place / "hub.git", place / "clone"
        make_repository(place / "first")
        subprocess.run(["git", "clone", "-q", "--bare", str(place / "first"), str(self.path)], check=True)
        subprocess.run(["git", "clone", "-q", str(self.path), str(self.top)], check=True)
        self.pushed = git(self.top, "rev-parse", "HEAD")
        (self.top / "mine").write_text("mine\n")
        commit_all(self.top)
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
    assert find_remote(hub.git, hub.repository, [hub.own, hub.pushed]) == Remote(str(hub.path), (hub.pushed,))
    for url, wanted in (
        ("https://ann:secret@example.org:8443/hub.git", "https://example.org:8443/hub.git"),
        ("https://ann:se@cret@[::1]:8443/hub.git", "https://[::1]:8443/hub.git"),
        ("https://token@example.org/hub.git", "https://example.org/hub.git"),
        ("ssh://git@example.org:22/hub.git", "ssh://git@example.org:22/hub.git"),
        ("https://[example.org/hub.git", "https://[example.org/hub.git"),
        ("git@example.org:hub.git", "git@example.org:hub.git"),
        ("../hub.git", str(hub.path)),
    ):
        git(hub.top, "remote", "set-url", "origin", url)
        found = find_remote(hub.git, hub.repository, [hub.own])
        assert found is not None and found.url == wanted
    git(hub.top, "remote", "rename", "origin", "far")
    assert find_remote(hub.git, hub.repository, [hub.own]) is not None, "it is the only one"
    git(hub.top, "checkout", "-q", "--orphan", "new")
    git(hub.top, "commit", "-q", "-m", "new")
    assert find_remote(hub.git, hub.repository, [git(hub.top, "rev-parse", "HEAD")]) is None, "of no part"
    git(hub.top, "remote", "remove", "far")
    assert find_remote(hub.git, hub.repository, [hub.own]) is None


def test_what_is_there_already_does_not_count(hub: Hub) -> None:
    (hub.top / "noise").write_bytes(random.Random(5).randbytes(300_000))
    commit_all(hub.top)
    last = git(hub.top, "rev-parse", "HEAD")
    assert not is_larger(hub.git, 1 << 20, [last], [])
    assert is_larger(hub.git, 1 << 18, [last], [hub.own])
    assert not is_larger(hub.git, 1 << 18, [hub.own], [])
    assert not is_larger(hub.git, 1 << 18, [last], [last])


def test_a_node_fetches_what_is_too_large_to_travel_and_takes_the_rest(
    own_place: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as the remote has it; else a launch says what to do."""
    monkeypatch.setattr(orders, "MAX_PACK", 1 << 18)

    def bring(name: str, content: bytes) -> tuple[bytes | None, ReplicaWish]:
        """What an order of a task brings that begins with one commit more."""
        (hub.top / name).write_bytes(content)
        commit_all(hub.top)
        base = git(hub.top, "rev-parse", "HEAD")
        asked = WorkspaceRequest(replace(hub.repository, base_commit=base), "s", "t", "title")
        replicas = Replicas(SessionDir(own_place / "session-x"), asked)
        return replicas._bring(JobKey("t", 1, 1, "prepare", 1), "n", ReplicaWish((base,)))

    with pytest.raises(SessionrunError, match=r"are more than the 262144 that travel: push them there"):
        bring("noise", random.Random(5).randbytes(300_000))
    pushed = git(hub.top, "rev-parse", "HEAD")
    git(hub.top, "push", "-q", "origin", "main")
    pack, wish = bring("later", b"later\n")
    assert pack is not None and len(pack) < 1000 and wish.remote == Remote(str(hub.path), (pushed,))
    node = Node(own_place / "node")
    (node.base,) = wish.known
    folder = node.folder("job")
    replace_file(folder / REPLICA, orjson.dumps(wish), durable=False)
    replace_file(folder / PACK, pack, durable=False)
    receive(node.request(), folder)
    assert git(node.top, "show", f"{node.base}:later") == "later"
    git(node.top, "fsck", "--connectivity-only")
    hub.path.rename(own_place / "gone.git")
    receive(node.request(), folder)  # nothing has to be fetched


def test_a_remote_that_lost_a_commit_is_named(own_place: Path, hub: Hub) -> None:
    node = Node(own_place / "node")
    make_repository(node.top)
    with pytest.raises(SessionrunError, match=f"cannot be fetched.*{hub.own}"):
        fetch_missing(Git(node.top, limit_s=None), node.top, Remote(str(hub.path), (hub.own,)), None)


# --- Work in progress on a node: it comes to the session while the task runs, and stays if the node does  ---


def test_the_newest_pack_that_came_whole_is_kept(own_place: Path) -> None:
    user, node, folder = (own_place / name for name in ("user", "node", "a1-r1-work"))
    folder.mkdir()
    make_repository(user)
    git(own_place, "clone", "-q", str(user), str(node))
    base = git(user, "rev-parse", "HEAD")
    commits = []
    for number in range(1, 4):
        (node / "work").write_text(f"{number}\n")
        commit_all(node)
        commits.append(git(node, "rev-parse", "HEAD"))
        path = folder / f"rescue-{number:06}-{commits[-1]}.pack"
        path.write_bytes(pack_objects(Git(node), [commits[-1]], [base]))
    assert [commit_of(path) for path in list_packs(folder)] == commits[::-1]
    newest = list_packs(folder)[0]
    newest.write_bytes(newest.read_bytes()[:-5])  # the node went while it was on its way
    repository = Repository(str(user), str(user / ".git"), "main", base, str(own_place))
    git(user, "branch", "task-rescue")
    taken = take_rescue(repository, Place(branch="task", worktree="/w", base_commit=base), list_packs(folder))
    assert taken is not None and taken.rescue == "task-rescue-2" and taken.commit == commits[1]
    assert git(user, "show", "task-rescue-2:work") == "2"
    drop_older(own_place / "a1-r1-work" / "stdout")
    drop_older(newest)
    assert [commit_of(path) for path in list_packs(folder)] == commits[:0:-1]
    assert take_rescue(repository, Place(branch="task"), list_packs(own_place / "none")) is None


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_the_work_of_a_node_that_never_comes_back_is_on_a_rescue_branch(sessionrun: Command) -> None:
    with real_cluster(sessionrun, nodes=0, timers=SHORT_WORDS) as cluster:
        cluster.start_node("n0", 2, "--rescue", "0.3")
        cluster.wait_for_nodes(1)
        repository = make_repository(sessionrun.cwd)
        (repository / "sessionrun.toml").write_text('workspace_timeout = "15s"\n')
        step = f"while [ ! -e {sessionrun.cwd}/go-{{}} ]; do sleep 0.05; done"
        script = f"echo up; echo one > work; git add work; {step.format(1)}; echo two > more; {step.format(2)}"
        plan = [{"id": "a", "prompt": script}, {"id": "b", "prompt": f"echo up; echo b > b; {step.format(3)}"}]
        session_id = start(cluster, plan, "--worktree")
        eventually(lambda: cluster.command.is_up(session_id, "a", "b"))
        folder = sessionrun.directory(session_id) / "jobs"
        eventually(lambda: list_packs(folder / "a" / "a1-r1-work") and list_packs(folder / "b" / "a1-r1-work"))
        cluster.command.let_go("3")
        sessionrun.until(session_id, lambda view: view["completed"] == 1)
        assert not list_packs(folder / "b" / "a1-r1-work")  # its work came home
        (first,) = list_packs(folder / "a" / "a1-r1-work")
        cluster.command.let_go("1")
        eventually(lambda: list_packs(folder / "a" / "a1-r1-work")[0].name > first.name)
        eventually(lambda: not list((cluster.nodes_dir / "n0").rglob(first.name)))
        cluster.kill_all("n0")
        a, b = sessionrun.wait(session_id)["tasks"]
        assert (a["outcome"], b["outcome"]) == ("lost", "succeeded")
        assert a["rescue_branch"] == f"{a['branch']}-rescue" and b["rescue_branch"] is None
        kept = [git(repository, "show", f"{a['rescue_branch']}:{name}") for name in ("work", "f")]
        assert kept == ["one", "base"]
        assert git(repository, "fsck", "--no-dangling") == ""

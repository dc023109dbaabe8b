"""What tasks on a node have beside their commits: included files, links, and secrets that are given by name."""

from __future__ import annotations

import io
import os
import sys
import tarfile
from pathlib import Path

import orjson
import pytest
from clusters import real_cluster
from conftest import Command, eventually
from stages import git
from test_cluster import make_repository, start

from sessionrun.cluster.companions import make_links, pack_included, place_links, unpack_included
from sessionrun.cluster.orders import place_request
from sessionrun.model.asked import CACHE_TOKEN, NODE_TOKEN, Sandbox
from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import Place, Repository
from sessionrun.session.executor import NotSet, look_up
from sessionrun.store.session import SessionDir
from sessionrun.walls.wish import WallsWish
from sessionrun.worktrees.env_make import make_environment
from sessionrun.worktrees.env_request import EnvironmentRequest


def test_values_by_name_are_those_of_the_machine_where_the_job_runs() -> None:
    env = {"KEY": "{env:TEAM_KEY}", "TEXT": "a {env:TEAM_KEY}", "BRACES": "{env:}"}
    assert look_up(env, {"TEAM_KEY": "s3cret"}) == {**env, "KEY": "s3cret"}
    with pytest.raises(NotSet, match="the variable TEAM_KEY, which KEY is to be, is not set"):
        look_up(env, {})


def test_a_secret_by_name_on_this_machine_is_in_no_file(
    sessionrun: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEAM_KEY", "s3cret-value")
    plan = [
        {"id": "has", "prompt": "test ${#KEY} = 12", "env": {"KEY": "{env:TEAM_KEY}"}},
        {"id": "lacks", "prompt": "true", "env": {"KEY": "{env:OTHER_KEY}"}},
    ]
    session_id = sessionrun.start(plan)
    has, lacks = sessionrun.wait(session_id)["tasks"]
    assert has["outcome"] == "succeeded" and lacks["reason_class"] == "start_failed"
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
    with pytest.raises(SessionrunError, match=f"links: there is no {top}/cache/models on this node"):
        make_links(replica, placed[:1], inside)
    (own_place / "project" / "cache" / "models").mkdir(parents=True)
    for _ in range(2):
        make_links(replica, placed[:1], inside)
    assert os.readlink(replica / "cache" / "models") == f"{top}/cache/models"


def test_a_request_within_a_request_is_about_the_replica_too(own_place: Path) -> None:
    repository = Repository(str(own_place), str(own_place / ".git"), "main", "0" * 40, str(own_place / "w"))
    workspace = {"repository": orjson.loads(orjson.dumps(repository)), "links": ["../data"], "task": "t"}
    check = {"directory": "/w", "workspace": {**workspace, "round": "a1-round-2"}}
    placed = orjson.loads(place_request(orjson.dumps(check), repository))
    there = placed["workspace"]
    assert there["repository"]["top"].startswith(NODE_TOKEN) and there["links"] == [str(own_place.parent / "data")]
    assert (placed["directory"], there["round"], there["task"]) == ("/w", "a1-round-2", "t")
    assert orjson.loads(place_request(b'{"directory": "/w"}', repository)) == {"directory": "/w"}
    room = f"{repository.worktree_dir}/.room-1"
    wish = EnvironmentRequest(room, f"{room}/src", "/cache/tasks/1")
    prove = {"environment": wish, "workspace": {**workspace, "session_id": "s"}, "known": "/session/proofs"}
    place = Place(branch="b", worktree="/node/worktrees/b")
    placed = orjson.loads(place_request(orjson.dumps(prove), repository, place))
    assert placed["environment"]["directory"].endswith("/worktrees/.room-1/src")
    assert placed["environment"]["top"].startswith(NODE_TOKEN) and placed["known"].startswith(NODE_TOKEN)


def test_walls_that_a_job_wishes_for_are_those_of_the_node(own_place: Path) -> None:
    repository = Repository(str(own_place), str(own_place / ".git"), "main", "0" * 40, str(own_place / "w"))
    wish = WallsWish(
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
        room=f"{repository.worktree_dir}/.room-1",
    )
    request = {"walls": wish, "workspace": {"walls": wish.folder, "session_id": "s"}}
    placed = orjson.loads(place_request(orjson.dumps(request), repository))
    there = placed["walls"]
    base = there["repository"]["top"].removesuffix("/replica")
    assert base.startswith(NODE_TOKEN)
    assert there["folder"] == placed["workspace"]["walls"] == f"{base}/walls/s/t/a1-walls"
    assert there["room"] == f"{base}/worktrees/.room-1" and there["worktree"] == wish.worktree
    assert there["env"] == {"SESSIONRUN_REPOSITORY": f"{base}/replica", "OTHER": "x"}
    assert there["hidden"] == [f"{NODE_TOKEN}/.."], "the books of the node"
    assert there["record"] == wish.record, "that the node makes a path of its own"


def test_walls_that_are_only_wished_for_start_nothing(own_place: Path) -> None:
    repository = Repository("/r", "/r/.git", "main", "0" * 40, "/w")
    wish = WallsWish("s", "t/1/1/setup/1", Sandbox("project"), repository, "/w/t", "/f", "/j", "/s", "/", "/c")
    request = EnvironmentRequest(str(own_place), str(own_place), "/c/tasks/t", walls=wish)
    with pytest.raises(ValueError, match="only wished for"):
        make_environment(request, own_place)


def test_included_files_are_those_of_the_checkout_and_no_archive_leads_out(own_place: Path) -> None:
    top = own_place / "project"
    top.mkdir()
    make_repository(top)
    (top / ".gitignore").write_text(".env\nlocal/\nnever\n")
    (top / ".worktreeinclude").write_text(".env\nlocal/**\n")
    (top / "local").mkdir()
    for name in (".env", "local/a", "never"):
        (top / name).write_text(name)
    repository = Repository(str(top), str(top / ".git"), "main", git(top, "rev-parse", "HEAD"), str(own_place))
    packed = pack_included(repository, own_place)
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


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_a_task_on_a_node_has_what_it_would_have_here(sessionrun: Command) -> None:
    env = {"TEAM_KEY": "s3cret-value"}
    with real_cluster(sessionrun, nodes=1, env=env) as cluster:
        repository = make_repository(sessionrun.cwd)
        (repository / ".gitignore").write_text(".env\nmodels\n")
        git(repository, "add", ".gitignore")
        git(repository, "commit", "-q", "-m", "rules")
        (repository / ".worktreeinclude").write_text(".env\n")
        (repository / ".env").write_text("KEY=1\n")
        (repository / "models").mkdir()
        (repository / "models" / "m").write_text("model\n")
        gone = sessionrun.cwd.parent / "gone"
        gone.mkdir()
        wait = f"while [ -e {gone} ]; do sleep 0.05; done"
        plan = [
            {"id": "a", "prompt": f"{wait}; cat .env models/m > got; : > .gitignore", "links": ["models"]},
            {"id": "b", "prompt": 'test "$KEY" = s3cret-value', "env": {"KEY": "{env:TEAM_KEY}"}},
            {"id": "c", "prompt": "true", "env": {"KEY": "{env:OTHER_KEY}"}},
            {"id": "d", "prompt": "true", "needs": ["a"], "links": [str(gone)]},
        ]
        session_id = start(cluster, plan, "--worktree")
        gone.rmdir()
        a, b, c, d = sessionrun.wait(session_id)["tasks"]
        assert a["outcome"] == b["outcome"] == "succeeded"
        assert git(repository, "show", f"{a['branch']}:got") == "KEY=1\nmodel"
        changed = git(repository, "diff", "--name-only", f"{a['base_commit']}..{a['branch']}").split()
        assert changed == [".gitignore", "got"]  # what was brought is no work, though git ignores it no more
        assert c["reason_class"] == "start_failed" and "OTHER_KEY, which KEY is to be, is not set" in c["reason"]
        assert d["reason_class"] == "workspace_failed" and f"there is no {gone} on this node" in d["reason"]
        assert not list(cluster.nodes_dir.glob("n0/repositories/*/included/*"))

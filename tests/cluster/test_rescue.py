"""Work in progress on a node: it comes to the session while the task runs, and stays if the node does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from clusters import SHORT_WORDS, real_cluster
from conftest import Command, eventually
from stages import git
from test_cluster import make_repository, start

from sessionrun.cluster.homecoming import take_rescue
from sessionrun.cluster.replica import pack_objects
from sessionrun.cluster.rescues import commit_of, drop_older, list_packs
from sessionrun.git.git import Git
from sessionrun.model.places import Place, Repository


def test_the_newest_pack_that_came_whole_is_kept(own_place: Path) -> None:
    user, node, folder = (own_place / name for name in ("user", "node", "a1-r1-work"))
    for path in (user, folder):
        path.mkdir()
    make_repository(user)
    git(own_place, "clone", "-q", str(user), str(node))
    base = git(user, "rev-parse", "HEAD")
    commits = []
    for number in range(1, 4):
        (node / "work").write_text(f"{number}\n")
        git(node, "add", "work")
        git(node, "commit", "-q", "-m", "wip")
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

"""Walls on the nodes of a cluster: they are built there, of what is there, and hide what is there."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from clusters import RealCluster, real_cluster
from conftest import Command, eventually
from test_cluster import git, make_repository
from test_cluster_parts import finish, run
from walled import need_walls

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="walls need Linux"),
    pytest.mark.slow,
]

KEY = "key of the node"


def make_home(command: Command) -> dict[str, str]:
    """The home directory of the nodes' user, with a secret, and in there, where it can be seen, the nodes."""
    home = command.cwd / "home-of-node"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_rsa").write_text(f"{KEY}\n")
    return {"HOME": str(home), "SESSIONRUN_NODES": str(home / ".cache" / "sessionrun" / "nodes")}


SEEN = """
mkdir sub; echo done > sub/made; git add sub; git commit -qm work
echo left > left
find ~ -type f 2>/dev/null > seen
cat ~/.ssh/id_rsa 2>/dev/null || echo none
pwd
touch ~/mine "$(git rev-parse --git-common-dir)/hooks/post-commit" 2>/dev/null
git update-ref refs/heads/main HEAD
exit 0
"""


def plan(**sandboxes: Any) -> list[dict[str, Any]]:
    return [{"id": name, "prompt": SEEN, "sandbox": sandbox} for name, sandbox in sandboxes.items()]


def test_tasks_with_walls_work_on_nodes_and_see_nothing_of_them(sessionrun: Command) -> None:
    need_walls()
    repository, home = make_repository(sessionrun.cwd), make_home(sessionrun)
    before = git(repository, "for-each-ref", "refs/heads/main")
    tasks = plan(
        project={"policy": "project", "network": "none"},
        strict={"policy": "strict", "network": "none"},
        bare={"policy": "none"},
    )
    for task in tasks:
        task.update(check="test -e sub/made", setup=["echo $SESSIONRUN_TASK > set-up"])
    tasks[0]["prove"] = True
    (repository / "plan.json").write_text(json.dumps({"prompts": tasks}))
    with real_cluster(sessionrun, env=home) as cluster:
        words = ("--worktree", "--cluster", cluster.address, str(repository / "plan.json"))
        view = run(sessionrun, "--agent", "shell", *words)
        folder = sessionrun.directory(view["session_id"])
        for task in view["tasks"]:
            assert task["outcome"] == "succeeded", task["reason"]
            said = (folder / f"task-{task['id']}.txt").read_text().splitlines()
            assert said[0] == (KEY if task["id"] == "bare" else "none"), task["id"]
            names = git(repository, "ls-tree", "-r", "--name-only", task["branch"]).split()
            assert {"sub/made", "left", "set-up", "seen"} <= {*names}
            seen = git(repository, "show", f"{task['branch']}:seen")
            books = [line for line in seen.splitlines() if line.startswith(home["SESSIONRUN_NODES"])]
            other = [line for line in books if not line.startswith(f"{said[1]}/") and "/replica/" not in line]
            assert bool(other) == (task["id"] == "bare"), other
        assert view["tasks"][0]["proof"] is not None
        assert not list(cluster.nodes_dir.glob("*/repositories/*/walls/*/*"))
    assert git(repository, "for-each-ref", "refs/heads/main") == before
    assert Path(home["HOME"], "mine").exists()  # by the task without walls

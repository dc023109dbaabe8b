"""Walls in all phases of a task, and what happens when they cannot be built: no job ever runs without."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

import pytest
from conftest import eventually, kill_sessions
from walled import IS_INSIDE, Walled, bare_path, site

from sessionrun.store.session import SessionDir

__all__ = ["site"]

pytestmark = pytest.mark.slow

WALLS = {"policy": "project", "network": "none"}
STRICT = {"policy": "strict", "network": "none"}


def outcomes(tasks: dict[str, Any]) -> dict[str, str]:
    return {name: task["outcome"] for name, task in tasks.items()}


@pytest.mark.parametrize("sandbox", [WALLS, STRICT], ids=["project", "strict"])
def test_every_command_of_a_task_runs_inside(site: Walled, sandbox: dict[str, Any]) -> None:
    script = f"{IS_INSIDE} && git log --oneline | head -1 && echo $SESSIONRUN_TASK$SESSIONRUN_ROUND >> seen"
    plan: list[dict[str, Any]] = [
        {
            "id": "first",
            "setup": [f"{IS_INSIDE}; echo made > made; git status || true"],
            "prompt": f"{script}; git add seen; git commit -qm seen",
            "check": f"{IS_INSIDE} && test -e made && test -e seen",
            "prove": True,
        },
        {"id": "second", "needs": "first", "prompt": f"{script}; grep first1 seen"},
        {
            "id": "rounds",
            "rounds": 3,
            "prompt": f"{script}; test ! -e leftover; echo x > leftover; "
            "if [ $SESSIONRUN_ROUND = 2 ]; then echo y > good; fi",
            "check": {"commands": [f"{IS_INSIDE} && test -e good"], "reset": "hard"},
        },
    ]
    tasks = site.run([{**task, "sandbox": sandbox} for task in plan])
    assert set(outcomes(tasks).values()) == {"succeeded"}, {name: task["reason"] for name, task in tasks.items()}
    assert site.git("show", "main-task-second:seen").split() == ["first1", "second1"]
    assert {"good", "leftover"} <= site.files("main-task-rounds")
    assert site.git("show", "main-task-rounds:seen").split() == ["rounds2"]


def test_a_retry_a_follow_up_and_seats(site: Walled) -> None:
    script = f"{IS_INSIDE} && echo $SESSIONRUN_ATTEMPT >> seen && git add seen && git commit -qm seen"
    session = site.start(
        [{"id": "t", "prompt": f"{script}; test $SESSIONRUN_ATTEMPT = 2", "sandbox": WALLS}], "--retries", "1"
    )
    assert site.finish(session)["t"]["outcome"] == "succeeded"
    branch = str(site.finish(session)["t"]["branch"])
    assert "2" in site.git("show", f"{branch}:seen")
    site.command("continue", session.session_id, "t", f"{script}; grep 2 seen", code=None)
    tasks = site.finish(session)
    assert set(outcomes(tasks).values()) == {"succeeded"}, tasks
    plan = {
        "worktrees": "sibling",
        "prompts": [
            {"id": f"s{n}", "prompt": f"{IS_INSIDE} && echo {n} > s{n}", "sandbox": WALLS} for n in (1, 2)
        ],
    }
    seated = site.run(plan, "--max-parallel", "1")
    assert set(outcomes(seated).values()) == {"succeeded"}
    assert "s1" in site.files("main-task-s1") and "s2" in site.files("main-task-s2")


def test_work_whose_commits_cannot_come_out_is_named_and_kept_until_it_is_given_up(site: Walled) -> None:
    script = "echo 1 > one; git add one; git commit -qm one; echo 2 > two"
    plant = "ln -s /etc/passwd $(git rev-parse --git-common-dir)/refs/heads/link"
    plan = [
        {"id": "bad", "prompt": f"{script}; {plant}", "sandbox": STRICT},
        {"id": "after", "needs": "bad", "prompt": "test -e one -a -e two", "sandbox": STRICT},
    ]
    tasks = site.run(plan)
    session, worktree = tasks["bad"]["session"], site.root / "repo-worktrees" / "main-task-bad"
    says = "its commits cannot be read: refs/heads/link is no regular file"
    assert set(outcomes(tasks).values()) == {"succeeded"}, "who needs it begins with what lay in the worktree"
    assert tasks["bad"]["worktree"] == str(worktree)
    assert tasks["bad"]["worktree_kept"] == f"{says}; its commits stay in {session.path}/jobs/bad/a1-walls/git"
    assert {"one", "two"} <= site.files("main-task-bad-rescue")
    for verb in ("status", "explain"):
        said = " ".join(site.command(verb, session.session_id, "bad", code=None).stdout.split())
        assert all(word in said for word in (says, str(worktree), "main-task-bad-rescue")), said
    for _ in range(2):
        said = site.command("clean", "--worktrees", session.session_id, code=None).stdout
        assert says in said and worktree.is_dir(), said
        assert "still there" in site.command("clean", session.session_id, code=None).stdout
    site.git("worktree", "remove", "--force", str(worktree))
    site.git("branch", "-D", "main-task-bad-rescue")
    site.command("clean", "--worktrees", session.session_id)
    site.command("clean", session.session_id)
    assert not session.path.exists()


# When walls cannot be built.

LINE = "Creating new namespace failed: No space left on device (ENOSPC)"


def fake(site: Walled, when: str) -> str:
    """A PATH whose bubblewrap fails when a pattern is in its words."""
    real = shutil.which("bwrap")
    script = f'#!/bin/sh\ncase "$*" in {when}) echo "bwrap: {LINE}" >&2; exit 1;; esac\nexec {real} "$@"\n'
    program = site.write("programs/bwrap", script)
    program.chmod(0o755)
    return f"{program.parent}:{site.environ['PATH']}"


def test_a_job_whose_walls_fail_later_is_sandbox_failed_and_not_tried_again(site: Walled) -> None:
    plan: list[dict[str, Any]] = [
        {"id": "setup", "setup": ["echo fail-here > ran"], "prompt": "touch ran", "retries": 3, "sandbox": WALLS},
        {"id": "good", "prompt": "touch ran", "sandbox": WALLS},
    ]
    tasks = site.run(plan, env={"PATH": fake(site, "*fail-here*")})
    assert outcomes(tasks)["good"] == "succeeded"
    assert tasks["setup"]["reason_class"] == "sandbox_failed" and tasks["setup"]["attempt"] == 1, tasks["setup"]
    assert LINE in tasks["setup"]["reason"]
    bad = site.run(
        [{"id": "bad", "prompt": "touch ran", "retries": 3, "sandbox": WALLS}],
        env={"PATH": fake(site, "*/run/prompt*")},
    )["bad"]
    assert (bad["outcome"], bad["reason_class"], bad["attempt"]) == ("failed", "sandbox_failed", 1), bad
    assert LINE in bad["reason"]
    assert not (site.top / "ran").exists()


@pytest.mark.parametrize("walled", ["tasks", "gates"])
def test_a_session_does_not_go_on_without_walls(site: Walled, walled: str) -> None:
    """Killed it is not resumed, when it has ended nothing is tried again, and while it runs nothing is added."""
    prompts = [
        {"id": "first", "prompt": "touch told; while ! test -e go; do sleep 0.1; done; exit 3"},
        {"id": "second", "prompt": "true"},
    ]
    asked: dict[str, object] = {"sandbox": WALLS}
    plan = {"defaults": asked} if walled == "tasks" else {"land": {"gates": ["true"], **asked}}
    session: SessionDir = site.start({"prompts": prompts, **plan}, "--max-parallel", "1")
    tree = site.root / "repo-worktrees" / "main-task-first"
    bare = bare_path(site.root / "bare")
    more = site.write("more.json", json.dumps({"prompts": [{"id": "more", "prompt": "true", "sandbox": WALLS}]}))

    def refused(*words: str) -> None:
        for path, says in (
            (bare, "bubblewrap (bwrap) is not installed; install it or leave the sandbox off"),
            (fake(site, "*"), f"bwrap cannot build walls here: {LINE}"),
        ):
            before = {str(file) for file in session.path.rglob("*") if "requests" not in file.parts}
            done = site.command(*words, code=2, env={"PATH": path})
            assert f"sandbox project: {says}" in done.stderr and done.stderr.count("\n") == 1
            assert {str(file) for file in session.path.rglob("*") if "requests" not in file.parts} == before

    eventually((tree / "told").exists)
    refused("run", "--into", session.session_id, "-q", "--worktree", "--agent", "shell", str(more))
    kill_sessions(site.results)
    refused("resume", session.session_id)
    assert not session.is_alive()
    (tree / "go").touch()
    site.command("resume", session.session_id)
    tasks = site.finish(session)
    assert tasks["second"]["outcome"] == "succeeded" and list(tasks) == ["first", "second"]
    refused("retry", session.session_id, "first")
    assert not session.is_alive()


def test_a_link_on_the_way_of_a_mount_makes_nothing_outside(site: Walled) -> None:
    """The repository lies below /tmp, so a task can move what lies on the way to it in its own /tmp."""
    site.write("victim/notes", "precious\n")
    part = site.root.parts[2]
    plant = f"cd /; mv /tmp/{part} /tmp/old; ln -s /oldroot{site.root}/victim /tmp/{part}"
    task = {
        "id": "t",
        "rounds": 2,
        "prompt": f"if [ $SESSIONRUN_ROUND = 1 ]; then {plant}; else echo done > done; fi",
        "check": "test -e done",
        "sandbox": STRICT,
    }
    tasks = site.run([task])
    assert os.listdir(site.root / "victim") == ["notes"]
    assert tasks["t"]["outcome"] == "succeeded", tasks["t"]["reason"]

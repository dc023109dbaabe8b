"""`expect_change`: a task that ends well and leaves its worktree as it was has failed; on real git."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, eventually
from test_cli_worktrees import Project, project

__all__ = ["project"]

REASON = "no_change: nothing in its worktree differs from the base commit"
NOTHING = {
    "nothing": "true",
    "ignored": "echo x > x.log",
    "reverted": "echo x > f; git add f; git commit -qm f; git rm -q f; git commit -qm back",
    "rewritten": "cp README r; rm README; mv r README; touch README",
    "empty": "git commit -q --allow-empty -m nothing",
    "stashed": "echo x > f; git add f; git stash -q; git stash drop -q",
    "deleted": 'rm -rf "$PWD"',
    "branchless": 'git -C "$SESSIONRUN_REPOSITORY" worktree remove -f "$PWD"; '
    'git -C "$SESSIONRUN_REPOSITORY" branch -qD "$SESSIONRUN_BRANCH"',
}
SOMETHING = {
    "new": "echo x > f",
    "committed": "echo x > f; git add f; git commit -qm f",
    "removed": "rm README",
    "mode": "chmod +x README",
    "forced": "echo x > x.log; git add -f x.log",
    "elsewhere": "echo x > f; git add f; git commit -qm f; git switch -q --detach HEAD~1",
    "nested": "git init -q inner; echo in > inner/f",
}


def tasks_of(view: dict[str, Any]) -> Iterator[tuple[str, str, str | None]]:
    return ((task["id"], task["outcome"], task["reason"]) for task in view["tasks"])


@pytest.mark.slow
def test_what_is_no_change_and_what_is_one(project: Project) -> None:
    """It is retried and skips who needs it; a check that fails says more."""
    prompts = [{"id": name, "prompt": prompt} for name, prompt in (NOTHING | SOMETHING).items()]
    more = [
        {"id": "second", "prompt": '[ "$SESSIONRUN_ATTEMPT" = 1 ] || echo x > f', "retries": 1},
        {"id": "after", "prompt": "echo x > g", "needs": next(iter(NOTHING))},
        {"id": "checked", "prompt": "true", "check": "false"},
    ]
    session = project.finish([*prompts, *more], "--expect-change")
    expected = {
        **dict.fromkeys(NOTHING, ("failed", REASON)),
        **dict.fromkeys(SOMETHING, ("succeeded", None)),
    }
    view = project.status(session)
    tasks, (second, after, checked) = view["tasks"][: -len(more)], view["tasks"][-len(more) :]
    assert {name: (outcome, reason) for name, outcome, reason in tasks_of({"tasks": tasks})} == expected
    assert {task["reason_class"] for task in tasks} == {None, "no_change"}
    assert view["failed"] == len(NOTHING) + 1
    assert (second["outcome"], second["attempt"], second["diff_stat"]["files"]) == ("succeeded", 2, 1)
    assert after["outcome"] == "skipped"
    assert checked["reason_class"] == "check_failed"
    assert project("doctor", session).returncode == 0, "a replay says the same"


@pytest.mark.slow
def test_who_asks_for_it(project: Project) -> None:
    """The command line and `defaults` for all, each task for itself; nobody by default."""
    asks = [{"id": "yes", "prompt": "true", "expect_change": True}, {"id": "no", "prompt": "true"}]
    outcomes = {name: outcome for name, outcome, _ in tasks_of(project.status(project.finish(asks)))}
    assert outcomes == {"yes": "failed", "no": "succeeded"}
    excused = [{"id": "a", "prompt": "true", "expect_change": False}, {"id": "b", "prompt": "exit 3"}]
    for words, top in ((("--expect-change",), {}), ((), {"defaults": {"expect_change": True}})):
        view = project.status(project.finish({"prompts": excused, **top}, *words))
        assert list(tasks_of(view)) == [("a", "succeeded", None), ("b", "failed", "exit_code: exit code 3")]


def test_it_needs_a_worktree(sessionrun: Command) -> None:
    done = sessionrun("--agent", "shell", "--expect-change", stdin='[{"id": "a", "prompt": "true"}]')
    assert (done.returncode, done.stdout) == (2, "")
    what = "expect_change needs a worktree; add --worktree, or leave it out"
    assert done.stderr == f"sessionrun: error: task 1 (ID: a): {what}\n"
    assert not sessionrun.results.exists()


@pytest.mark.slow
def test_its_worktree_is_one_of_a_failed_task(project: Project) -> None:
    """Ignored files may show what went wrong: where those of failed tasks are kept, this one is."""
    plan = [{"id": "a", "prompt": "echo why > a.log"}, {"id": "b", "prompt": "echo x > f"}]
    view = project.status(project.finish(plan, "--expect-change", "--keep-worktree", "on-failure"))
    kept, gone = view["tasks"]
    assert (Path(kept["worktree"]) / "a.log").read_text() == "why\n"
    assert (kept["outcome"], gone["outcome"], gone["worktree"]) == ("failed", "succeeded", None)


def test_a_supervisor_that_dies_meanwhile_changes_nothing(project: Project) -> None:
    plan = [{"id": "a", "prompt": "touch ../../begun; while ! [ -e ../../go ]; do sleep 0.2; done"}]
    session = project.start(plan, "--worktree", "--expect-change")
    eventually((project.cwd.parent / "begun").exists)
    os.kill(project.supervisor(session), signal.SIGKILL)
    (project.cwd.parent / "go").touch()
    assert list(tasks_of(project.wait(session))) == [("a", "failed", REASON)]

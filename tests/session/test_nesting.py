"""Sessions that tasks launch: a tree in `list`, one cancel for all of it, bounds of depth and cost."""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Command, eventually
from simulation import make_session

from sessionrun.client.launch import find_parent, settle_nesting
from sessionrun.client.lookup import arrange
from sessionrun.client.notices import SessionWarning
from sessionrun.model.errors import InputError
from sessionrun.model.spec import Limits, Parent
from sessionrun.store.session import SessionDir

PROGRAM = f"{shlex.quote(sys.executable)} -m sessionrun"
JOB = {"SESSIONRUN_JOB": "outer/a/1/1/work/1"}


def launch(command: str, *words: str) -> str:
    """The command of a task that launches a session of one task, and then stays."""
    return f"{PROGRAM} -q --agent shell {' '.join(words)} -p {shlex.quote(command)}; sleep 600"


def names_of(sessionrun: Command) -> dict[str, str]:
    """The sessions that are there: how each stands, by its name."""
    return {view["name"]: view["status"] for view in sessionrun.load("list")["sessions"]}


def test_a_tree_is_shown_and_cancelled(sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSIONRUN_RESULTS_DIR", str(sessionrun.results))
    leaf = launch("sleep 600", "--name", "leaf")
    plan = {
        "prompts": [
            {"id": "a", "prompt": launch(leaf, "--name", "inner")},
            {"id": "b", "prompt": launch("sleep 600", "--name", "beside")},
        ]
    }
    outer = sessionrun.start(plan, "--name", "outer")
    eventually(lambda: set(names_of(sessionrun)) == {"outer", "inner", "leaf", "beside"})
    lines = sessionrun("list").stdout.splitlines()[1:]
    shown = [re.findall(r"^running(?: \(.*\))?  ( *)(\w+) ", line)[0] for line in lines]
    assert sorted(shown[1:]) == [("  ", "beside"), ("  ", "inner"), ("    ", "leaf")]
    assert shown[0] == ("", "outer") and shown.index(("    ", "leaf")) == shown.index(("  ", "inner")) + 1
    views = {view["name"]: view for view in sessionrun.load("list")["sessions"]}
    assert views["inner"]["parent"] == {"session_id": outer, "task": "a", "depth": 1}
    assert views["leaf"]["parent"]["depth"] == 2
    assert f"Parent: session {outer}, task a" in sessionrun("status", "inner").stdout.splitlines()

    done = sessionrun("cancel", outer, "a", "--tree", "--json")
    assert done.returncode == 0, done.stderr
    ended = {view["name"]: view["status"] for view in json.loads(done.stdout)["sessions"]}
    assert ended == {"outer": "running", "inner": "cancelled", "leaf": "cancelled"}
    assert names_of(sessionrun)["beside"] == "running"

    assert sessionrun("cancel", outer, "--tree").returncode == 0
    assert set(names_of(sessionrun).values()) == {"cancelled"}
    sessions = [SessionDir(sessionrun.directory(view["session_id"])) for view in views.values()]
    eventually(lambda: not any(session.is_alive() for session in sessions))


def test_a_job_is_the_parent_of_what_it_launches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    spec = make_session([])
    assert settle_nesting(spec, {}) is spec
    nested = settle_nesting(spec, {**JOB, "SESSIONRUN_DEPTH": "3"})
    assert nested.parent == Parent("outer", "a", 3)
    assert settle_nesting(nested, {}).parent is None, "a session tried again by its user is nested no more"
    with pytest.raises(InputError, match="would be 4 deep"):
        settle_nesting(spec, {**JOB, "SESSIONRUN_DEPTH": "4"})
    Path("sessionrun.toml").write_text("max_depth = 1\n")
    with pytest.raises(InputError, match="would be 2 deep, but max_depth is 1"):
        settle_nesting(spec, {**JOB, "SESSIONRUN_DEPTH": "2"})
    for marker in ("", "x", "/a/1", "s/", "s//1"):
        assert find_parent({"SESSIONRUN_JOB": marker}) is None
    for depth in ("", "-1", "x", "9" * 40):
        assert find_parent({**JOB, "SESSIONRUN_DEPTH": depth}) == Parent("outer", "a", 1)


@pytest.mark.parametrize(
    ("asked", "has", "settled"),
    [
        (Limits(), "0.5", Limits(budget_usd=0.5)),
        (Limits(budget_usd=0.2), "0.5", Limits(budget_usd=0.2)),
        (Limits(budget_usd=2, soft_budget_usd=1), "0.5", Limits(budget_usd=0.5, soft_budget_usd=0.5)),
        (Limits(budget_usd=2), None, Limits(budget_usd=2)),
        (Limits(budget_usd=2), "none", Limits(budget_usd=2)),
        (Limits(), "nan", Limits()),
    ],
)
def test_the_budget_of_the_job_bounds_it(asked: Limits, has: str | None, settled: Limits) -> None:
    environ = {**JOB, **({} if has is None else {"SESSIONRUN_BUDGET_USD": has})}
    spec = replace(make_session([]), limits=asked)
    if asked.budget_usd is not None and asked.budget_usd > (settled.budget_usd or 0):
        with pytest.warns(SessionWarning, match=r"the budget is \$0\.5,"):
            assert settle_nesting(spec, environ).limits == settled
    else:
        assert settle_nesting(spec, environ).limits == settled


def test_sessions_are_arranged_below_those_that_launched_them() -> None:
    def view(name: str, parent: str | None = None) -> dict[str, object]:
        return {"session_id": name, "parent": parent and {"session_id": parent, "task": "t", "depth": 1}}

    views = [view("new"), view("b", "a"), view("gone", "nowhere"), view("c", "b"), view("d", "a"), view("a")]
    arranged = arrange(views)
    places = [(depth, one["session_id"]) for depth, one in arranged]
    assert places == [(0, "new"), (0, "gone"), (0, "a"), (1, "b"), (2, "c"), (1, "d")]
    circle = [view("x", "y"), view("y", "x"), view("z", "z")]
    assert sorted(str(one["session_id"]) for _, one in arrange(circle)) == ["x", "y", "z"]

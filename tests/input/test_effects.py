"""Options that would do nothing to an input are refused; all others, and what is only a default, are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from sessionrun.cli import run
from sessionrun.client.planning.plan import Planned
from sessionrun.client.planning.plan import plan as plan_input
from sessionrun.input.rows import SETTINGS


@pytest.fixture
def place(own_place: Path) -> Path:
    """A configuration with an agent `ai` that asks a model, and `mute`, a text agent without options."""
    (own_place / "sessionrun.toml").write_text(
        '[agents.ai]\nargv = ["true"]\noutput = "claude"\nmodel_args = ["-m", "{model}"]\napprove_args = ["-y"]\n'
        '[agents.mute]\nargv = ["true"]\n'
    )
    return own_place


def plan(*tasks: dict[str, Any], **said: Any) -> Any:
    Path("p.json").write_text(json.dumps([{"prompt": "true", **task} for task in tasks]))
    planned = plan_input("p.json", said)
    assert isinstance(planned, Planned)
    return planned.spec


SCRIPT = {"agent": "shell"}
AI = {"agent": "ai"}
COUNTS: list[dict[str, Any]] = [
    {"model": "m"},
    {"fallback": ["ai"]},
    {"timeout_s": 5.0},
    {"idle_timeout_s": 5.0},
    {"budget_usd": 1.0},
    {"soft_budget_usd": 1.0},
    {"task_budget_usd": 1.0},
    {"approve": False},
    {"envelope": True},
    {"auto_release": False},
]
"""Options that tests/data/refusals.json shows to have no effect where no task takes them."""


@pytest.mark.parametrize("said", COUNTS, ids=str)
def test_one_task_for_which_it_counts_is_enough(place: Path, said: dict[str, Any]) -> None:
    tasks: list[dict[str, Any]] = [
        SCRIPT,
        AI,
        {**AI, "model": "n", "timeout": 3, "idle_timeout": 3, "fallback": "mute", "budget_usd": 1},
    ]
    assert plan(*tasks, **said).tasks


@pytest.mark.parametrize("said", [{"approve": True}, {"timeout_s": 0.0}, {"stop_on_fail": True}, {"agent": "ai"}])
def test_what_holds_anyhow_may_be_said(place: Path, said: dict[str, Any]) -> None:
    assert plan(SCRIPT, **said).tasks


ELSEWHERE = {
    "base": "planning refuses it without worktrees",
    "worktree_dir": "planning refuses it without worktrees",
    "keep": "planning refuses it without worktrees",
    "rerun": "planning refuses it without a results file",
    "land": "planning refuses it without worktrees",
    "land_into": "planning refuses it without landing",
    "gates": "planning refuses it without landing",
    "title": "refused without a prompt on the command line",
    "halt": "planning refuses it where no number of failures stops the session",
    "mends": "planning refuses it without landing",
    "expect_change": "refused for each task without a worktree",
    "prove": "refused for each task without a worktree or a check",
    "sandbox": "refused for each task without a worktree",
    **{row.name: f"planning refuses it in another format than {row.format}" for row in SETTINGS if row.format},
}

ALWAYS = {
    "agent": "names the session's agent, also where all tasks have their own",
    "max_parallel": "limits any session",
    "name": "names any session",
    "labels": "label any session",
    "dialect": "says how any input is read",
    "stop_on_fail": "holds for any session, also of one task",
    "prompts": "are the input",
    "each": "has an effect, or is refused",
    "env": "adds to the variables that tasks have",
    "defaults": "say what tasks have that say nothing themselves",
    "max_failures": "holds for any session, also of one task",
    "hold": "holds for any session",
    "starts_at": "holds for any session",
    "notify": "holds for any session",
    "cluster": "holds for any session",
    "slurm": "refused without a cluster of Slurm's",
    "max_load": "holds for any session, also of one task",
    "min_free_memory": "holds for any session, also of one task",
    "stagger_s": "holds for any session: a task may be added, or tried again",
    "ready": "a caller may always forbid the question",
    "into": "names the session to which any input is added",
    "sync": "holds for any session",
    "dry_run": "holds for any session",
    "verbose": "says more of any session",
    "quiet": "says less of any session",
    "as_json": "holds for any session",
    "results_dir": "is where any session is kept",
    "help_all": "only prints",
}
"""Options that are never refused, and why."""


def test_every_option_of_run_is_decided() -> None:
    named = {param.name for param in run.command.params if isinstance(param, click.Option)}
    checked = {row.name for row in SETTINGS if row.idle is not None}
    tables = [checked, set(ELSEWHERE), set(ALWAYS)]
    assert set.union(*tables) == named
    assert sum(map(len, tables)) == len(named)

"""What the command line of `run` says beside the tasks themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from sessionrun.model.places import KeepPolicy
from sessionrun.model.spec import Halt


class Asked(NamedTuple):
    """The options, each by the name of its parameter; None means that it was not given.

    Budgets are in US dollars.  `own` are the options that only one input format has.  Landing is on the branch of
    the session without `land_into`.  0 means that there is no such limit.
    """

    agent: str | None = None
    model: str | None = None
    max_parallel: int | None = None
    timeout_s: float | None = None
    name: str | None = None
    labels: tuple[str, ...] = ()
    approve: bool | None = None
    envelope: bool = False
    dialect: str | None = None
    idle_timeout_s: float | None = None
    expect_change: bool = False
    prove: bool = False
    fallback: tuple[str, ...] = ()
    auto_release: bool = True
    rerun: bool = False
    include_stuck: bool = False
    only: tuple[str, ...] = ()
    stop_on_fail: bool = False
    own: Mapping[str, Any] = {}
    worktree: bool = False
    base: str | None = None
    worktree_dir: Path | None = None
    keep: KeepPolicy | None = None
    cache_dir: Path | None = None
    require_cache: bool | None = None
    sandbox: str | None = None
    budget_usd: float | None = None
    soft_budget_usd: float | None = None
    task_budget_usd: float | None = None
    land: bool = False
    land_into: str | None = None
    gates: tuple[str, ...] = ()
    mends: int | None = None
    halt: Halt | None = None
    max_load: float | None = None
    min_free_memory: int | None = None
    stagger_s: float | None = None
    starts_at: float | None = None
    max_failures: int | None = None
    notify: tuple[str, ...] = ()
    cluster: str | None = None
    slurm: tuple[str, ...] = ()


_SPELLED: Final = {
    "labels": "--label",
    "starts_at": "--at",
    "slurm": "--slurm-option",
    "keep": "--keep-worktree",
    "gates": "--gate",
    "only": "--job",
    "include_stuck": "--resume",
    "approve": "--no-yolo",
    "auto_release": "--no-auto-release",
}


def spell(name: str) -> str:
    """The option whose parameter has this name; of a flag the word that says no, if that is what is not usual."""
    return _SPELLED.get(name) or f"--{name.removesuffix('_s').removesuffix('_usd').replace('_', '-')}"

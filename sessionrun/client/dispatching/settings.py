"""What a dispatch is asked for, settled: the command line wins over the configuration file, that over defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from sessionrun.agents import table
from sessionrun.client.config import Config, load_config
from sessionrun.client.dispatching.configuration import (
    FRAME,
    MENDS,
    find_configuration,
    load_configuration,
    load_frame,
)
from sessionrun.input.kinds import Misfit
from sessionrun.model.cluster import SLURM
from sessionrun.model.errors import InputError
from sessionrun.model.feeding import FeedSpec
from sessionrun.model.frozen import frozen
from sessionrun.model.places import Placement
from sessionrun.queue.place import find_place
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.repository import locate

WORKERS: Final = 14
AGENT: Final = "aider"
MODEL: Final = "ollama/qwen2.5-coder:7b"
RETRIES: Final = 2
TIMEOUT_S: Final = 1800.0


@frozen
class Settings:
    """A dispatch.

    Attributes:
        top: the top of the repository, which has the queue (absolute).
        source: the configuration file.
        feed: what the session takes from the queue; its place, and what keeps it, are known once that is open.
        branch: on which the work lands, and where it begins; None: the current one.
        branch_source: the key of the configuration file that names it; None: it was named elsewhere.
        program: what starts the agent, in place of its usual program.
        gates: commands that have to exit 0 before work lands.
        checks: commands that have to exit 0 after each attempt at a task.
        timeout_s: of an attempt (seconds); 0: none.
        expect_change: whether a task that changes nothing has failed: to say that it could not closes no task.
        lands: whether work lands by itself.
        mends: how often a conflict is mended by a task of the session.
        frame: the prompt around each task.
        takes_back: whether claims of sessions that are gone are taken back.
        cluster: the address of the cluster that runs the jobs, as of `open_cluster`, or `SLURM`.
    """

    top: Path
    source: Path | None = None
    feed: FeedSpec = FeedSpec("", "")
    branch: str | None = None
    branch_source: str | None = None
    workers: int = WORKERS
    agent: str | None = None
    model: str | None = None
    program: tuple[str, ...] = ()
    name: str | None = None
    labels: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    gate_timeout_s: float | None = None
    checks: tuple[str, ...] = ()
    retries: int = RETRIES
    timeout_s: float = TIMEOUT_S
    expect_change: bool = True
    lands: bool = True
    mends: int = MENDS
    placement: Placement = "inside"
    prefix: str | None = None
    takes_back: bool = True
    frame: str = FRAME
    cluster: str | None = None

    @property
    def on_nodes(self) -> bool:
        """Whether worktrees are on nodes of a cluster: there none stays after its task."""
        return self.cluster is not None and self.cluster != SLURM


def settle_dispatch(given: Mapping[str, Any], configuration: Path | None = None) -> Settings:
    """Lay what was given over the configuration file, and that over defaults.

    Args:
        given: values of `Settings` and `FeedSpec` by their names; `prompt_template` is the file of a frame.
        configuration: the file; None: that in the top of the repository, if there is one.

    Raises:
        InputError: there is no repository, or the file cannot be honoured.
    """
    given = dict(given)
    if "prompt_template" in given:
        given["frame"] = _load_frame(given.pop("prompt_template"))
    path = configuration or find_configuration(find_place(Path.cwd()).top)
    values = load_configuration(path) if path is not None else {}
    root = values.get("top", Path.cwd())
    if values.get("agent") not in (None, given.get("agent", values.get("agent"))):
        values = {name: value for name, value in values.items() if name not in ("model", "program")}
    branch_source = f"{path}: branch" if "branch" in values and "branch" not in given else None
    found = {"top": _find_top(root), "source": path, "branch_source": branch_source}
    config = load_config(Path.cwd(), os.environ, table.BUILTIN)
    known = {"cluster": config.values.get("cluster"), **values, **given, **found}
    feed = {field.name: known.pop(field.name) for field in fields(FeedSpec)[1:] if field.name in known}
    settings = Settings(**known, feed=FeedSpec(**{"top": str(found["top"]), "backend": "", **feed}))
    if settings.on_nodes and "placement" in values:
        why = "worktrees that stay are of one machine, and cannot be had on the nodes of a cluster"
        raise InputError(f"{path}: worktree_placement: {why}: leave it out")
    return _choose_agent(settings, config)


def _load_frame(path: Path) -> str:
    try:
        return load_frame(path)
    except Misfit as misfit:
        raise InputError(f"--prompt-template: {misfit.problem}") from None


def _find_top(root: Path) -> Path:
    """The main checkout, where the queue is and from which the worktrees are made."""
    top = find_place(root).top
    locate(Git(top))
    return top


def _choose_agent(settings: Settings, config: Config) -> Settings:
    """The agent and its model, if neither was named here nor in the configuration of `sessionrun`."""
    if settings.agent is None:
        if "agent" in config.values:
            return settings
        settings = replace(settings, agent=AGENT)
    if settings.agent == AGENT and settings.model is None:
        return replace(settings, model=MODEL)
    return settings


def check_branch(settings: Settings) -> None:
    """Refuse a branch that is not there.

    Raises:
        InputError: which, and which there are.
    """
    if settings.branch is None:
        return
    git = Git(settings.top)
    if git.commit_of(f"refs/heads/{settings.branch}") is None:
        known = git.line("for-each-ref", "--count=6", "--format=%(refname:short)", "refs/heads/").split()
        there = f"there are {', '.join(known[:5])}{' ...' * (len(known) > 5)}" if known else "there is none yet"
        where = settings.branch_source or settings.top
        raise InputError(f"{where}: there is no branch {settings.branch!r} to land on; {there}")

"""The records that come out of a dialect: what an input asks for.  Must not know any input format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from sessionrun.model.asked import Sandbox
from sessionrun.model.frozen import frozen
from sessionrun.model.places import KeepPolicy, Placement
from sessionrun.model.spec import Export, Limits, TaskSpec


@frozen
class LandingWish:
    """How work lands, without `into` on the branch where the session begins; and whether it does by itself."""

    into: str | None = None
    gates: tuple[str, ...] = ()
    gate_timeout_s: float | None = None
    batch: int | None = None
    mends: int = 0
    sandbox: Sandbox | None = None
    lands: bool = True


@frozen
class SeatsWish:
    """Worktrees are to stay after their task, for the next one; without `prefix` it follows from the directory."""

    stay: Placement
    prefix: str | None = None


@frozen
class RepositoryWish:
    """What the input says of the repository and its worktrees; flags beat it, None = not said.

    `path` (absolute) lies in the repository.  `keys` are what the input calls what the flags named there say, for
    messages.  Mirrors of other repositories are in `cache_dir`, unless the configuration says where.
    """

    path: str | None = None
    base: str | None = None
    worktree_dir: str | None = None
    keep: KeepPolicy | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    cache_dir: str | None = None


@frozen
class Plan:
    """What the input asks for, before agents are looked up; no tasks where there is nothing to do (any more).

    `task.agent` is "" where none was named, and `agent` is then None.  All levels (task, flag, input,
    fallback) are already settled; `max_parallel` None means unlimited.  `warnings` are lines for people.
    `approve` and `require_cache` give way to the flags; None = not said.  `optional_links` (absolute) are
    links of all tasks, as far as there is something to link to.  With `feed`, values of a `FeedSpec`, the
    tasks come from the queue there, and the one task is what each of them is made of; `frame_file` (absolute) has
    its prompt.  `programs` start an agent in place of its own program, by its name.  `places` are where the tasks
    stand in the input, for messages; none where a task has no place of its own there.
    """

    tasks: tuple[TaskSpec, ...]
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, int] = field(default_factory=dict)
    max_parallel: int | None = None
    limits: Limits = field(default_factory=Limits)
    auto_release: bool = True
    agent: str | None = None
    agent_reason: str = "asked for"
    approve: bool | None = None
    repository: RepositoryWish = RepositoryWish()
    landing: LandingWish | None = None
    seats: SeatsWish | None = None
    exports: tuple[Export, ...] = ()
    optional_links: tuple[str, ...] = ()
    require_cache: bool | None = None
    warnings: tuple[str, ...] = ()
    feed: Mapping[str, Any] | None = None
    frame_file: str | None = None
    programs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    places: tuple[str, ...] = field(default=(), compare=False)

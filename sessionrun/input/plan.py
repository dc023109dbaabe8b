"""The records that go into a dialect and come out of it.

They are what the command line and the dialects agree on; this module must not know any input format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from sessionrun.model.frozen import frozen
from sessionrun.model.places import KeepPolicy, Placement
from sessionrun.model.sandbox import Sandbox
from sessionrun.model.spec import LINGER_S, Alternative, Export, Limits, TaskSpec, WorkspaceKind


@frozen
class Folder:
    """A directory of files that are one input together.

    `files` are those that may belong to it, by name; `name` is the directory as it was typed; `directory` and
    `project`, from where its paths count, are absolute.  `settings` is the project's ``worksplit.toml``.  `only`
    names the one file that was asked for, if it was one.
    """

    name: str
    directory: str
    project: str
    files: Mapping[str, bytes] = field(repr=False)
    settings: bytes | None = field(default=None, repr=False)
    only: str | None = None


@frozen
class Source:
    """One input as the command line read it.

    `name` is the file as it was typed, or ``stdin``; messages begin with it.  Relative paths in the input
    count from `directory` (absolute): that of the file, or where the command was started for standard input.
    Formats of other programs may count them from where the command was started: `started_in`.
    `folder` is what lies around it, where it is a directory or a file that belongs to one.
    """

    name: str
    text: bytes = field(repr=False)
    directory: str
    started_in: str = ""
    folder: Folder | None = None


@frozen
class Fallback:
    """What environment variables and configuration files say: it counts only where the input is silent.

    `max_parallel`, `timeout_s`, `idle_timeout_s` and `linger_s` (seconds) 0 mean "no limit", None "not said".
    """

    agent: str | None = None
    model: str | None = None
    max_parallel: int | None = None
    timeout_s: float | None = None
    idle_timeout_s: float | None = None
    linger_s: float = LINGER_S


@frozen
class Options:
    """What the command line says; None means "not said".

    A flag is the session's default: it beats the input's top level and ``defaults``, and gives way to what
    one task says for itself.  `name` and each of `labels` beat those of the input.  `max_parallel`,
    `timeout_s` and `idle_timeout_s` (seconds) 0 mean "no limit".

    Where the input keeps account of what ran before: `rerun` takes what has ended, too, `include_stuck` what was
    begun and did not end, and `only` nothing but these, whatever became of them.

    `others` are ids of tasks of a running session to which these are added: a task may need them, too.

    `stamp` is the moment of the launch, as a part of names.  `own` are the options that only this format has (see
    `own_options`), as far as they were given.  `keys` are fields of tasks, as a plan's ``defaults`` give them.
    """

    agent: str | None = None
    model: str | None = None
    max_parallel: int | None = None
    timeout_s: float | None = None
    idle_timeout_s: float | None = None
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    envelope: bool = False
    workspace: WorkspaceKind | None = None
    alternatives: tuple[Alternative, ...] = ()
    auto_release: bool = True
    expect_change: bool = False
    prove: bool = False
    rerun: bool = False
    include_stuck: bool = False
    only: tuple[str, ...] = ()
    others: frozenset[str] = frozenset()
    stamp: str = ""
    own: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    fallback: Fallback = Fallback()


@frozen
class LandingWish:
    """Work is to land by itself; without `into` on the branch where the session begins."""

    into: str | None = None
    gates: tuple[str, ...] = ()
    gate_timeout_s: float | None = None
    batch: int | None = None
    mends: int = 0
    sandbox: Sandbox | None = None


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
    `approve` and `require_cache` give way to the flags; None = not said.  `places` tells, for messages, where a
    path of a task is named, by the task's id and the path.  `optional_links` (absolute) are
    links of all tasks, as far as there is something to link to.
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
    places: Mapping[tuple[str, str], str] = field(default_factory=dict)

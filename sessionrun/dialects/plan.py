"""The records that go into a dialect and come out of it.

They are what the command line and the dialects agree on; this module must not know any input format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sessionrun.model import Limits, TaskSpec, WorkspaceKind


@dataclass(frozen=True, slots=True)
class Source:
    """One input as the command line read it.

    `name` is the file as it was typed, or ``stdin``; messages begin with it.  Relative paths in the input
    count from `directory` (absolute): that of the file, or where the command was started for standard input.
    """

    name: str
    text: bytes = field(repr=False)
    directory: str


@dataclass(frozen=True, slots=True)
class Fallback:
    """What environment variables and configuration files say: it counts only where the input is silent.

    `max_parallel` and `timeout_s` (seconds) 0 mean "no limit", None "not said".
    """

    agent: str | None = None
    model: str | None = None
    max_parallel: int | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says; None means "not said".

    A flag is the session's default: it beats the input's top level and ``defaults``, and gives way to what
    one task says for itself.  `name` and each of `labels` beat those of the input.  `max_parallel` and
    `timeout_s` (seconds) 0 mean "no limit".
    """

    agent: str | None = None
    model: str | None = None
    max_parallel: int | None = None
    timeout_s: float | None = None
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    approve: bool = True
    envelope: bool = False
    workspace: WorkspaceKind | None = None
    fallback: Fallback = Fallback()


@dataclass(frozen=True, slots=True)
class Plan:
    """What the input asks for, before agents are looked up.

    `task.agent` is "" where nobody named one, and `agent` is then None.  All levels (task, flag, input,
    fallback) are already settled; `max_parallel` None means unlimited.  `warnings` are lines for people.
    """

    tasks: tuple[TaskSpec, ...]
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, int] = field(default_factory=dict)
    max_parallel: int | None = None
    limits: Limits = field(default_factory=Limits)
    agent: str | None = None
    warnings: tuple[str, ...] = ()

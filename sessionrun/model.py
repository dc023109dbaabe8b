"""Frozen records that every part shares: what a session is, before anything runs.

A dialect makes a `SessionSpec`; nothing behind it knows which input it came from.  The records are plain
data: `spec_from_record(orjson.loads(orjson.dumps(spec)))` gives an equal spec.  This module must not know
files, clocks or processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, NamedTuple, TypeVar

from sessionrun.errors import InputError

SCHEMA_VERSION: Final = 1

Phase = Literal["prepare", "setup", "work", "check", "land", "release"]
PHASES: Final[tuple[Phase, ...]] = ("prepare", "setup", "work", "check", "land", "release")

Outcome = Literal["succeeded", "failed", "timed_out", "cancelled", "skipped", "lost", "interrupted"]
OUTCOMES: Final[tuple[Outcome, ...]] = (
    "succeeded",
    "failed",
    "timed_out",
    "cancelled",
    "skipped",
    "lost",
    "interrupted",
)

OutputFormat = Literal["text", "claude", "codex", "qwen", "gemini", "opencode", "aider"]
WorkspaceKind = Literal["none", "worktree", "slot", "mirror"]
KeepPolicy = Literal["always", "on-failure", "never"]
KEEP_POLICIES: Final[tuple[KeepPolicy, ...]] = ("always", "on-failure", "never")

SLOT: Final = "slot"
"""The resource that `max_parallel` limits."""

WORKTREE_PREFIX: Final = "worktree:"
"""Resources of this prefix, like `SLOT`, are held for a whole task; all others for one job."""


class JobKey(NamedTuple):
    """Names one process of a session, once and for ever."""

    task: str
    attempt: int
    round: int
    phase: Phase
    start: int

    def text(self) -> str:
        """The key as the ledger and `SESSIONRUN_JOB` spell it; ids hold no slash."""
        return f"{self.task}/{self.attempt}/{self.round}/{self.phase}/{self.start}"


def parse_job_key(text: str) -> JobKey:
    """Read what `JobKey.text` wrote.

    Raises:
        ValueError: the text is no job key.
    """
    task, attempt, round_, phase, start = text.split("/")
    if phase not in PHASES:
        raise ValueError(f"unknown phase {phase!r}")
    return JobKey(task, int(attempt), int(round_), phase, int(start))


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """How to start one agent CLI and how to read what it prints.

    `argv[0]` is the program.  The literal elements ``{model_args}`` and ``{approve_args}`` are replaced by
    those lists (or dropped); where they do not stand, the lists are appended.  Inside elements the tokens
    ``{prompt_file}`` and, in `model_args`, ``{model}`` are replaced, in one pass, as text.
    """

    name: str
    argv: tuple[str, ...]
    stdin: Literal["prompt", "none"] = "prompt"
    prompt_kind: Literal["text", "script"] = "text"
    model_args: tuple[str, ...] = ()
    approve_args: tuple[str, ...] = ()
    output: OutputFormat = "text"
    edits: bool = True
    env: Mapping[str, str] = field(default_factory=dict)
    ready: tuple[str, ...] = ()
    stop_grace_s: float = 3.0


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where a task's processes run: the caller's directory, or a place of its own."""

    kind: WorkspaceKind = "none"


@dataclass(frozen=True, slots=True)
class Repository:
    """The git repository that worktrees are made from; all paths absolute.

    `top` is the user's checkout, `common_dir` what its worktrees share; branches are called after
    `base_branch` and begin at `base_commit`; `worktree_dir` holds the worktrees.
    """

    top: str
    common_dir: str
    base_branch: str
    base_commit: str
    worktree_dir: str
    keep: KeepPolicy = "never"


@dataclass(frozen=True, slots=True)
class Check:
    """Shell commands that must all exit 0 before a task's work counts."""

    commands: tuple[str, ...]
    timeout_s: float | None = None
    uses: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Land:
    """Into which branch the work goes, one at a time per `uses` token."""

    target: str
    uses: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """Session-wide stops.  After `max_failures` failed tasks nothing new starts and the rest is skipped."""

    max_failures: int | None = None


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One task as it was asked for."""

    id: str
    prompts: tuple[str, ...]
    title: str | None = None
    agent: str = "shell"
    model: str | None = None
    cwd: str | None = None
    workspace: Workspace = Workspace()
    setup: tuple[str, ...] = ()
    setup_timeout_s: float | None = None
    links: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    uses: Mapping[str, int] = field(default_factory=dict)
    check: Check | None = None
    land: Land | None = None
    rounds: int = 1
    timeout_s: float | None = None
    idle_timeout_s: float | None = None
    retries: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """One session as it was asked for.  Written once, to ``spec.json``."""

    session_id: str
    created_at: str
    dialect: str
    source: str
    cwd: str
    agent: str
    agents: Mapping[str, AgentSpec]
    tasks: tuple[TaskSpec, ...]
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, int] = field(default_factory=dict)
    limits: Limits = Limits()
    open_feed: bool = False
    approve: bool = True
    envelope: bool = False
    repository: Repository | None = None
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class Job:
    """One process, as plain data; all that an executor sees.

    `stdin`, `stdout` and `stderr` are absolute paths; `stdin` None means the null device.  `env` is added to
    the environment of the executor.
    """

    key: JobKey
    argv: tuple[str, ...]
    cwd: str
    stdout: str
    stderr: str
    stdin: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    stop_grace_s: float = 3.0


@dataclass(frozen=True, slots=True)
class Place:
    """A task's workspace in git, as far as PREPARE and RELEASE tell; None = there is no such thing.

    `worktree` is its path while it exists; `commit` holds the work, on `branch` or, where that could not be,
    on `rescue`; `diff_stat` counts files, insertions and deletions against `base_commit`; `kept` is why the
    worktree was not removed.
    """

    branch: str | None = None
    worktree: str | None = None
    base_commit: str | None = None
    commit: str | None = None
    diff_stat: Mapping[str, int] | None = None
    rescue: str | None = None
    kept: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a job's agent says it consumed; None = not said.  Cost in US dollars."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None

    def plus(self, more: Usage) -> Usage:
        """The sum; what only one side says counts alone."""
        return Usage(
            _add(self.input_tokens, more.input_tokens),
            _add(self.output_tokens, more.output_tokens),
            _add(self.cost_usd, more.cost_usd),
        )


_Number = TypeVar("_Number", int, float)


def _add(a: _Number | None, b: _Number | None) -> _Number | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b


WORKTREE_SPACE: Final = "disk:worktrees"
"""Not a token: PREPARE waits while there is a hold of this name, because the disk is nearly full."""


def is_task_span(resource: str) -> bool:
    """Whether a token of this name is held from a task's first job to its end, not just for one job."""
    return resource == SLOT or resource.startswith(WORKTREE_PREFIX)


def title_of(task: TaskSpec) -> str:
    """A one-line title: the task's own, else the beginning of its prompt (50 characters)."""
    if task.title is not None:
        return task.title
    first = " ".join((task.prompts[0] if task.prompts else "").split())
    return first if len(first) <= 50 else first[:50] + "..."


def task_from_record(record: Mapping[str, Any]) -> TaskSpec:
    """Rebuild a task from what spec.json or a TaskAdded record holds."""
    values = dict(record)
    for name in ("prompts", "setup", "links", "needs"):
        if name in values:
            values[name] = tuple(values[name])
    if "workspace" in values:
        values["workspace"] = _from_record(Workspace, values["workspace"])
    if values.get("check"):
        check = dict(values["check"], commands=tuple(values["check"]["commands"]))
        values["check"] = _from_record(Check, check)
    if values.get("land"):
        values["land"] = _from_record(Land, values["land"])
    return _from_record(TaskSpec, values)


def spec_from_record(record: Mapping[str, Any]) -> SessionSpec:
    """Rebuild a session spec from the object in spec.json.

    Raises:
        InputError: the file was written by a newer version.
    """
    version = record.get("schema_version")
    if version != SCHEMA_VERSION:
        raise InputError(f"spec.json has schema_version {version}; this sessionrun reads {SCHEMA_VERSION}")
    values = dict(record)
    values["agents"] = {name: agent_from_record(agent) for name, agent in record["agents"].items()}
    values["tasks"] = tuple(task_from_record(task) for task in record["tasks"])
    if values.get("repository"):
        values["repository"] = _from_record(Repository, values["repository"])
    values["limits"] = _from_record(Limits, record.get("limits", {}))
    return _from_record(SessionSpec, values)


def agent_from_record(record: Mapping[str, Any]) -> AgentSpec:
    """Rebuild an agent from its record."""
    values = dict(record)
    for name in ("argv", "model_args", "approve_args", "ready"):
        if name in values:
            values[name] = tuple(values[name])
    return _from_record(AgentSpec, values)


_Record = TypeVar("_Record")


_NAMES: Final[dict[type[Any], frozenset[str]]] = {
    cls: frozenset(f.name for f in fields(cls))
    for cls in (AgentSpec, Workspace, Repository, Check, Land, Limits, TaskSpec, SessionSpec)
}


def _from_record(cls: type[_Record], values: Mapping[str, Any]) -> _Record:
    """Build a record, leaving out keys that a later version of the same schema added."""
    known = _NAMES[cls]
    return cls(**{name: value for name, value in values.items() if name in known})

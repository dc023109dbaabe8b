"""Frozen records that every part shares: what a session is, before anything runs.

A dialect makes a `SessionSpec`; nothing behind it knows which input it came from.  The records are plain
data, see `store.codec`.  This module must not know files, clocks or processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final, Literal, get_args

from sessionrun.model.asked import Cluster, FeedSpec, Sandbox
from sessionrun.model.checks import AnswerKind, Brief, HiddenTests, ReportUse, Reset
from sessionrun.model.frozen import frozen
from sessionrun.model.keys import JobKey
from sessionrun.model.kinds import Amount, Count, FileName, Money, PathText, Seconds, TaskId, Time
from sessionrun.model.landings import Mend
from sessionrun.model.places import MirrorSite, Repository, Seats, Upstream
from sessionrun.model.words import SCHEMA_VERSION

Outcome = Literal["succeeded", "failed", "timed_out", "cancelled", "skipped", "lost", "interrupted"]
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)

OutputFormat = Literal["text", "claude", "codex", "qwen", "gemini", "opencode", "aider"]
PromptMode = Literal["join", "continue"]
BeginsAt = Literal["needs", "session", "target"]
WorkspaceKind = Literal["none", "worktree", "mirror"]
IN_GIT: Final[tuple[WorkspaceKind, ...]] = ("worktree", "mirror")
"""Workspaces that are worktrees: of the session's repository, or of the mirror of the task's own."""

WORKSPACE_TIMEOUT_S: Final = 600.0
"""How long PREPARE and RELEASE may take each where a new session says nothing else."""

AND_THEN: Final = "\n(exit $?)\n"
"""Between commands: ``sh -e`` alone goes on after a failed ``a && b`` or ``! a``, and would call that passed."""

LINGER_S: Final = 60.0

LeftoversPolicy = Literal["tell", "fail", "keep"]
"""What becomes of processes that work leaves behind: they are stopped and told, and with `fail` the work has
failed; with `keep` they run on until the session ends."""

SLOT: Final = "slot"
"""The resource that `max_parallel` limits."""

WORKTREE_PREFIX: Final = "worktree:"
"""Resources of this prefix, like `SLOT`, are held for a whole task; all others for one job."""


@frozen
class AgentSpec:
    """How to start one agent CLI and how to read what it prints.

    `argv[0]` is the program.  The literal elements ``{model_args}``, ``{approve_args}``, ``{continue_args}`` and
    ``{budget_args}`` are replaced by those lists (or dropped); where they do not stand, the lists are appended.
    Inside elements the tokens ``{prompt_file}`` and, in their lists, ``{model}``, ``{conversation}`` and
    ``{budget}`` (US dollars) are replaced, in one pass, as text.  Agents of the same `provider` (None: the agent's
    name) share an account and its limits.
    """

    name: str
    argv: tuple[PathText, ...]
    stdin: Literal["prompt", "none"] = "prompt"
    prompt_kind: Literal["text", "script"] = "text"
    model_args: tuple[str, ...] = ()
    approve_args: tuple[str, ...] = ()
    continue_args: tuple[str, ...] = ()
    budget_args: tuple[str, ...] = ()
    provider: str | None = None
    output: OutputFormat = "text"
    edits: bool = True
    env: Mapping[str, str] = field(default_factory=dict)
    ready: tuple[str, ...] = ()
    stop_grace_s: Seconds = 3.0


@frozen
class Workspace:
    """Where a task's processes run: the caller's directory, or a place of its own.

    `branch` (in it ``{base}`` is the base branch) and `directory`, a name below the repository's `worktree_dir`,
    are wishes: what is taken gets a number.
    """

    kind: WorkspaceKind = "none"
    branch: str | None = None
    directory: str | None = None


MATRIX_RESULTS: Final = "matrix-results"
JOB_STATUS: Final = "job-status"
INSTANCE_RESULTS: Final = "swebench-results"
"""The kinds of exports."""


@frozen
class Export:
    """A file of another program's format that shows the session while it runs; see `session.exports`.

    `places` are the paths of its files by the settings that name them, links followed; empty before the launch.
    """

    kind: str
    settings: Mapping[str, Any]
    places: Mapping[str, PathText] = field(default_factory=dict)


@frozen
class Check:
    """What must hold before a task's work counts: shell commands that all exit 0, and then a verdict.

    `verify` is the system prompt by which the task's agent judges `files` (paths from the task's directory).
    `reset` says what a further round begins with, `report` whether the reports of test runners count.
    """

    commands: tuple[str, ...]
    timeout_s: Seconds | None = None
    uses: Mapping[str, Amount] = field(default_factory=dict)
    verify: str | None = None
    files: tuple[str, ...] = ()
    reset: Reset = "keep"
    report: ReportUse = "read"


@frozen
class Prove:
    """That a task's check has to pass on what would be landed, in a clean room, and to fail without it.

    With `red` false the check may pass without the work too.  `test_files` are patterns of paths that count as
    tests, `own` patterns of test set-up that belongs to the work.  A check that passes with the work, or fails
    without it, is done `repeat` times in all; `hidden` tests take its place.
    """

    red: bool = True
    test_files: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    repeat: Amount = 2
    hidden: HiddenTests | None = None


EnvironmentKind = Literal["python"]


@frozen
class Environment:
    """What a task's checkout gets to run its project, built once for all whose inputs are the same, then copied.

    `python` is a version as in ``3.11``, or a path; None is the first ``python3`` of PATH.
    """

    kind: EnvironmentKind = "python"
    python: str | None = None


@frozen
class CacheSite:
    """The cache of a session with environments: its absolute path, and whether nothing may be built or fetched."""

    cache_dir: str
    require_cache: bool = False


@frozen
class Landing:
    """Into which branch (its full name) the work of a session's tasks goes by itself, and what must pass before.

    `gates` are shell commands that all have to exit 0, each within `gate_timeout_s`, inside of the walls
    `sandbox`.  At most `batch` tasks are merged and gated together (None: 8, without gates all).  So many tasks in
    a row (`mends`) may mend the work of a task that is bounced.
    """

    target: str
    gates: tuple[str, ...] = ()
    gate_timeout_s: Seconds | None = None
    batch: int | None = None
    mends: int = 0
    sandbox: Sandbox | None = None


Halt = Literal["soon", "now"]
"""What `max_failures` does to tasks that run: they may end, as by default, or are ended at once."""


@frozen
class Limits:
    """Session-wide stops.  After `max_failures` failed tasks nothing new starts and the rest is skipped.

    No work starts that may bring the session over `budget_usd`; when `soft_budget_usd` is spent it is held;
    `task_budget_usd` is for each task.  US dollars, see `engine.money`.  A PREPARE or RELEASE job may take
    `workspace_timeout_s`; None means no limit.

    With `halt` ``now`` tasks that run are ended, too, when `max_failures` tasks have failed.  No PREPARE, SETUP or
    WORK starts while the load of the machine is above `max_load`, or its free memory below `min_free_memory`
    (bytes).  Between two starts of WORK lie at least `stagger_s`.  Nothing starts before `starts_at`
    (seconds since the epoch).
    """

    max_failures: int | None = None
    budget_usd: Money | None = None
    soft_budget_usd: Money | None = None
    task_budget_usd: Money | None = None
    workspace_timeout_s: Seconds | None = None
    halt: Halt | None = None
    max_load: float | None = None
    min_free_memory: int | None = None
    stagger_s: Seconds | None = None
    starts_at: float | None = None


@frozen
class Price:
    """US dollars for a million tokens; input from a cache costs as other input where `cached_input` is None."""

    input: Money
    output: Money
    cached_input: Money | None = None


@frozen
class Alternative:
    """Another agent, and its model, for a task whose own cannot do it."""

    agent: str
    model: str | None = None


@frozen
class TaskSpec:
    """One task as it was asked for.

    With a worktree it begins where its needs ended; with the `base` ``session`` where the session begins; with
    ``target`` where the branch on which the session lands is when it starts, with what its needs left.

    `fallback` are the agents that take over, one after the other, when WORK fails for a reason class of
    `fallback_on` (empty: the usual ones, see `words.FALLBACK_ON`).  With `expect_change` work that changes
    nothing in its worktree has failed.  `args` are added to those of its agent, not of one that takes over; in
    them ``{task_dir}`` is a folder for the agent's files, one for each task.  `upstream` is there if the workspace
    is a mirror; `cwd` is then a path below the worktree.

    Of tasks that are ready the one with the bigger `priority` goes first, then the place in the plan decides.

    `timeout_s` is for an attempt, `round_timeout_s` for WORK and CHECK of one round.  `answer` says what the
    agent's answer is where the task has no brief; None: what the agent suggests, see `answers_with_patch`.
    """

    id: TaskId
    prompts: tuple[str, ...]
    prompt_mode: PromptMode = "join"
    title: str | None = None
    agent: str = "shell"
    model: str | None = None
    args: tuple[str, ...] = ()
    cwd: PathText | None = None
    workspace: Workspace = Workspace()
    upstream: Upstream | None = None
    environment: Environment | None = None
    setup: tuple[str, ...] = ()
    setup_timeout_s: Seconds | None = None
    links: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    base: BeginsAt = "needs"
    uses: Mapping[str, Amount] = field(default_factory=dict)
    check: Check | None = None
    prove: Prove | None = None
    rounds: Amount = 1
    timeout_s: Seconds | None = None
    round_timeout_s: Seconds | None = None
    idle_timeout_s: Seconds | None = None
    linger_s: Seconds | None = LINGER_S
    leftovers: LeftoversPolicy = "tell"
    retries: Count = 0
    priority: int = 0
    fallback: tuple[Alternative, ...] = ()
    fallback_on: tuple[str, ...] = ()
    expect_change: bool = False
    budget_usd: Money | None = None
    brief: Brief | None = None
    answer: AnswerKind | None = None
    mend: Mend | None = None
    sandbox: Sandbox | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def choices(self) -> tuple[Alternative, ...]:
        """Its agent, and those that may take over, in their order."""
        return (Alternative(self.agent, self.model), *self.fallback)


@frozen
class SessionSpec:
    """One session as it was asked for.  Written once, to ``spec.json``.

    Without `auto_release` a usage limit holds its provider until a user releases it, not until the limit ends.
    With a `feed` tasks come while it runs, each made of `template`.  `notify` are commands and web addresses.
    `parent` is there if a job of another session launched it, `cluster` if its jobs run elsewhere.
    """

    session_id: FileName
    created_at: Time
    dialect: str
    source: str
    cwd: PathText
    agent: str
    agents: Mapping[str, AgentSpec]
    tasks: tuple[TaskSpec, ...]
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, Amount] = field(default_factory=dict)
    limits: Limits = Limits()
    open_feed: bool = False
    feed: FeedSpec | None = None
    template: TaskSpec | None = None
    approve: bool = True
    envelope: bool = False
    auto_release: bool = True
    repository: Repository | None = None
    landing: Landing | None = None
    seats: Seats | None = None
    mirrors: MirrorSite | None = None
    cache: CacheSite | None = None
    prices: Mapping[str, Price] = field(default_factory=dict)
    exports: tuple[Export, ...] = ()
    notify: tuple[str, ...] = ()
    parent: Parent | None = None
    cluster: Cluster | None = None
    schema_version: int = SCHEMA_VERSION


@frozen
class Job:
    """One process, as plain data; all that an executor sees.

    `stdin`, `stdout` and `stderr` are absolute paths; `stdin` None means the null device.  `env` is added to
    the environment of the executor.  With `keeps`, processes that it leaves behind run on.
    """

    key: JobKey
    argv: tuple[str, ...]
    cwd: str
    stdout: str
    stderr: str
    stdin: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    stop_grace_s: Seconds = 3.0
    keeps: bool = False


WORKTREE_SPACE: Final = "disk:worktrees"
WALLS_PREFIX: Final = "walls:"
"""No tokens: PREPARE waits while there is such a hold: the disk is nearly full, or no node can build its walls."""

PROVIDER_PREFIX: Final = "provider:"
"""Holds of this prefix keep the agents of one provider from starting; as a resource it limits how many work."""


def is_task_span(resource: str) -> bool:
    """Whether a token of this name is held from a task's first job to its end, not just for one job."""
    return resource == SLOT or resource.startswith(WORKTREE_PREFIX)


def hides_tests(task: TaskSpec) -> bool:
    """Whether tests that its agent does not see judge the task."""
    return task.prove is not None and task.prove.hidden is not None


def answers_with_patch(task: TaskSpec, agent: AgentSpec) -> bool:
    """Whether the agent's answer is a diff that CHECK applies.

    If the task does not say so: of an agent that does not edit, in a worktree whose work a CHECK is to try.
    """
    if task.brief is not None:
        return False
    if task.answer is not None:
        return task.answer == "patch"
    return not agent.edits and task.workspace.kind in IN_GIT and bool(task.check and task.check.commands)


def title_of(task: TaskSpec) -> str:
    """A one-line title: the task's own, else the beginning of its prompt (50 characters)."""
    if task.title is not None:
        return task.title
    first = " ".join((task.prompts[0] if task.prompts else "").split())
    return first if len(first) <= 50 else first[:50] + "..."


RETRY_FAILED: Final[tuple[Outcome, ...]] = ("failed", "timed_out")

RETRY_LOST: Final[tuple[Outcome, ...]] = ("lost", "interrupted")
"""What `retry` means by tasks that failed, and by tasks that were lost; without a choice it means both."""

DEPTH_VARIABLE: Final = "SESSIONRUN_DEPTH"
"""How deep a session is that this job launches: 1 if the job's own session was launched by no job."""

BUDGET_VARIABLE: Final = "SESSIONRUN_BUDGET_USD"
"""The most that a session may cost which this job launches (US dollars); not there: no limit."""

MAX_DEPTH: Final = 3
"""How deep sessions may be if no setting says otherwise."""


@frozen
class Parent:
    """The session and the task whose job launched a session; for `depth` see `DEPTH_VARIABLE`."""

    session_id: str
    task: str
    depth: int = 1


TURN_LOOKS: Final = 4
"""So often in its time a workspace job is looked at until it has its turn; from there on the time counts."""


def turn_deadline(limits: Limits, now: float, printed: int) -> float | None:
    """When a workspace job is looked at next (monotonic): it prints something (bytes) once it has its turn.

    Its time limit counts from that turn (see `session.job`).
    """
    limit = limits.workspace_timeout_s
    if not limit:
        return None
    return now + (limit if printed else limit / TURN_LOOKS)

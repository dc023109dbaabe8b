"""What status.json, its summary and the verbs show of a session and of its tasks; the sentence stands at the key.

All that knows these keys has them from here: the short forms by the classes that a task and a session are made of,
JSON Schemas by `client.schemas`, the tables of sessionrun-files(5) by `tests.manual`.  What stands in an
annotation is not imported, for a poll reads this module, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

from sessionrun.model.words import LandWord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sessionrun.model.checks import Counts, Note, ProofVerdict
    from sessionrun.model.kinds import Count, DiffStat, FileName, PathText, Time
    from sessionrun.model.places import Leftover, MadeEnvironment
    from sessionrun.model.spec import Outcome
    from sessionrun.model.usage import CostSource
    from sessionrun.model.words import Result, State, Word

PhaseWord = Literal[
    "queued",
    "preparing",
    "initializing",
    "running",
    "checking",
    "parking",
    "proving",
    "landing",
    "releasing",
]

# --- parts of sessions and of tasks ---


class Usage(TypedDict):
    """What agents say they consumed."""

    input_tokens: Count | None
    cached_input_tokens: Count | None
    """Those of the input tokens that came from a cache."""
    output_tokens: Count | None
    cost_usd: float | None
    """US dollars."""
    cost_source: CostSource | None
    """`agent` (it says so itself) or `table` (at least part of it comes from the prices in spec.json)."""
    unpriced_jobs: Count
    """Work jobs that ran and whose cost is not known: if there are any, `cost_usd` is a lower bound."""


class SessionUsage(Usage):
    """The sum of a session."""

    cost_complete: bool
    """False when `cost_usd` is only a lower bound."""


class Budget(TypedDict):
    """A session's money, in US dollars."""

    budget_usd: float | None
    soft_budget_usd: float | None
    spent_usd: float
    """A job of unknown cost counts as what was reserved for it."""
    reserved_usd: float
    """What the jobs that run may cost."""
    held: bool
    """Whether the session waits because its soft budget is spent."""


class Process(TypedDict):
    """A process, as the system knows it."""

    pid: Count
    started: Count | None
    """The kernel's start time."""


class Processes(TypedDict):
    """Which processes run a session."""

    boot_id: str
    pid_ns: str
    """The inode number of the pid namespace."""
    supervisor: Process | None
    """The latest one."""
    keeper: Process | None
    """That supervisor's."""


class ParentTask(TypedDict):
    """The task that launched a session."""

    session_id: FileName
    task: str
    depth: Count
    """1 if that session was launched by no task."""


class Feed(TypedDict):
    """The queue of a session."""

    queue: PathText
    """Where it is."""
    backend: str
    group: str | None
    """The group to which the session keeps."""
    tasks: list[str] | None
    """The ids to which it keeps."""
    watch: bool
    """Whether it waits for further tasks."""
    open: bool
    """Whether more may come."""
    held: str | None
    """Why none is taken at the moment."""


class EarlierAgent(TypedDict):
    """What some attempts had."""

    attempt: Count
    """The last attempt with these."""
    agent: str
    model: str | None


class Check(TypedDict):
    """What the checks of an attempt came to."""

    passed: bool | None
    """About the last check of this attempt; null until one has ended."""
    rounds: Count
    """How many rounds the task may have."""
    counts: Counts | None
    """The tests of the last check; null if none were counted."""
    best_round: Count | None
    """The round whose work is kept; null for a task of one round, and while no check has passed, if the task
    has no worktree."""
    best_counts: Counts | None
    """Its tests."""
    best_reason: str | None
    """Why it is the best, in words."""


class Landing(TypedDict):
    """Where the work of a task stands on its way to a branch; what is not known is null."""

    status: LandWord
    """- `ready`, `landing`, `landed`: It goes its way.
    - `bounced`: It conflicts, or a gate is red.
    - `mending`: It was bounced, and another task mends it.
    - `held`: It cannot land now, for a reason that is not its own.
    - `waiting`: For the work of a task that it needs; with the reason class `follow_up`, for the end of its own
      follow-up."""
    target: PathText
    """The branch."""
    commit: str | None
    """The commit of the branch with which it landed, if that is known."""
    reason_class: str | None
    """Why it has not landed."""
    reason: PathText | None
    mend: PathText | None
    """What to do about it."""
    files: list[PathText]
    """In conflict."""
    against: list[str]
    """Tasks that landed before and changed the same files."""
    output: PathText | None
    """The file with what the red gate printed."""
    at: Time | None
    """When it landed, was bounced or was held."""


# --- a task; what its short forms have are classes of their own ---


class NotifiedTask(TypedDict):
    """What `--notify` says of a task."""

    num: Count
    """Its place in the session, from 1."""
    id: FileName
    """1 to 128 letters, digits, `.`, `_`, `-`."""
    title: str
    """One line for people: the title in the input, else the beginning of the prompt."""
    outcome: Outcome | None
    """Null until completed, then one of a closed set:
    - `succeeded`: The agent reports success and the check, if any, passed.
    - `failed`: It did not; see `reason`.
    - `timed_out`: Its attempt took too long.
    - `cancelled`: It was cancelled.
    - `skipped`: It never ran: a task that it needs did not succeed, or the session had its most failures.
    - `lost`: Its process is gone, and its end was not seen or not judged.  Whether the work was done is not
      known.  If its agent's own report of success is complete, the task is not lost; see `exit_unseen`.
    - `interrupted`: The same, because the machine was restarted."""
    word: Word
    """The one word for how the task stands, which all verbs use:
    - `waiting`: It has not started: a need, a slot or a time is missing.
    - `running`: A job of it runs.
    - `held`: It does not start by itself, or only at a known time (`held_until`).  Of a task that succeeded: its
      work was to land and waits, for a reason that is not its own.
    - `succeeded`: It is good, and it had no worktree, or its work has not landed yet.
    - `landed`: Its work is on the branch.
    - `changed_nothing`: It is good, and nothing in its worktree differs from where it began.
    - `bounced`: It is good, and its work could not land.
    - `failed`, `timed_out`, `lost`: It is bad, as its `outcome` says; `interrupted` counts as `lost`.
    - `skipped`, `cancelled`: It was not done, which is neither good nor bad."""
    reason_class: str | None
    """Why it did not succeed, as one word; of a task that succeeded, null, `exit_unseen` or `lingered`; see
    **REASON CLASSES**.  Of a pending task: why its last attempt did not, or `held` when a hold keeps it from
    going on.  A task that waits for its next round may be `held` too."""
    reason: str | None
    """The same as one line for people, at most 300 characters, that begins with the class and a colon."""
    agent: str
    """Its agent."""
    model: str | None
    """The model that the agent says it used, else the one it was asked for."""
    branch: PathText | None
    """The branch of the task's worktree; null again if it was gone when the task ended, or was deleted because
    it held no work.  This key, those about worktree, environment, commits and `diff_stat`, `ref_name` and
    `ref_commit` are about the last attempt that had a worktree; they are null until it is made, and for tasks
    without one."""
    landing: Landing | None
    """Where the work of the task stands on its way to a branch; null if the session does not land, or the task
    left no work that could.  What is not known in it is null."""


class NotedTask(NotifiedTask):
    """What both `wait --any` and `status --brief` say of a task."""

    labels: Mapping[str, str]
    """Its labels, text to text."""
    attempt: Count
    """The attempt it is at, or ended with."""
    signal: Count | None
    """The signal that killed its last work job that ended."""
    stderr: FileName
    """Name of the file with its standard error."""


class EndedTask(NotedTask):
    """What `wait --any` says of a task: a caller that asks again and again pays for each key."""

    status: Literal["pending", "running", "completed"]
    """`pending` (it waits for its turn, for other tasks or for its next attempt), `running` or `completed`."""
    exit_code: Count | None
    """Exit code of its last work job that ended; null if none did, or if a signal killed it."""
    ended_at: Time | None
    """When its outcome was recorded; null if it never started."""
    ended_seq: Count | None
    """The `seq` with which it ended or, if its work was to land, with which that was over; null: it has not
    ended.  What ended later has a bigger number."""
    duration_s: float | None
    """Seconds between its start and its end, pauses between attempts included."""
    commit: PathText | None
    """The commit that holds the work, once the task has ended: the tip of `branch` or of `rescue_branch`.  It
    is `base_commit`, or `setup_commit`, if nothing was done, and null if the work could not be committed."""
    output: FileName
    """Name of the file with its answer.  The file is there once its first work job has begun or, with
    structured output, ended."""


class BriefTask(NotedTask):
    """What `status --brief` says of a task, beside the lines that say why it failed."""

    phase: PhaseWord | None
    """`queued` while `pending`; while `running` the phase it is at: `preparing`, `initializing`, `running`,
    `checking`, `parking`, `proving`, `landing`, `releasing`; null when completed."""
    held_until: Time | None
    """Until when a hold or the pause before a further attempt keeps it from going on; null if that is not
    known, as with a hold on request."""
    rescue_branch: PathText | None
    """The branch that holds the work instead, where `branch` could not."""
    worktree: PathText | None
    """Absolute path of the worktree; null again when it was removed.  A worktree that was removed after the
    session ended, by `clean` or the user, may still be named in the file, which only the supervisor writes;
    `status` and `results` leave it out, and `worktree_kept`."""
    worktree_kept: str | None
    """Why it was not removed when the task ended; one line for people.  It begins with `release_failed:` if the
    release failed, and with `cancelled:` if `cancel --now` ended it."""
    worktree_remark: str | None
    """What became of the work if the worktree was gone before the task ended; one line for people."""
    proof: ProofVerdict | None
    """What the last proof of this attempt found, see **PROOF** in sessionrun(1).  Null if the task has no
    `prove`, or none has ended."""


class Task(EndedTask, BriefTask):
    """A task of status.json."""

    round: Count
    """The round of that attempt."""
    follow_ups: Count
    """How many follow-ups it was given by `continue`."""
    mends: FileName | None
    """The task whose work this task mends, so that it lands; else null."""
    earlier_agents: list[EarlierAgent] | None
    """What earlier attempts had, oldest first, if a retry gave the task another agent or model, or its own
    agent back."""
    started_at: Time | None
    """When its first job started; since its last `retry` or `continue`, if there was one."""
    pid: Count | None
    """Process id of its job, which leads a session and a process group of its own.  It names a living process
    only while the task is `running`."""
    leftovers: list[Leftover] | None
    """What the last work left running, at most 8 processes.  What ends by itself within half a second is not
    counted.  Null if there is nothing."""
    node: PathText | None
    """The node of a cluster on which the attempt's jobs run, as NAME@ID; null on this machine.  With Slurm
    `slurm` until the first job begins, then the node and the job of Slurm that began last: NODE, Slurm job
    ARRAY_INDEX."""
    seat: Count | None
    """Of a worktree that stays (`worktrees` in the plan): its number, as in w1.  The task works there or did so
    last; while the worktree is being prepared, the number may still change."""
    repo: PathText | None
    """The repository of the task's own, as a URL or an absolute path; null: it has no mirror."""
    ref: PathText | None
    """The ref that the input names in it."""
    ref_name: PathText | None
    """The name with which branches begin there.  Null before the task's worktree is made."""
    ref_commit: PathText | None
    """The commit at which the ref was for this session."""
    environment: MadeEnvironment | None
    """How the task's environment was made.  The directory of the setup job has the installed packages in
    environment.json, and in environment.log each command and what it printed.  Null for a task without one, and
    until it was made."""
    base_commit: PathText | None
    """The commit that the branch began at: that of the session, the end of a task that this one needs, or a
    merge of several such ends."""
    setup_commit: PathText | None
    """The commit that the work began at, if the task's setup left something that git does not ignore; the work
    is counted from it.  Null: the work began at `base_commit`."""
    diff_stat: DiffStat | None
    """What changed between that and `commit`; lines of binary files do not count, and a renamed file counts
    once."""
    raw: FileName | None
    """Name of the file with its structured output; null for agents without."""
    needs: Sequence[str]
    """Ids of the tasks that must succeed first."""
    conversation: str | None
    """The agent's own id of its conversation."""
    usage: Usage | None
    """What the agent says it consumed, over all attempts.  Null until a job has reported something, and for
    scripts."""
    usage_by_model: dict[str, Usage] | None
    """The same object for each model: the one that the agent said it used, else the one it was asked for, else
    AGENT:default."""
    usage_by_agent: dict[str, dict[str, Usage]] | None
    """`usage_by_model` of each agent; null if all of it is of the agent that the task has now."""
    check: Check | None
    """Null for a task without a check."""
    audit: list[Note] | None
    """What the audit of that proof says of the work; it never changes an outcome."""


# --- a session ---


class Verdict(TypedDict):
    """What became of a session, or how it stands."""

    session_id: str
    """The session's id, a UUID."""
    status: Literal["running", "recovering", "completed", "cancelled", "interrupted"]
    """- `running`: It goes on.
    - `recovering`: It goes on, but its supervisor is just being restarted.  Never in the file; the verbs say so
      when a lock is held but not `lock`, and `processes` is not null.
    - `completed`: It has ended: each task has its outcome.
    - `cancelled`: It has ended, because it was cancelled as a whole.
    - `interrupted`: It has not ended, but no process runs it any more.  Never in the file; the verbs say so
      when no lock is held."""
    outcome: Literal["succeeded", "failed"] | None
    """`succeeded` if all tasks did, else `failed`; null until the session has ended.  If the session lands,
    `succeeded` also means that all work landed.  Of a task of the queue, the last of its tasks in the session
    alone counts; mends do not count."""
    state: State
    """How the session stands: `running`; `held` (nothing runs, and all that is left is held or needs what is
    held); `running, partly held` (something is held, and the rest goes on); `stopped` (no process runs it any
    more: its `status` is `interrupted`) or `ended`."""
    result: Result | None
    """What came out of a session that has ended; the first of these that is true, of the tasks that count for
    `outcome`: `failed` (the word of a task is `failed`, `timed_out` or `lost`), `bounced` (good work was to
    land and did not), `cancelled` (a task was not done), `succeeded`."""


class Counters(TypedDict):
    """How many tasks stand how."""

    total: Count
    """Tasks."""
    completed: Count
    """Tasks that have an outcome: the sum of `successful`, `failed`, `skipped` and those that were cancelled."""
    running: Count
    """Tasks whose word is `running`."""
    successful: Count
    """Tasks that succeeded."""
    failed: Count
    """Tasks whose outcome is `failed`, `timed_out`, `lost` or `interrupted`."""
    skipped: Count
    """Tasks that were skipped."""
    counts: dict[Word, Count]
    """How many tasks have each `word`; the numbers add up to `total`."""


class Standing(Verdict, Counters):
    """What `wait --any` says of a session."""

    held_until: Time | None
    """When the first task of a session that is `held` goes on by itself; null if none does."""


class Summary(Standing):
    """The summary, beside its version and its seal."""

    labels: Mapping[str, str]
    """Its labels, text to text."""
    dialect: str
    """The format of its input: `prompts`, `matrix`, `markdown` or `swebench`; with a feed: `queue`."""
    agent: str
    """The agent of tasks that named none."""
    name: str | None
    """Its name."""
    started_at: Time
    """When its supervisor began."""
    ended_at: Time | None
    """When it ended; null until then.  This key, not `status`, tells whether a session has ended."""
    max_parallel: Count | None
    """How many tasks may run at once; null means no limit."""
    usage: SessionUsage | None
    """The sum over the jobs of all tasks that have ended, with the keys of a task's `usage` and one more."""
    budget: Budget | None
    """The budgets of the session; null in a session without."""
    seq: Count
    """The number of the last journal entry that is counted in."""
    processes: Processes | None
    """Which processes run the session, so that a reader can ask the system about them.  Null until a supervisor
    has begun."""
    parent: ParentTask | None
    """The task of another session that launched this one, if one did."""


class Status(Summary):
    """status.json, beside its version, its tasks and its seal."""

    base_branch: PathText | None
    """What the branches of tasks with a worktree begin with: the name of the branch or tag they began at, else
    12 digits of the commit.  Null in a session without worktrees."""
    usage_by_model: dict[str, Usage] | None
    """`usage` for each model, as for a task."""
    epoch: Count
    """How many supervisors the session has had."""
    view_problems: list[str]
    """Which of the session's **EXPORTS** are not up to date, and why; empty as a rule."""
    feed: Feed | None
    """The queue from which the session takes its tasks; null if it has them all."""


class FileStatus(TypedDict):
    """What a file has beside: status.json and the summary alike."""

    schema_version: int
    """1."""
    status: Literal["running", "completed", "cancelled"]


# --- what only a reader can know ---


class DiskFull(TypedDict):
    """What is free on a disk that has too little room."""

    path: PathText
    free_bytes: Count
    free_inodes: Count | None
    """Null if the file system does not count inodes."""


class Silence(TypedDict):
    """A node, or the head, that is not heard of."""

    node: str | None
    """The id of a node with jobs of the session; null: the head."""
    since: Time
    lease_ends_at: Time
    """Then the node ends its jobs itself, or, if the head is gone, all nodes do."""


class Seen(TypedDict):
    """What verbs add to the object of status.json."""

    results_dir: PathText
    """The absolute path of the session's directory."""
    stopped: list[Literal["root", "keeper", "supervisor"]]
    """Which processes that run the session are stopped, by SIGSTOP or a debugger.  While it is not empty, the
    session is alive, but some or all of it stands still."""
    disk_full: DiskFull | None
    """What is free, if the disk of a running session has too little room to start anything."""
    no_contact: list[Silence]
    """What of its cluster a running session has no contact with."""


class Telling(TypedDict):
    """Why a task failed, in the words of what failed."""

    step: Literal["setup", "work", "check", "proof", "gate"]
    """The step that failed."""
    lines: list[str]
    """What that printed last: six lines, or a traceback from its last place on, each of at most 200 bytes,
    without empty lines, rules and colours."""

"""The table of settings.  A new one is a row here, and its use; all that shows or reads it follows.

The order is that of help and manual within a topic, and that in which effects are checked.  In it the rows of the
businesses lie between those of the core, so they stand here, too.

Before it stand the checks that its rows name: why a setting has no effect on an input, though the caller expected
one.  A default for tasks has an effect if any task takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import orjson

from sessionrun.house import describe_lack
from sessionrun.input import kinds
from sessionrun.input.fields import DEFAULT_FIELDS, LIMIT_FIELDS, as_feed
from sessionrun.input.kinds import takes
from sessionrun.input.reading import of_business, read_known, table
from sessionrun.input.settings import Check, Setting, Topic
from sessionrun.model.events import takes_model
from sessionrun.model.places import KeepPolicy
from sessionrun.model.spec import SessionSpec, TaskSpec

# --- why a setting has no effect ---

MARKDOWN: Final = "markdown"
QUEUE: Final = "queue"
"""The formats of which a check knows; of a session with a feed the last one is told."""


def of_model(spec: SessionSpec, model: str) -> str | None:
    """It belongs to tasks without one."""
    takers = [task for task in spec.tasks if task.model == model]
    if any(takes_model(spec.agents[task.agent]) for task in takers):
        return None
    if not takers:
        return "every task that asks a model has its own"
    return f"agent {takers[0].agent!r} takes no model"


def of_fallback(spec: SessionSpec, fallback: Any) -> str | None:
    """It belongs to tasks without one, which ask a model."""
    if {spec.agents[task.agent].prompt_kind for task in spec.tasks} == {"script"}:
        return "all tasks are scripts, which meet no limit of a provider"
    return None if any(task.fallback == fallback for task in spec.tasks) else "every task has its own"


def of_tasks(takes: Callable[[TaskSpec, Any], bool], why: str = "every task has its own") -> Check:
    """The check of a default: it has an effect if one of the tasks `takes` it."""
    return lambda spec, wanted: None if any(takes(task, wanted) for task in spec.tasks) else why


def of_default(*names: str) -> Check:
    """The check of the default of a field, or of one of several, of every task that has no value of its own."""
    # 0 means that there is no such limit
    return of_tasks(lambda task, wanted: any(getattr(task, name) in (wanted, wanted or None) for name in names))


of_check: Final = of_tasks(lambda task, check: task.check is not None and task.check.commands == check.commands)
"""A check has more than its commands, such as its rounds."""

of_worktree: Final = of_tasks(
    lambda task, _: task.workspace.kind == "worktree", "every task has its own workspace"
)
"""It belongs to tasks that do not say where they work."""


def of_scripts(why: str) -> Check:
    """The check of what is for tasks that ask a model: no script does, and `why` it needs no such thing."""

    def check(spec: SessionSpec, _: Any) -> str | None:
        asks = any(agent.prompt_kind != "script" for agent in spec.agents.values())  # or may come to ask
        return None if asks else f"all tasks are scripts, {why}"

    return check


def of_auto_release(spec: SessionSpec, releases: bool) -> str | None:
    """It is for tasks that ask a model; to state the default is no mistake."""
    return None if releases else of_scripts("which meet no limit of a provider")(spec, releases)


of_money: Final = of_scripts("whose cost cannot be seen")


def of_task_budget(spec: SessionSpec, budget: float) -> str | None:
    """It belongs to tasks without one, which ask a model."""
    asking = [task for task in spec.tasks if spec.agents[task.agent].prompt_kind != "script"]
    if asking and all(task.budget_usd is not None for task in asking):
        return "every task that asks a model has its own budget_usd"
    return of_money(spec, budget)


def of_approval(spec: SessionSpec, approve: bool) -> str | None:
    """A user of ``--no-yolo`` relies on agents being restricted; to state the default is no mistake."""
    if approve or any(agent.approve_args or not agent.edits for agent in spec.agents.values()):
        return None
    return f"agent {spec.tasks[0].agent!r} has no option to leave out: it may do all that you may"


def of_formats(why: str, *names: str) -> Check:
    """The check of what is for inputs of these formats; `why` others have no use for it."""
    return lambda spec, _: None if spec.dialect in names else why


of_template: Final = of_formats("each task of this input has its own prompt", "swebench", QUEUE)
of_account: Final = of_formats("it is for Markdown job files, which record what ran", MARKDOWN)


def of_cache(spec: SessionSpec, wanted: Any) -> str | None:
    """For what is fetched or built; to refuse to have only the cache is no mistake."""
    if not wanted or spec.mirrors is not None or spec.cache is not None:
        return None
    return "no task names a repo, is in a mirror or has an environment"


# --- the table ---


@takes({"type": "object"})
def as_defaults(value: Any) -> Mapping[str, Any]:
    """Any keys of a plan's ``defaults``; of a text that is JSON what that says."""
    return read_known({key: _read_json(text) for key, text in kinds.as_record(value).items()}, DEFAULT_FIELDS)


def _read_json(value: Any) -> Any:
    try:
        return orjson.loads(value) if isinstance(value, str) else value
    except orjson.JSONDecodeError:
        return value


def _task(
    name: str,
    text: str = "",
    metavar: str = "",
    topic: Topic = "tasks",
    kind: kinds.Kind[Any] | None = None,
    **more: Any,
) -> Setting:
    """A default of tasks; a plan's ``defaults`` have the same one, of the same kind."""
    return Setting(name, kind or DEFAULT_FIELDS[name].convert, text, metavar, topic, scope="task", **more)


def _limit(name: str, text: str = "", metavar: str = "", topic: Topic = "limits", **more: Any) -> Setting:
    """A limit of the session; a plan's ``limits`` have the same one, of the same kind."""
    return Setting(name, LIMIT_FIELDS[name].convert, text, metavar, topic, **more)


_input = partial(Setting, scope="input")
_swebench = partial(Setting, topic="swebench", scope="input", format="swebench", business="checks")

# fmt: off
_ROWS: Final[tuple[Setting, ...]] = (
    _input("prompts", kinds.as_prompts, "A task; repeat it; - is standard input.", "TEXT", "tasks",
           option="-p --prompt", many="words", first="What"),
    _input("each", kinds.as_line, "Each prompt for each file, or line of @FILE: write {}.", "ITEMS", "tasks",
           first="What"),
    _input("title", kinds.as_line, "With -p: the title of the tasks.", "TEXT", "tasks"),
    _task("defaults", "Any key of defaults in the input, such as priority=3; VALUE is JSON or text.",
          "KEY=VALUE", "tasks", option="--default", many="pairs", keyed=True, kind=as_defaults),
    _input("dialect", kinds.as_line, "Format of FILE: prompts, matrix, markdown or swebench.  [default: guessed]",
           "FORMAT", "tasks", option="--from"),
    _input("rerun", kinds.as_flag, "Also run what succeeded, or ended, before.", topic="tasks"),
    _input("only", kinds.as_links, "Only this job file, whatever became of it; repeat it.", "ID", "tasks",
           option="--job", many="words", idle=of_account),
    _input("include_stuck", kinds.as_flag, "Also job files that were begun and did not end.", topic="tasks",
           option="--resume", idle=of_account),
    Setting("envelope", kinds.as_flag, "Wrap prompts: transaction id before, answer marker after.", topic="tasks",
            idle=of_scripts("which are run as they were written")),
    Setting("name", kinds.as_text, "A name for the session, as in `status NAME`.", "TEXT", "tasks",
            also=("--run-name",), first="Then"),
    Setting("labels", kinds.as_labels, "A label of the session; repeat it.", "KEY=VALUE", "tasks",
            option="--label", many="pairs"),

    _task("worktree", "Each task on a branch of its own.", topic="worktrees", first="Where",
          idle=of_worktree, kind=kinds.as_flag, business="worktrees"),
    Setting("base", kinds.as_text, "Where branches begin.  [default: HEAD]", "REF", "worktrees", first="Where",
            business="worktrees"),
    Setting("worktree_dir", kinds.as_line,
            "Where worktrees go, outside the repository.  [default: ../REPOSITORY-worktrees]", "DIR",
            "worktrees", config=True, business="worktrees"),
    Setting("keep", kinds.as_word(KeepPolicy),
            "Keep worktrees whose work is on a branch: always, on-failure, never.  [default: never]", "WHEN",
            "worktrees", option="--keep-worktree", business="worktrees"),
    _task("setup", "Runs in the task's directory before the agent; repeat it.", "COMMAND", "worktrees",
          many="words", keyed=True, idle=of_default("setup")),
    _task("env", "A variable of all tasks; repeat it.", "NAME=VALUE", "worktrees", many="pairs", keyed=True),
    Setting("cache_dir", kinds.as_line,
            "Where mirrors and environments are kept.  [default: the user's cache directory]", "DIR",
            "worktrees", config=True, variables=("SESSIONRUN_CACHE_DIR",), idle=of_cache,
            business="worktrees"),
    Setting("require_cache", kinds.as_flag, "Fetch no repository, build no environment: take what the cache has.",
            topic="worktrees", option="--require-cache/--no-require-cache", config=True,
            variables=("SWEBENCH_REQUIRE_CACHE", "SESSIONRUN_REQUIRE_CACHE"), idle=of_cache,
            business="worktrees"),
    _task("sandbox", "Walls: none, project, strict.  [default: none]", "POLICY", "worktrees", config=True,
          first="Where", business="walls"),

    _task("agent", "Agent of tasks that name none.  [default: first found]", "NAME", "agents", config=True,
          variables=("SESSIONRUN_AGENT",), first="Who"),
    _task("model", "Model, as the agent CLI spells it.", "NAME", "agents", config=True,
          variables=("SESSIONRUN_MODEL",), first="Who", idle=of_model),
    _task("fallback", "Agent that takes over at a usage limit; repeat it.", "AGENT[/MODEL]", "agents",
          many="words", first="Who", idle=of_fallback),
    Setting("approve", kinds.as_flag, "Let agents use their tools unasked.  [default: --yolo]", topic="agents",
            option="--yolo/--no-yolo", config=True, variables=("SESSIONRUN_YOLO",), first="Who",
            idle=of_approval),
    Setting("auto_release", kinds.as_flag, "Hold a provider with a usage limit until `release`.", topic="agents",
            option="/--no-auto-release", idle=of_auto_release),

    _task("check", "Must exit 0 before work counts; repeat it.", "COMMAND", "checks", many="words", keyed=True,
          first="Good?", idle=of_check, business="checks"),
    _task("rounds", "How many rounds of work and check at most.  [default: 1]", "N", "checks",
          also=("--iterations",), keyed=True, first="Good?", idle=of_default("rounds")),
    _task("retries", "How often a failed task is tried again.  [default: 0]", "N", "checks", keyed=True,
          first="Good?", idle=of_default("retries")),
    _task("expect_change", "A task that changes nothing has failed.", topic="checks",
          option="--expect-change/--no-expect-change", first="Good?"),
    _task("prove", "The check must fail without the work.", topic="checks", first="Good?", business="checks"),

    Setting("land", kinds.as_flag, "Land good work on your branch, as `merge` does.", topic="landing",
            option="--land/--no-land", first="Land", business="landing"),
    Setting("land_into", kinds.as_text, "With --land: that branch.  [default: the one where the session begins]",
            "BRANCH", "landing", business="landing"),
    Setting("gates", kinds.as_commands, "Must exit 0 with the work on that branch.", "COMMAND", "landing",
            option="--gate", many="words", first="Land", business="landing"),
    Setting("mends", kinds.as_whole(0), "Agents mend what bounces, N times at most.  [default: 0]", "N", "landing",
            first="Land", business="landing"),

    Setting("max_parallel", kinds.as_limit, "How many tasks run at once.  [default: 0, no limit]", "N", "limits",
            option="-j --max-parallel", also=("--workers", "--max-concurrent"), config=True,
            variables=("SESSIONRUN_MAX_PARALLEL",), first="How many"),
    _task("timeout_s", "Time limit of each attempt: 90, 10m; 0 = none.", "TIME", "limits", config=True,
          variables=("SESSIONRUN_TIMEOUT",), first="How many",
          idle=of_default("round_timeout_s", "timeout_s")),
    _task("idle_timeout_s", "Stop an agent that prints nothing for this long.", "TIME", "limits", config=True,
          idle=of_default("idle_timeout_s")),
    _task("linger_s", option=None, topic="limits", config=True),
    _limit("workspace_timeout_s", option=None, topic="limits", config=True),
    Setting("stop_on_fail", kinds.as_flag, "As --max-failures 1.", topic="limits"),
    _limit("max_failures", "Start nothing more after so many failed tasks.", "N", "limits", first="How many"),
    _limit("halt", "After the last failure allowed tasks that run go on (soon, the default), or end (now).",
           "WHEN", "limits", config=True),
    Setting("starts_at", kinds.as_moment, "Start no task before: 18:30, 2026-11-30T08:00, +2h.", "TIME", "limits",
            option="--at"),
    _limit("max_load", "Start no work while the load is above this, such as 8.", "L", "limits", config=True),
    _limit("min_free_memory", "Start no work while less memory than this is free, such as 4G.", "SIZE",
           "limits", config=True),
    _limit("stagger_s", "Let at least this much time pass between two starts of work.", "TIME", "limits",
           config=True),

    _limit("budget_usd", "Start no work that may bring the session over it.", "USD", "money", config=True,
           first="How many", idle=of_money),
    _limit("soft_budget_usd", "When this is spent, hold the session.", "USD", "money", config=True,
           idle=of_money),
    _limit("task_budget_usd", "What each task may cost, over all attempts.", "USD", "money", config=True,
           scope="task", idle=of_task_budget),

    Setting("notify", kinds.as_commands, "Is told of the end, a failure, a hold; repeat it.", "COMMAND|URL",
            "output", many="words", config=True, first="Then"),
    Setting("results_dir", kinds.as_line, "", option=None, topic="output", config=True,
            variables=("SESSIONRUN_RESULTS_DIR",)),
    Setting("merge_trailers", kinds.as_flag, "", option=None, topic="landing", config=True, business="landing"),
    Setting("max_depth", kinds.as_limit, "", option=None, topic="limits", config=True),

    Setting("cluster", kinds.as_line, "Run the jobs on a cluster's nodes, or as Slurm's.", "ADDRESS|slurm",
            "cluster", config=True, business="cluster"),
    Setting("slurm", kinds.as_record, "An option of sbatch for these jobs, such as partition=short; repeat it.",
            "KEY[=VALUE]", "cluster", option="--slurm-option", many="pairs", config=True, business="cluster"),

    _input("feed", as_feed, topic="tasks", option=None, business="queue"),

    _swebench("instances", kinds.as_line, "The instances, in place of [FILE].", "FILE"),
    _swebench("sample", kinds.as_whole(1), "Run only N instances.", "N", also=("--limit", "-n")),
    _swebench("start", kinds.as_whole(0), "Leave out the first N instances.  [default: 0]", "N"),
    _swebench("instance", kinds.as_links, "Run this instance; repeat it.", "ID", many="words"),
    _swebench("filter", kinds.as_line, "Run instances in whose id this is found.", "REGEX"),
    _swebench("shuffle", kinds.as_whole(0), "Shuffle the instances first, always alike.", "SEED"),
    _swebench("no_mcp", kinds.as_flag, "Start the agent without MCP servers."),
    _swebench("output_dir", kinds.as_line, "Where results go.  [default: artifacts/results]", "DIR"),
    _input("prompt_template", kinds.as_line, "A file with what the agent is asked to do.", "FILE", "swebench",
           idle=of_template),
    _swebench("history", kinds.as_whole(0), "So many commits before the base are there.  [default: 50]", "N"),
    _swebench("no_environment", kinds.as_flag, "Make no Python environment; take that of PATH."),
    _swebench("docker", kinds.as_flag, "Refused: tests run here.", variables=("SWEBENCH_USE_DOCKER",)),
)
# fmt: on

SETTINGS: Final = tuple(
    row._replace(kind=of_business(row.business, row.kind), help=describe_lack(row.business), first="")
    if describe_lack(row.business)
    else row
    for row in _ROWS
)
"""All of them: one of a business that was taken out is known, and refused where it is given."""

BY_NAME: Final[Mapping[str, Setting]] = {row.name: row for row in SETTINGS}

FILE_FIELDS: Final = table(
    agents=kinds.as_record, prices=kinds.as_record, **{row.name: row.kind for row in SETTINGS if row.config}
)
"""What a file of configuration may say."""

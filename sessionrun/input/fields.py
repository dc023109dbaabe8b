"""The fields that a plan, a task and the records in them may have, each with what reads it: literal tables.

Shared by dialects and configuration; must not know files or formats.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, get_args

from sessionrun.input.kinds import (
    TEXT,
    Kind,
    Misfit,
    as_alternatives,
    as_amounts,
    as_argv,
    as_budget,
    as_capacities,
    as_choice,
    as_command_line,
    as_commands,
    as_duration,
    as_environment,
    as_flag,
    as_id,
    as_labels,
    as_limit,
    as_line,
    as_links,
    as_list,
    as_load,
    as_money,
    as_needs,
    as_number,
    as_project_paths,
    as_prompt,
    as_prompts,
    as_reason_classes,
    as_record,
    as_ref,
    as_repo,
    as_size,
    as_sole_prompt,
    as_whole,
    as_word,
    describe,
    reference,
    several,
    takes,
)
from sessionrun.input.plan import LandingWish, SeatsWish
from sessionrun.input.reading import Field, of_business, read_known, record, table
from sessionrun.model.asked import NETWORKS, POLICIES, Network, Sandbox
from sessionrun.model.checks import AnswerKind, AnswerMode, Brief, ReportUse, Reset
from sessionrun.model.keys import describe_id_problem
from sessionrun.model.places import PLACEMENTS
from sessionrun.model.spec import (
    AgentSpec,
    BeginsAt,
    Check,
    Environment,
    EnvironmentKind,
    Halt,
    LeftoversPolicy,
    Limits,
    OutputFormat,
    Price,
    PromptMode,
    Prove,
    Workspace,
    WorkspaceKind,
)
from sessionrun.model.words import SCHEMA_VERSION

# --- records inside of a task or a plan ---

as_prove: Final = record(
    "prove",
    Prove,
    table(red=as_flag, test_files=as_links, own=as_links, repeat=as_whole(1)),
    as_flag.then(lambda wanted: Prove() if wanted else None),
)
"""Whether the work is to be proved, or an object that says how."""


def _make_check(commands: tuple[str, ...] = (), **values: Any) -> Check | None:
    if not commands and "verify" not in values:
        raise Misfit('needs "commands": text or a list of text')
    for name in ("rounds", "prove"):  # they are the task's, see `read_fields`
        values.pop(name, None)
    return Check(commands, **{**values, "timeout_s": values.get("timeout_s") or None})


as_check: Final = record(
    "check",
    _make_check,
    table(
        commands=as_commands,
        timeout_s=as_duration,
        rounds=as_whole(1),
        reset=as_word(Reset),
        report=as_word(ReportUse),
        prove=as_prove,
        uses=as_amounts,
        verify=as_prompt,
        files=as_project_paths,
    ),
    as_commands.then(lambda commands: Check(commands) if commands else None),
)
"""Shell commands, or an object with ``commands``; None without a command: there is no check then."""

as_brief: Final = record(
    "brief",
    Brief,
    table(
        mode=as_word(AnswerMode),
        system=as_prompt,
        context=as_project_paths,
        targets=as_project_paths,
        outputs=as_project_paths,
        room=as_whole(0),
        max_context_lines=as_whole(1),
        max_output_lines=as_whole(1),
        create_directories=as_flag,
        protected=as_links,
    ),
)
"""Files that the agent is shown, and files that its work is to be."""

as_environment_wish: Final = record(
    "environment",
    Environment,
    table(kind=as_word(EnvironmentKind), python=as_line),
    as_word(EnvironmentKind).then(Environment),
)
"""A kind of environment, or an object; other languages have `setup`."""

as_workspace: Final = record(
    "workspace",
    Workspace,
    table(kind=as_word(WorkspaceKind)),
    as_word(WorkspaceKind).then(Workspace),
    needs=f": {' or '.join(get_args(WorkspaceKind))}",
)
as_seats: Final = record(
    "worktrees",
    SeatsWish,
    table(stay=as_choice(PLACEMENTS), prefix=as_id),
    as_choice(PLACEMENTS).then(SeatsWish),
    needs=f": {' or '.join(PLACEMENTS)}",
)
"""Where worktrees stay."""

LIMIT_FIELDS: Final = table(
    max_failures=as_whole(1),
    budget_usd=as_budget,
    soft_budget_usd=as_budget,
    task_budget_usd=as_budget,
    workspace_timeout_s=as_duration,
    halt=as_word(Halt),
    max_load=as_load,
    min_free_memory=as_size,
    stagger_s=as_duration,
)
"""What a plan or a setting may say of when a session stops, and how fast it starts work."""

as_limits: Final = record("limits", Limits, LIMIT_FIELDS)
"""Session-wide stops."""

# --- walls ---

_NETWORK_OF: Final[dict[str, Network]] = {"none": "allow", "project": "allow", "strict": "proxy"}
"""What a policy means for the network if a task says nothing else."""


def make_sandbox(policy: str, **more: Any) -> Sandbox:
    """A sandbox of this policy; 0 means that something has no limit."""
    values = {key: None if value == 0 else value for key, value in more.items()}
    another = next((key for key, value in values.items() if value is not None), None)
    if policy == "none" and another is not None:
        raise Misfit('means nothing without walls; leave it out, or say "project" or "strict"', another)
    if isinstance(values.get("network"), tuple):
        values = {**values, "hosts": values["network"], "network": "proxy"}
    made = Sandbox(policy=policy, **{"network": _NETWORK_OF[policy], **values})  # type: ignore[arg-type]
    if made.policy == "strict" and made.network == "allow":
        raise Misfit('"strict" has no open network; say "proxy", "none" or a list of hosts', "network")
    return made


@takes({"anyOf": [{"enum": list(NETWORKS)}, {"type": "array", "items": {"type": "string"}}]})
def as_network(value: Any) -> Network | tuple[str, ...]:
    """One of the words for networks, or the names of hosts."""
    if isinstance(value, str) and value in NETWORKS:
        return next(network for network in NETWORKS if network == value)
    if isinstance(value, list):
        return tuple(_as_host(host) for host in as_links(value))
    raise Misfit(f"must be {', '.join(NETWORKS)}, or a list of hosts, not {describe(value)}")


def _as_host(value: str) -> str:
    name = value.removeprefix("*.")
    if not name or not all(part.replace("-", "").isalnum() for part in name.split(".")):
        raise Misfit(
            f"{value!r:.80} is not the name of a host (write example.org or *.example.org, without a port)"
        )
    return value.lower()


@takes(TEXT)
def _as_path(value: Any) -> str:
    """An absolute path; ``~/`` is the home directory."""
    path = os.path.expanduser(as_line(value))
    if not os.path.isabs(path):
        raise Misfit(f"{path!r:.80} is not an absolute path")
    return os.path.normpath(path)


@takes(TEXT)
def _as_variable(value: Any) -> str:
    name = as_line(value)
    if "=" in name:
        raise Misfit(f"{name!r:.80} is not the name of a variable; a value goes into the env of the task")
    return name


_as_processors: Final = as_number("a number of processors from 0.01, such as 1.5", 0.01, 1e6, {})


@takes({"anyOf": [{"const": 0}, {"type": "number", "minimum": 0.01, "maximum": 1000000}]})
def as_cpus(value: Any) -> float:
    """A number of processors, which need not be whole; 0 means that there is no limit."""
    return 0.0 if value == 0 and value is not False else _as_processors(value)


as_sandbox: Final = record(
    "sandbox",
    make_sandbox,
    table(
        policy=as_choice(POLICIES),
        network=as_network,
        env=several(_as_variable),
        read=several(_as_path),
        devices=several(_as_path),
        processes=as_whole(1),
        memory=as_size,
        cpus=as_cpus,
        disk=as_size,
    ),
    as_choice(POLICIES).then(make_sandbox),
    needs=": " + " or ".join(POLICIES),
)
"""A policy, or an object with ``policy`` and more."""

# --- landing ---


@takes({"anyOf": [{"type": "boolean"}, TEXT]})
def _as_target(value: Any) -> LandingWish:
    """A branch, true for the branch where the session begins, or false: nothing lands."""
    if isinstance(value, bool):
        return LandingWish(lands=value)
    return LandingWish(as_line(value))


as_landing: Final = record(
    "land",
    LandingWish,
    {
        **table(into=as_line, gates=as_commands, batch=as_whole(1), mends=as_whole(0), sandbox=as_sandbox),
        **dict.fromkeys(("timeout", "timeout_s"), Field("gate_timeout_s", as_duration)),
    },
    _as_target,
)
"""What a plan, not a task of it, may say of landing."""

# --- tasks ---

MAX_PRIORITY: Final = 1_000_000

DEFAULT_FIELDS: Final[Mapping[str, Field]] = table(
    title=as_line,
    agent=as_line,
    model=as_line,
    args=as_argv,
    cwd=as_line,
    workspace=as_workspace,
    repo=as_repo,
    ref=as_ref,
    base=as_word(BeginsAt),
    environment=as_environment_wish,
    setup=as_commands,
    setup_timeout_s=as_duration,
    links=as_links,
    sandbox=as_sandbox,
    uses=as_amounts,
    check=of_business("checks", as_check),
    brief=of_business("checks", as_brief),
    prove=of_business("checks", as_prove),
    answer=of_business("checks", as_word(AnswerKind)),
    rounds=as_whole(1),
    timeout_s=as_duration,
    round_timeout_s=as_duration,
    idle_timeout_s=as_duration,
    leftovers=as_word(LeftoversPolicy),
    linger_s=as_duration,
    prompt_mode=as_word(PromptMode),
    retries=as_whole(0),
    priority=as_whole(-MAX_PRIORITY),
    fallback=as_alternatives,
    fallback_on=as_reason_classes,
    expect_change=as_flag,
    env=as_environment,
    labels=as_labels,
)
"""What one task, and `defaults` for all, may say."""

TASK_FIELDS: Final[Mapping[str, Field]] = {
    **DEFAULT_FIELDS,
    "prompt": Field("prompts", as_sole_prompt),
    **table(id=as_id, prompts=as_prompts, budget_usd=as_budget, needs=as_needs),
    "depends_on": Field("needs", as_needs),
}

# --- the whole plan, and what it says of the queue from which its tasks come ---


@takes(as_duration.schema)
def as_interval(value: Any) -> float:
    """Seconds between two looks."""
    seconds = as_duration(value)
    if not 0.05 <= seconds <= 86_400:
        raise Misfit(f"must be from 0.05 to 86400 seconds, not {describe(value)}")
    return seconds


@takes({"const": True})
def _as_all(value: Any) -> dict[str, Any]:
    if value is not True:
        raise Misfit(f"must be true or an object, not {describe(value)}")
    return {}


as_feed: Final = record(
    "feed",
    dict[str, Any],
    table(
        backend=as_line,
        group=as_line,
        chosen=as_links,
        watch=as_flag,
        ingest=as_whole(0),
        poll_s=as_interval,
        sync_s=as_interval,
        take_back_s=as_interval,
        take_back_most=as_whole(1),
        takes_back=as_flag,
        lands_again=as_flag,
    ),
    _as_all,
)
"""Which tasks of the queue, and for how long: an object, or true for all that are ready."""


@takes({"const": SCHEMA_VERSION})
def as_schema_version(value: Any) -> int:
    """The version of the plan format: there is one."""
    if value != SCHEMA_VERSION or isinstance(value, bool):
        raise Misfit(f"must be {SCHEMA_VERSION}, not {describe(value)}")
    return SCHEMA_VERSION


as_task_list: Final = as_list(1, items=reference("prompt"))

TOP_FIELDS: Final[Mapping[str, Field]] = {
    **table(
        schema_version=as_schema_version,
        name=as_line,
        agent=as_line,
        model=as_line,
        max_parallel=as_limit,
        resources=as_capacities,
        limits=as_limits,
        auto_release=as_flag,
        require_cache=as_flag,
        labels=as_labels,
    ),
    "$schema": Field("schema", as_line),
    "prompts": Field("tasks", as_task_list),
    "tasks": Field("tasks", as_task_list),
    "defaults": Field("defaults", Kind(as_record.read, reference("defaults"))),
    "feed": Field("feed", of_business("queue", as_feed)),
    "land": Field("landing", of_business("landing", as_landing)),
    "worktrees": Field("seats", as_seats),
}

# --- what files of configuration say of agents and prices ---

AGENT_FIELDS: Final[Mapping[str, Field]] = {
    **table(
        argv=as_command_line,
        stdin=as_choice(("prompt", "none")),
        prompt_kind=as_choice(("text", "script")),
        model_args=as_argv,
        approve_args=as_argv,
        continue_args=as_argv,
        budget_args=as_argv,
        provider=as_line,
        output=as_word(OutputFormat),
        edits=as_flag,
        env=as_environment,
        ready=as_argv,
    ),
    "stop_grace_s": Field("stop_grace_s", as_duration),
}
PRICE_FIELDS: Final[Mapping[str, Field]] = table(input=as_money, cached_input=as_money, output=as_money)


def make_agent(name: str, written: Mapping[str, Any], base: AgentSpec | None) -> AgentSpec:
    """Make an agent from its `[agents.NAME]` table, over `base` where there is one."""
    problem = describe_id_problem(name)
    if problem:
        raise Misfit(f"an agent's name {problem}")
    values = read_known(written, AGENT_FIELDS)
    if base is None and "argv" not in values:
        raise Misfit("needs argv = [PROGRAM, ...], for it is not a built-in agent")
    if base and "env" in values:
        values["env"] = {**base.env, **values["env"]}
    agent = replace(base, **values) if base else AgentSpec(name=name, **values)
    if agent.stdin == "none" and not any("{prompt_file}" in element for element in agent.argv):
        raise Misfit('never gets the prompt: set stdin = "prompt" or put {prompt_file} into argv')
    return agent


def make_price(name: str, written: Mapping[str, Any]) -> Price:
    """Make a price from its `[prices.MODEL]` table."""
    values = read_known(written, PRICE_FIELDS)
    if not name.strip("* ") or not {"input", "output"} <= set(values):
        raise Misfit("needs a model's name, input = ... and output = ...: US dollars for a million tokens")
    return Price(**values)

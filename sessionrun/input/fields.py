"""The fields that a plan, a task and the records in them may have, each with what reads it: literal tables.

Shared by dialects and configuration; must not know files or formats.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from sessionrun.input import kinds
from sessionrun.input.plan import LandingWish, SeatsWish
from sessionrun.input.reading import Field, of_business, read_known, record, table
from sessionrun.model import spec
from sessionrun.model.asked import NETWORKS, POLICIES, Network, Sandbox
from sessionrun.model.checks import AnswerKind, AnswerMode, Brief, ReportUse, Reset
from sessionrun.model.keys import describe_id_problem
from sessionrun.model.places import PLACEMENTS
from sessionrun.model.words import SCHEMA_VERSION

# --- records inside of a task or a plan ---

as_prove: Final = record(
    "prove",
    spec.Prove,
    table(red=kinds.as_flag, test_files=kinds.as_links, own=kinds.as_links, repeat=kinds.as_whole(1)),
    kinds.as_flag.then(lambda wanted: spec.Prove() if wanted else None),
)
"""Whether the work is to be proved, or an object that says how."""


def _make_check(commands: tuple[str, ...] = (), **values: Any) -> spec.Check | None:
    if not commands and "verify" not in values:
        raise kinds.Misfit('needs "commands": text or a list of text')
    for name in ("rounds", "prove"):  # they are the task's, see `read_fields`
        values.pop(name, None)
    return spec.Check(commands, **{**values, "timeout_s": values.get("timeout_s") or None})


as_check: Final = record(
    "check",
    _make_check,
    table(
        commands=kinds.as_commands,
        timeout_s=kinds.as_duration,
        rounds=kinds.as_whole(1),
        reset=kinds.as_word(Reset),
        report=kinds.as_word(ReportUse),
        prove=as_prove,
        uses=kinds.as_amounts,
        verify=kinds.as_prompt,
        files=kinds.as_project_paths,
    ),
    kinds.as_commands.then(lambda commands: spec.Check(commands) if commands else None),
)
"""Shell commands, or an object with ``commands``; None without a command: there is no check then."""

as_brief: Final = record(
    "brief",
    Brief,
    table(
        mode=kinds.as_word(AnswerMode),
        system=kinds.as_prompt,
        context=kinds.as_project_paths,
        targets=kinds.as_project_paths,
        outputs=kinds.as_project_paths,
        room=kinds.as_whole(0),
        max_context_lines=kinds.as_whole(1),
        max_output_lines=kinds.as_whole(1),
        create_directories=kinds.as_flag,
        protected=kinds.as_links,
    ),
)
"""Files that the agent is shown, and files that its work is to be."""

as_environment_wish: Final = record(
    "environment",
    spec.Environment,
    table(kind=kinds.as_word(spec.EnvironmentKind), python=kinds.as_line),
    begin="kind",
)
"""A kind of environment, or an object; other languages have `setup`."""

as_workspace: Final = record(
    "workspace", spec.Workspace, table(kind=kinds.as_word(spec.WorkspaceKind)), begin="kind", needs=True
)
as_seats: Final = record(
    "worktrees", SeatsWish, table(stay=kinds.as_choice(PLACEMENTS), prefix=kinds.as_id), begin="stay", needs=True
)
"""Where worktrees stay."""

LIMIT_FIELDS: Final = table(
    max_failures=kinds.as_whole(1),
    budget_usd=kinds.as_budget,
    soft_budget_usd=kinds.as_budget,
    task_budget_usd=kinds.as_budget,
    workspace_timeout_s=kinds.as_duration,
    halt=kinds.as_word(spec.Halt),
    max_load=kinds.as_load,
    min_free_memory=kinds.as_size,
    stagger_s=kinds.as_duration,
)
"""What a plan or a setting may say of when a session stops, and how fast it starts work."""

as_limits: Final = record("limits", spec.Limits, LIMIT_FIELDS)
"""Session-wide stops."""

# --- walls ---

_NETWORK_OF: Final[dict[str, Network]] = {"none": "allow", "project": "allow", "strict": "proxy"}
"""What a policy means for the network if a task says nothing else."""


def make_sandbox(policy: str, **more: Any) -> Sandbox:
    """A sandbox of this policy; 0 means that something has no limit."""
    values = {key: None if value == 0 else value for key, value in more.items()}
    another = next((key for key, value in values.items() if value is not None), None)
    if policy == "none" and another is not None:
        raise kinds.Misfit('means nothing without walls; leave it out, or say "project" or "strict"', another)
    if isinstance(values.get("network"), tuple):
        values = {**values, "hosts": values["network"], "network": "proxy"}
    made = Sandbox(policy=policy, **{"network": _NETWORK_OF[policy], **values})  # type: ignore[arg-type]
    if made.policy == "strict" and made.network == "allow":
        raise kinds.Misfit('"strict" has no open network; say "proxy", "none" or a list of hosts', "network")
    return made


@kinds.takes({"anyOf": [{"enum": list(NETWORKS)}, {"type": "array", "items": {"type": "string"}}]})
def as_network(value: Any) -> Network | tuple[str, ...]:
    """One of the words for networks, or the names of hosts."""
    if isinstance(value, str) and value in NETWORKS:
        return value
    if isinstance(value, list):
        return tuple(_as_host(host) for host in kinds.as_links(value))
    raise kinds.Misfit(f"must be {', '.join(NETWORKS)}, or a list of hosts, not {kinds.describe(value)}")


def _as_host(value: str) -> str:
    name = value.removeprefix("*.")
    if not name or not all(part.replace("-", "").isalnum() for part in name.split(".")):
        raise kinds.Misfit(
            f"{value!r:.80} is not the name of a host (write example.org or *.example.org, without a port)"
        )
    return value.lower()


@kinds.takes(kinds.TEXT)
def _as_path(value: Any) -> str:
    """An absolute path; ``~/`` is the home directory."""
    path = os.path.expanduser(kinds.as_line(value))
    if not os.path.isabs(path):
        raise kinds.Misfit(f"{path!r:.80} is not an absolute path")
    return os.path.normpath(path)


@kinds.takes(kinds.TEXT)
def _as_variable(value: Any) -> str:
    name = kinds.as_line(value)
    if "=" in name:
        raise kinds.Misfit(f"{name!r:.80} is not the name of a variable; a value goes into the env of the task")
    return name


_as_processors: Final = kinds.as_number("a number of processors from 0.01, such as 1.5", 0.01, 1e6, {})


@kinds.takes({"anyOf": [{"const": 0}, {"type": "number", "minimum": 0.01, "maximum": 1000000}]})
def as_cpus(value: Any) -> float:
    """A number of processors, which need not be whole; 0 means that there is no limit."""
    return 0.0 if value == 0 and value is not False else _as_processors(value)


as_sandbox: Final = record(
    "sandbox",
    make_sandbox,
    table(
        policy=kinds.as_choice(POLICIES),
        network=as_network,
        env=kinds.several(_as_variable),
        read=kinds.several(_as_path),
        devices=kinds.several(_as_path),
        processes=kinds.as_whole(1),
        memory=kinds.as_size,
        cpus=as_cpus,
        disk=kinds.as_size,
    ),
    begin="policy",
    needs=True,
)
"""A policy, or an object with ``policy`` and more."""

# --- landing ---


@kinds.takes({"anyOf": [{"type": "boolean"}, kinds.TEXT]})
def _as_target(value: Any) -> LandingWish:
    """A branch, true for the branch where the session begins, or false: nothing lands."""
    if isinstance(value, bool):
        return LandingWish(lands=value)
    return LandingWish(kinds.as_line(value))


as_landing: Final = record(
    "land",
    LandingWish,
    {
        **table(
            into=kinds.as_line,
            gates=kinds.as_commands,
            batch=kinds.as_whole(1),
            mends=kinds.as_whole(0),
            sandbox=as_sandbox,
        ),
        **dict.fromkeys(("timeout", "timeout_s"), Field("gate_timeout_s", kinds.as_duration)),
    },
    _as_target,
)
"""What a plan, not a task of it, may say of landing."""

# --- tasks ---

MAX_PRIORITY: Final = 1_000_000

DEFAULT_FIELDS: Final[Mapping[str, Field]] = table(
    title=kinds.as_line,
    agent=kinds.as_line,
    model=kinds.as_line,
    args=kinds.as_argv,
    cwd=kinds.as_line,
    workspace=as_workspace,
    repo=kinds.as_repo,
    ref=kinds.as_ref,
    base=kinds.as_word(spec.BeginsAt),
    environment=as_environment_wish,
    setup=kinds.as_commands,
    setup_timeout_s=kinds.as_duration,
    links=kinds.as_links,
    sandbox=as_sandbox,
    uses=kinds.as_amounts,
    check=of_business("checks", as_check),
    brief=of_business("checks", as_brief),
    prove=of_business("checks", as_prove),
    answer=of_business("checks", kinds.as_word(AnswerKind)),
    rounds=kinds.as_whole(1),
    timeout_s=kinds.as_duration,
    round_timeout_s=kinds.as_duration,
    idle_timeout_s=kinds.as_duration,
    leftovers=kinds.as_word(spec.LeftoversPolicy),
    linger_s=kinds.as_duration,
    prompt_mode=kinds.as_word(spec.PromptMode),
    retries=kinds.as_whole(0),
    priority=kinds.as_whole(-MAX_PRIORITY),
    fallback=kinds.as_alternatives,
    fallback_on=kinds.as_reason_classes,
    expect_change=kinds.as_flag,
    env=kinds.as_environment,
    labels=kinds.as_labels,
)
"""What one task, and `defaults` for all, may say."""

TASK_FIELDS: Final[Mapping[str, Field]] = {
    **DEFAULT_FIELDS,
    "prompt": Field("prompts", kinds.as_sole_prompt),
    **table(id=kinds.as_id, prompts=kinds.as_prompts, budget_usd=kinds.as_budget, needs=kinds.as_needs),
    "depends_on": Field("needs", kinds.as_needs),
}

# --- the whole plan, and what it says of the queue from which its tasks come ---


@kinds.takes(kinds.as_duration.schema)
def as_interval(value: Any) -> float:
    """Seconds between two looks."""
    seconds = kinds.as_duration(value)
    if not 0.05 <= seconds <= 86_400:
        raise kinds.Misfit(f"must be from 0.05 to 86400 seconds, not {kinds.describe(value)}")
    return seconds


@kinds.takes({"const": True})
def _as_all(value: Any) -> dict[str, Any]:
    if value is not True:
        raise kinds.Misfit(f"must be true or an object, not {kinds.describe(value)}")
    return {}


as_feed: Final = record(
    "feed",
    dict[str, Any],
    table(
        backend=kinds.as_line,
        group=kinds.as_line,
        chosen=kinds.as_links,
        watch=kinds.as_flag,
        ingest=kinds.as_whole(0),
        poll_s=as_interval,
        sync_s=as_interval,
        take_back_s=as_interval,
        take_back_most=kinds.as_whole(1),
        takes_back=kinds.as_flag,
        lands_again=kinds.as_flag,
    ),
    _as_all,
)
"""Which tasks of the queue, and for how long: an object, or true for all that are ready."""


@kinds.takes({"const": SCHEMA_VERSION})
def as_schema_version(value: Any) -> int:
    """The version of the plan format: there is one."""
    if value != SCHEMA_VERSION or isinstance(value, bool):
        raise kinds.Misfit(f"must be {SCHEMA_VERSION}, not {kinds.describe(value)}")
    return SCHEMA_VERSION


as_task_list: Final = kinds.as_list(1, items=kinds.reference("prompt"))

TOP_FIELDS: Final[Mapping[str, Field]] = {
    **table(
        schema_version=as_schema_version,
        name=kinds.as_line,
        agent=kinds.as_line,
        model=kinds.as_line,
        max_parallel=kinds.as_limit,
        resources=kinds.as_capacities,
        limits=as_limits,
        auto_release=kinds.as_flag,
        require_cache=kinds.as_flag,
        labels=kinds.as_labels,
    ),
    "$schema": Field("schema", kinds.as_line),
    "prompts": Field("tasks", as_task_list),
    "tasks": Field("tasks", as_task_list),
    "defaults": Field("defaults", kinds.Kind(kinds.as_record.read, kinds.reference("defaults"))),
    "feed": Field("feed", of_business("queue", as_feed)),
    "land": Field("landing", of_business("landing", as_landing)),
    "worktrees": Field("seats", as_seats),
}

# --- what files of configuration say of agents and prices ---

AGENT_FIELDS: Final[Mapping[str, Field]] = {
    **table(
        argv=kinds.as_command_line,
        stdin=kinds.as_choice(("prompt", "none")),
        prompt_kind=kinds.as_choice(("text", "script")),
        model_args=kinds.as_argv,
        approve_args=kinds.as_argv,
        continue_args=kinds.as_argv,
        budget_args=kinds.as_argv,
        provider=kinds.as_line,
        output=kinds.as_word(spec.OutputFormat),
        edits=kinds.as_flag,
        env=kinds.as_environment,
        ready=kinds.as_argv,
    ),
    "stop_grace_s": Field("stop_grace_s", kinds.as_duration),
}
PRICE_FIELDS: Final[Mapping[str, Field]] = table(
    input=kinds.as_money, cached_input=kinds.as_money, output=kinds.as_money
)


def make_agent(name: str, written: Mapping[str, Any], base: spec.AgentSpec | None) -> spec.AgentSpec:
    """Make an agent from its `[agents.NAME]` table, over `base` where there is one."""
    problem = describe_id_problem(name)
    if problem:
        raise kinds.Misfit(f"an agent's name {problem}")
    values = read_known(written, AGENT_FIELDS)
    if base is None and "argv" not in values:
        raise kinds.Misfit("needs argv = [PROGRAM, ...], for it is not a built-in agent")
    if base and "env" in values:
        values["env"] = {**base.env, **values["env"]}
    agent = replace(base, **values) if base else spec.AgentSpec(name=name, **values)
    if agent.stdin == "none" and not any("{prompt_file}" in element for element in agent.argv):
        raise kinds.Misfit('never gets the prompt: set stdin = "prompt" or put {prompt_file} into argv')
    return agent


def make_price(name: str, written: Mapping[str, Any]) -> spec.Price:
    """Make a price from its `[prices.MODEL]` table."""
    values = read_known(written, PRICE_FIELDS)
    if not name.strip("* ") or not {"input", "output"} <= set(values):
        raise kinds.Misfit("needs a model's name, input = ... and output = ...: US dollars for a million tokens")
    return spec.Price(**values)

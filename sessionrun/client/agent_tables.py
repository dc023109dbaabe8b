"""Makes agents of their tables in a configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    from sessionrun.dialects.fields import Field
    from sessionrun.model.spec import AgentSpec


def agent_from_table(name: str, table: Mapping[str, Any], base: AgentSpec | None) -> AgentSpec:
    """Make an agent from its `[agents.NAME]` table, over `base` where there is one.

    Raises:
        Misfit: an unknown key, a value that does not fit, no `argv`, or no way for the prompt to get in.
    """
    from sessionrun.dialects.convert import Misfit
    from sessionrun.model.keys import describe_id_problem
    from sessionrun.model.spec import AgentSpec

    problem = describe_id_problem(name)
    if problem:
        raise Misfit(f"an agent's name {problem}")
    values = read_known(table, _agent_fields())
    if base is None and "argv" not in values:
        raise Misfit("needs argv = [PROGRAM, ...], for it is not a built-in agent")
    if base and "env" in values:
        values["env"] = {**base.env, **values["env"]}
    agent = replace(base, **values) if base else AgentSpec(name=name, **values)
    if agent.stdin == "none" and not any("{prompt_file}" in element for element in agent.argv):
        raise Misfit('never gets the prompt: set stdin = "prompt" or put {prompt_file} into argv')
    return agent


def read_known(record: Mapping[str, Any], table: Mapping[str, Field]) -> dict[str, Any]:
    """The values of a table by the names that they have here.

    Raises:
        Misfit: an unknown key, or a value that does not fit.
    """
    from sessionrun.dialects.convert import Misfit
    from sessionrun.dialects.fields import read_fields, suggest

    unknown: list[tuple[str | int, ...]] = []
    values = read_fields(record, table, unknown)
    if unknown:
        key = str(unknown[0][-1])
        raise Misfit(f"unknown key{suggest(key, table)}", *unknown[0])
    return values


def _agent_fields() -> Mapping[str, Field]:
    from sessionrun.dialects.convert import (
        as_argv,
        as_choice,
        as_command_line,
        as_duration,
        as_environment,
        as_flag,
        as_line,
    )
    from sessionrun.dialects.fields import Field, table
    from sessionrun.model.spec import OutputFormat

    return {
        **table(
            argv=as_command_line,
            stdin=as_choice(("prompt", "none")),
            prompt_kind=as_choice(("text", "script")),
            model_args=as_argv,
            approve_args=as_argv,
            continue_args=as_argv,
            budget_args=as_argv,
            provider=as_line,
            output=as_choice(get_args(OutputFormat)),
            edits=as_flag,
            env=as_environment,
            ready=as_argv,
        ),
        "stop_grace_s": Field("stop_grace_s", as_duration),
    }

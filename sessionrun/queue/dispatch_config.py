"""`dispatch_config.json`, the configuration of the dispatcher that came before: a session fed from the queue.

Each key is honoured or refused; paths count from the directory of the file.  Must not know the command line.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from sessionrun.input import kinds
from sessionrun.input.fields import as_interval
from sessionrun.input.parse import Document, Source
from sessionrun.input.plan import Plan, RepositoryWish
from sessionrun.input.prompts import MENDS, read_plan
from sessionrun.input.reading import Field, Reading, Spot, read_fields
from sessionrun.input.settings import Options
from sessionrun.model.places import PLACEMENTS

FILE: Final = "dispatch_config.json"
WORKERS: Final = 14
AGENT: Final = "aider"
MODEL: Final = "ollama/qwen2.5-coder:7b"
"""What that dispatcher does where its file says nothing."""

_OF_AGENTS: Final = {"aider": ("aider_cmd", "model"), "claude": ("claude_cmd", "claude_model")}
"""The keys with program and model of an agent; those of the others have no effect, as in that dispatcher."""

_Values = dict[str, Any]


def load(source: Source, options: Options) -> Plan:
    reading = Reading(source.name)
    try:
        record = kinds.as_record(source.document.value)
        shown = {key: value for key, value in record.items() if not key.startswith(("_", "$"))}
        values = reading.read(Spot(), shown, _FIELDS)
        reading.refuse_unknown()
        values |= _settle_gates(values)
    except kinds.Misfit as misfit:
        raise reading.error(Spot(), misfit) from None
    named = values.get("agent") or ("aider" if values.keys() & _OF_AGENTS["aider"] else None)
    program, model = _OF_AGENTS.get(named or "", ("", "model"))
    agent = named or ("" if {"agent"} & {*options.given, *options.config} else AGENT)
    chosen = options.given.get("agent") or agent or options.config.get("agent")
    asked = {"agent": agent or None, "model": values.get(model) or (MODEL if chosen == AGENT else None)}
    plan = read_plan(reading, Document(_make_plan(values, asked), "JSON"), source.directory, options)
    template = values.get("prompt_template")
    assert plan.landing is not None
    return replace(
        plan,
        landing=replace(plan.landing, lands=values.get("lands", True)),
        repository=RepositoryWish(
            path=kinds.resolve(source.directory, values.get("repo_root", ".")),
            base=values.get("land.into"),
            keys={"path": "repo_root", "--base": "branch", "worktrees": "worktree_placement"},
        ),
        frame_file=template and kinds.resolve(source.directory, template),
        programs={agent: values[program]} if program in values else {},
    )


def _make_plan(values: _Values, asked: Mapping[str, str | None]) -> _Values:
    plan: _Values = {"feed": {}, "defaults": {}, "land": {"mends": MENDS}, "worktrees": {}}
    for name, value in values.items():
        part, dot, key = name.partition(".")
        if dot:
            plan[part][key] = value
    if plan["worktrees"].get("stay") != "sibling":
        plan["worktrees"].pop("prefix", None)
    plan |= {**asked, "max_parallel": values.get("workers", WORKERS), "worktrees": plan["worktrees"] or None}
    return {name: value for name, value in plan.items() if value is not None}


def _settle_gates(values: _Values) -> _Values:
    """The commands that have to exit 0 before work lands, and how long each may take."""
    gates: list[tuple[str, float]] = list(values.get("gates", ()))
    tests, command = values.get("run_tests"), values.get("test_command")
    if tests and command is None:
        raise kinds.Misfit("is true, but there is no test_command; say which command tests the work", "run_tests")
    if command is not None and tests is not False:
        gates.append((command, 0.0))
    commands = [gate for gate, _ in gates]
    if values.get("gates_parallel") and len(commands) > 1:
        commands = [_join(commands)]
    longest = max((limit for _, limit in gates), default=0.0)
    return {"land.gates": commands, **({"land.timeout": longest} if longest else {})}


def _join(commands: list[str]) -> str:
    """One command that runs all at once, and fails if one fails.

    >>> _join(["make lint", "make test"])
    '( make lint ) & p1=$!; ( make test ) & p2=$!; r=0; wait $p1 || r=1; wait $p2 || r=1; exit $r'
    """
    starts = " ".join(f"( {command} ) & p{number}=$!;" for number, command in enumerate(commands, 1))
    waits = " ".join(f"wait $p{number} || r=1;" for number in range(1, len(commands) + 1))
    return f"{starts} r=0; {waits} exit $r"


def _as_gate(value: Any) -> tuple[str, float]:
    """A command, or an object with `cmd` and `timeout_secs`."""
    if not isinstance(value, Mapping):
        return kinds.as_command(value), 0.0
    known, unknown = read_fields(value, _GATE_FIELDS)
    if unknown or "cmd" not in known:
        raise kinds.Misfit("is an object with cmd and timeout_secs")
    return known["cmd"], known.get("timeout_s", 0.0)


def _as_gates(value: Any) -> list[tuple[str, float]]:
    """Gates by their names, or a list of commands."""
    if not isinstance(value, Mapping):
        return [(command, 0.0) for command in kinds.as_commands(value)]
    return [kinds.at(name, _as_gate, gate) for name, gate in value.items()]


def _as_program(value: Any) -> tuple[str, ...]:
    """A program: its name or path, perhaps with arguments."""
    line = kinds.as_line(value)
    try:
        words = (line,) if os.path.isfile(line) else tuple(shlex.split(line))
    except ValueError as error:
        raise kinds.Misfit(f"is not a command line: {error}") from None
    if not words:
        raise kinds.Misfit("must not be empty")
    return words


def _as_merge_slot(value: Any) -> None:
    if not kinds.as_flag(value):
        raise kinds.Misfit(
            "false is not possible: merges at the same time would undo each other; leave it out, or set "
            "auto_merge_worktrees to false and merge by hand (sessionrun merge ID)"
        )


def _refuse_summary(value: Any) -> None:
    raise kinds.Misfit("leave it out: `sessionrun status`, `results` and `cost` tell what each worker did")


_GATE_FIELDS: Final[Mapping[str, Field]] = {
    "cmd": Field("cmd", kinds.as_command),
    "timeout_secs": Field("timeout_s", kinds.as_duration),
}

_FIELDS: Final[Mapping[str, Field]] = {
    "num_workers": Field("workers", kinds.as_whole(1)),
    "worktree_placement": Field("worktrees.stay", kinds.as_choice(PLACEMENTS)),
    "worktree_prefix": Field("worktrees.prefix", kinds.as_id),
    "branch": Field("land.into", kinds.as_line.then(lambda name: name.removeprefix("refs/heads/"))),
    "repo_root": Field("repo_root", kinds.as_line),
    "auto_merge_worktrees": Field("lands", kinds.as_flag),
    "create_bead_on_merge_conflict": Field(
        "land.mends", kinds.as_flag.then(lambda wanted: MENDS if wanted else 0)
    ),
    "auto_retry_merge_on_conflict_close": Field("feed.lands_again", kinds.as_flag),
    "merge_slot": Field("merge_slot", _as_merge_slot),
    "worker_backend": Field("agent", kinds.as_line),
    "agent": Field("agent", kinds.as_line),
    "model": Field("model", kinds.as_line),
    "aider_cmd": Field("aider_cmd", _as_program),
    "claude_cmd": Field("claude_cmd", _as_program),
    "claude_model": Field("claude_model", kinds.as_line),
    "worker_timeout_secs": Field("defaults.timeout_s", kinds.as_duration),
    "max_worker_retries": Field("defaults.retries", kinds.as_whole(0)),
    "poll_interval_secs": Field("feed.poll_s", as_interval),
    "bd_sync_interval_secs": Field("feed.sync_s", as_interval),
    "auto_unblock_in_progress": Field("feed.takes_back", kinds.as_flag),
    "auto_unblock_interval_secs": Field("feed.take_back_s", as_interval),
    "auto_unblock_max_items": Field("feed.take_back_most", kinds.as_whole(1)),
    "gates": Field("gates", _as_gates),
    "gates_parallel": Field("gates_parallel", kinds.as_flag),
    "run_tests": Field("run_tests", kinds.as_flag),
    "test_command": Field("test_command", kinds.as_command),
    "check": Field("defaults.check", kinds.as_commands),
    "expect_change": Field("defaults.expect_change", kinds.as_flag),
    "ingest": Field("feed.ingest", kinds.as_whole(0)),
    "group": Field("feed.group", kinds.as_line),
    "prompt_template": Field("prompt_template", kinds.as_line),
    "worker_summary": Field("worker_summary", _refuse_summary),
    "worker_summary_log": Field("worker_summary_log", _refuse_summary),
}
"""Each key with the place in a plan of what it says, `RECORD.KEY`, or a name for `load`; or why it is refused."""

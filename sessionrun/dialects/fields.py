"""Which fields a record may have, how each is spelled, and which converter reads it: literal tables.

Shared by dialects and configuration; must not know files or formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple, get_args

from sessionrun.dialects.convert import (
    Misfit,
    Path,
    as_alternatives,
    as_amounts,
    as_argv,
    as_budget,
    as_choice,
    as_commands,
    as_duration,
    as_environment,
    as_flag,
    as_id,
    as_labels,
    as_line,
    as_links,
    as_needs,
    as_prompt,
    as_prompts,
    as_reason_classes,
    as_record,
    as_ref,
    as_repo,
    as_sole_prompt,
    as_whole,
    as_workspace,
)
from sessionrun.dialects.limits import quote
from sessionrun.dialects.pace import as_load, as_size
from sessionrun.dialects.paths import as_project_paths
from sessionrun.dialects.plan import LandingWish, SeatsWish
from sessionrun.dialects.sandbox import SANDBOX_FIELDS, as_sandbox
from sessionrun.model.checks import ANSWER_KINDS, ANSWER_MODES, REPORT_USES, RESETS, Brief
from sessionrun.model.phrases import suggest as suggest
from sessionrun.model.places import PLACEMENTS
from sessionrun.model.spec import (
    BeginsAt,
    Check,
    Environment,
    EnvironmentKind,
    Halt,
    LeftoversPolicy,
    Limits,
    PromptMode,
    Prove,
)

NOTE: Final = "x-"
"""How keys begin that are the user's own notes: they mean nothing, in any record."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class Field(NamedTuple):
    """`name` is the model's name for it; several spellings may share one."""

    name: str
    convert: Callable[[Any], Any]


def render_path(path: Path) -> str:
    """Spell a path as people do: ``prompts[2].env["a b"]``."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _NAME.fullmatch(step) and len(step) <= 60:
            text += f".{step}" if text else step
        else:
            text += f"[{quote(step)}]"
    return text


def read_fields(record: Mapping[str, Any], table: Mapping[str, Field], unknown: list[Path]) -> dict[str, Any]:
    """Convert the fields of one object; null counts as not written.

    Paths of keys that the table does not know, also one level down, are added to `unknown`; notes are passed over.

    Raises:
        Misfit: the first value that does not fit, or two spellings of one field.
    """
    values: dict[str, Any] = {}
    for key, value in record.items():
        field = table.get(key)
        if field is None:
            if not _is_note(key):
                unknown.append((key,))
        elif value is not None:
            if field.name in values:
                raise Misfit(f"{_twin(key, record, table)} and {key} mean the same; keep one")
            try:
                values[field.name] = field.convert(value)
            except Misfit as misfit:
                raise misfit.within(key) from None
            if type(value) is dict and key in NESTED:
                known = NESTED[key]
                unknown += [(key, inner) for inner in value if inner not in known and not _is_note(inner)]
    if "rounds" in table and "check" in table:
        _settle_rounds(values, record)
        _settle_prove(values, record)
    return values


def _settle_rounds(values: dict[str, Any], record: Mapping[str, Any]) -> None:
    """Give the task, or the defaults, the rounds that stand in the check.

    Raises:
        Misfit: other rounds stand beside the check.
    """
    check = record.get("check")
    rounds = check.get("rounds") if isinstance(check, Mapping) else None
    if rounds is not None and values.setdefault("rounds", rounds) != rounds:
        raise Misfit(
            f'is {rounds}, but "rounds" beside the check is {values["rounds"]}; keep one', "check", "rounds"
        )


def _settle_prove(values: dict[str, Any], record: Mapping[str, Any]) -> None:
    """Give the task, or the defaults, the proof that is asked for in the check.

    Raises:
        Misfit: another one is asked for beside the check.
    """
    check = record.get("check")
    asked = check.get("prove") if isinstance(check, Mapping) else None
    if asked is not None and values.setdefault("prove", as_prove(asked)) != as_prove(asked):
        raise Misfit('and "prove" beside the check do not say the same; keep one', "check", "prove")


def _is_note(key: object) -> bool:
    return str(key).startswith(NOTE)


def _twin(key: str, record: Mapping[str, Any], table: Mapping[str, Field]) -> str:
    return next(k for k in record if k in table and k != key and table[k].name == table[key].name)


def as_check(value: Any) -> Check | None:
    """Shell commands, or an object with ``commands``; None without a command: there is no check then."""
    if not isinstance(value, Mapping):
        commands = as_commands(value)
        return Check(commands) if commands else None
    fields = read_fields(value, _CHECK, [])
    if not fields.get("commands") and "verify" not in fields:
        raise Misfit('needs "commands": text or a list of text')
    for name in ("rounds", "prove"):  # they are the task's, see `_settle_rounds` and `_settle_prove`
        fields.pop(name, None)
    return Check(**{"commands": (), **fields, "timeout_s": fields.get("timeout_s") or None})


def as_brief(value: Any) -> Brief:
    """Files that the agent is shown, and files that its work is to be."""
    return Brief(**read_fields(as_record(value), _BRIEF, []))


def as_prove(value: Any) -> Prove | None:
    """Whether the work is to be proved, or an object that says how."""
    if isinstance(value, Mapping):
        return Prove(**read_fields(value, _PROVE, []))
    return Prove() if as_flag(value) else None


def as_landing(value: Any) -> LandingWish:
    """A branch, true for the branch where the session begins, or an object."""
    if not isinstance(value, Mapping):
        if value is True:
            return LandingWish()
        if isinstance(value, bool):
            raise Misfit("must be true, a branch or an object; leave it out if nothing is to land")
        return LandingWish(as_line(value))
    return LandingWish(**read_fields(value, LANDING, []))


def as_seats(value: Any) -> SeatsWish:
    """Where worktrees stay, as a word or in an object with ``stay``."""
    if not isinstance(value, Mapping):
        return SeatsWish(_as_placement(value))  # type: ignore[arg-type]
    fields = read_fields(value, SEATS, [])
    if "stay" not in fields:
        raise Misfit(f'needs "stay": {" or ".join(PLACEMENTS)}')
    return SeatsWish(**fields)


def as_environment_wish(value: Any) -> Environment:
    """A kind of environment, or an object with ``kind``."""
    if not isinstance(value, Mapping):
        return Environment(as_kind(value))  # type: ignore[arg-type]
    return Environment(**read_fields(value, _ENVIRONMENT, []))


def as_limits(value: Any) -> Limits:
    """Session-wide stops."""
    return Limits(**read_fields(as_record(value), _LIMITS, []))


_as_placement: Final = as_choice(PLACEMENTS)

as_kind: Final = as_choice(get_args(EnvironmentKind))
"""The kinds of environments; other languages have `setup`."""

MAX_PRIORITY: Final = 1_000_000

_TIMEOUT: Final = Field("timeout_s", as_duration)

_CHECK: Final[Mapping[str, Field]] = {
    "commands": Field("commands", as_commands),
    "timeout": _TIMEOUT,
    "timeout_s": _TIMEOUT,
    "rounds": Field("rounds", as_whole(1)),
    "reset": Field("reset", as_choice(RESETS)),
    "report": Field("report", as_choice(REPORT_USES)),
    "prove": Field("prove", as_prove),
    "uses": Field("uses", as_amounts),
    "verify": Field("verify", as_prompt),
    "files": Field("files", as_project_paths),
}
_BRIEF: Final[Mapping[str, Field]] = {
    "mode": Field("mode", as_choice(ANSWER_MODES)),
    "system": Field("system", as_prompt),
    "context": Field("context", as_project_paths),
    "targets": Field("targets", as_project_paths),
    "outputs": Field("outputs", as_project_paths),
    "room": Field("room", as_whole(0)),
    "max_context_lines": Field("max_context_lines", as_whole(1)),
    "max_output_lines": Field("max_output_lines", as_whole(1)),
    "create_directories": Field("create_directories", as_flag),
    "protected": Field("protected", as_links),
}
_PROVE: Final[Mapping[str, Field]] = {
    "red": Field("red", as_flag),
    "test_files": Field("test_files", as_links),
    "own": Field("own", as_links),
    "repeat": Field("repeat", as_whole(1)),
}
LANDING: Final[Mapping[str, Field]] = {
    "into": Field("into", as_line),
    "gates": Field("gates", as_commands),
    "batch": Field("batch", as_whole(1)),
    "mends": Field("mends", as_whole(0)),
    "sandbox": Field("sandbox", as_sandbox),
    "timeout": Field("gate_timeout_s", as_duration),
    "timeout_s": Field("gate_timeout_s", as_duration),
}
"""What a plan, not a task of it, may say of landing."""

SEATS: Final[Mapping[str, Field]] = {
    "stay": Field("stay", _as_placement),
    "prefix": Field("prefix", as_id),
}
"""What a plan may say of worktrees that stay."""

_ENVIRONMENT: Final[Mapping[str, Field]] = {
    "kind": Field("kind", as_kind),
    "python": Field("python", as_line),
}
_SANDBOX: Final[Mapping[str, Field]] = {name: Field(name, convert) for name, convert in SANDBOX_FIELDS.items()}
PACE: Final[Mapping[str, Field]] = {
    "halt": Field("halt", as_choice(get_args(Halt))),
    "max_load": Field("max_load", as_load),
    "min_free_memory": Field("min_free_memory", as_size),
    "stagger": Field("stagger_s", as_duration),
    "stagger_s": Field("stagger_s", as_duration),
}
"""What a plan or a setting may say of how a session stops, and how fast it starts work."""

_LIMITS: Final[Mapping[str, Field]] = {
    "max_failures": Field("max_failures", as_whole(1)),
    "budget_usd": Field("budget_usd", as_budget),
    "soft_budget_usd": Field("soft_budget_usd", as_budget),
    "task_budget_usd": Field("task_budget_usd", as_budget),
    "workspace_timeout": Field("workspace_timeout_s", as_duration),
    "workspace_timeout_s": Field("workspace_timeout_s", as_duration),
    **PACE,
}

NESTED: Final[Mapping[str, Collection[str]]] = {
    "brief": _BRIEF,
    "check": _CHECK,
    "prove": _PROVE,
    "environment": _ENVIRONMENT,
    "land": LANDING,
    "limits": _LIMITS,
    "sandbox": _SANDBOX,
    "worktrees": SEATS,
    "workspace": ("kind",),
}
"""Fields that may be objects of their own, with the keys these know."""

DEFAULT_FIELDS: Final[Mapping[str, Field]] = {
    "title": Field("title", as_line),
    "agent": Field("agent", as_line),
    "model": Field("model", as_line),
    "args": Field("args", as_argv),
    "cwd": Field("cwd", as_line),
    "workspace": Field("workspace", as_workspace),
    "repo": Field("repo", as_repo),
    "ref": Field("ref", as_ref),
    "base": Field("base", as_choice(get_args(BeginsAt))),
    "environment": Field("environment", as_environment_wish),
    "setup": Field("setup", as_commands),
    "setup_timeout": Field("setup_timeout_s", as_duration),
    "setup_timeout_s": Field("setup_timeout_s", as_duration),
    "links": Field("links", as_links),
    "sandbox": Field("sandbox", as_sandbox),
    "uses": Field("uses", as_amounts),
    "check": Field("check", as_check),
    "brief": Field("brief", as_brief),
    "prove": Field("prove", as_prove),
    "answer": Field("answer", as_choice(ANSWER_KINDS)),
    "rounds": Field("rounds", as_whole(1)),
    "timeout": _TIMEOUT,
    "timeout_s": _TIMEOUT,
    "round_timeout": Field("round_timeout_s", as_duration),
    "round_timeout_s": Field("round_timeout_s", as_duration),
    "idle_timeout": Field("idle_timeout_s", as_duration),
    "idle_timeout_s": Field("idle_timeout_s", as_duration),
    "leftovers": Field("leftovers", as_choice(get_args(LeftoversPolicy))),
    "linger": Field("linger_s", as_duration),
    "linger_s": Field("linger_s", as_duration),
    "prompt_mode": Field("prompt_mode", as_choice(get_args(PromptMode))),
    "retries": Field("retries", as_whole(0)),
    "priority": Field("priority", as_whole(-MAX_PRIORITY)),
    "fallback": Field("fallback", as_alternatives),
    "fallback_on": Field("fallback_on", as_reason_classes),
    "expect_change": Field("expect_change", as_flag),
    "env": Field("env", as_environment),
    "labels": Field("labels", as_labels),
}
"""What one task, and `defaults` for all, may say."""

TASK_FIELDS: Final[Mapping[str, Field]] = {
    **DEFAULT_FIELDS,
    "id": Field("id", as_id),
    "prompt": Field("prompts", as_sole_prompt),
    "prompts": Field("prompts", as_prompts),
    "budget_usd": Field("budget_usd", as_budget),
    "needs": Field("needs", as_needs),
    "depends_on": Field("needs", as_needs),
}

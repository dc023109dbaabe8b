"""`dispatch_config.json`, the configuration of the dispatcher that came before: each key is honoured or refused.

Paths in it count from its directory.  This module must not know the command line.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from sessionrun.client.config import read_known
from sessionrun.input.fields import Field, read_fields, render_path
from sessionrun.input.kinds import (
    Misfit,
    as_choice,
    as_command,
    as_commands,
    as_duration,
    as_flag,
    as_id,
    as_line,
    as_whole,
    describe,
)
from sessionrun.input.limits import MAX_INPUT_BYTES, Breach, plain
from sessionrun.input.strict_json import parse_json
from sessionrun.model.errors import InputError
from sessionrun.model.places import PLACEMENTS
from sessionrun.store.files import NotRegular, read_regular

NAME: Final = "dispatch_config.json"

FRAME: Final = """\
{task}

Rules:
- Do this task and no other. Change only what it needs.
- Work in the current directory: it is a git worktree of your own. Do not switch branches, and do not push.
- Leave task_queue.json, .beads and .current_task.txt alone.
- Commit your work when it is done.
- Then append 1 to 3 ideas for follow-up tasks to suggested_tasks.txt in the top of the worktree: each on a line
  of its own, short, and one that can be done by itself. Do not commit that file. Write none if nothing is left.
"""
"""The prompt around each task of the queue, unless the user has another one."""

MENDS: Final = 3
"""How often a conflict is mended by a task before a person is asked."""

_Values = dict[str, Any]


def find_configuration(top: Path) -> Path | None:
    """The file in the top of the repository, if there is one."""
    path = top / NAME
    return path if os.path.lexists(path) else None


def load_configuration(path: Path) -> _Values:
    """Read a configuration; return values of `Settings` and `FeedSpec` by their names.

    Raises:
        InputError: it cannot be read, or a key cannot be honoured: which one, and why.
    """
    try:
        record = parse_json(read_regular(os.path.realpath(path), MAX_INPUT_BYTES).decode("utf-8-sig"))
    except NotRegular:
        raise InputError(f"{path}: is not a regular file") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8") from None
    except Breach as breach:
        raise InputError(f"{plain(str(path))}: {breach}") from None
    try:
        return _read(record, path.absolute().parent)
    except Misfit as misfit:
        where = ": ".join(filter(None, (plain(str(path)), render_path(misfit.path))))
        raise InputError(f"{where}: {misfit.problem}") from None


def _read(record: Any, folder: Path) -> _Values:
    if not isinstance(record, Mapping):
        raise Misfit(f"must be an object, not {describe(record)}")
    shown = {key: value for key, value in record.items() if not key.startswith(("_", "$"))}
    values = read_known(shown, _FIELDS)
    values.pop("merge_slot", None)
    values = _settle_agent(values)
    values |= _settle_gates(values)
    root = folder / values.pop("repo_root", ".")
    if not os.path.isdir(root):  # which also says so of a name that is too long
        raise Misfit(f"{root} is not a directory; it counts from the directory of this file", "repo_root")
    if "prompt_template" in values:
        values["frame"] = load_frame(folder / values.pop("prompt_template"))
    return {**values, "top": Path(os.path.realpath(root))}


def _settle_agent(values: _Values) -> _Values:
    """The agent with its program and model; those of the others have no effect, as in that dispatcher."""
    agent = values.get("agent") or ("aider" if values.keys() & _OF_AIDER else None)
    rest = {name: value for name, value in values.items() if name not in _OF_AGENTS}
    if agent is None:
        return rest
    prefix = "claude" if agent == "claude" else "aider" if agent == "aider" else ""
    program = values.get(f"{prefix}_cmd")
    model = values.get("claude_model") if agent == "claude" else values.get("model")
    rest["agent"] = agent
    return rest | ({"program": program} if program else {}) | ({"model": model} if model else {})


_OF_AIDER: Final = ("aider_cmd", "model")
_OF_AGENTS: Final = ("agent", "model", "aider_cmd", "claude_cmd", "claude_model")


def _settle_gates(values: _Values) -> _Values:
    """The commands that have to exit 0 before work lands, and how long each may take."""
    gates: list[tuple[str, float]] = list(values.pop("gates", ()))
    tests, command = values.pop("run_tests", None), values.pop("test_command", None)
    if tests and command is None:
        raise Misfit("is true, but there is no test_command; say which command tests the work", "run_tests")
    if command is not None and tests is not False:
        gates.append((command, 0.0))
    commands = [gate for gate, _ in gates]
    if values.pop("gates_parallel", False) and len(commands) > 1:
        commands = [_join(commands)]
    longest = max((limit for _, limit in gates), default=0.0)
    found: _Values = {"gates": tuple(commands)} if commands else {}
    return found | ({"gate_timeout_s": longest} if longest else {})


def _join(commands: list[str]) -> str:
    """One command that runs all at once, and fails if one fails.

    >>> _join(["make lint", "make test"])
    '( make lint ) & p1=$!; ( make test ) & p2=$!; r=0; wait $p1 || r=1; wait $p2 || r=1; exit $r'
    """
    starts = " ".join(f"( {command} ) & p{number}=$!;" for number, command in enumerate(commands, 1))
    waits = " ".join(f"wait $p{number} || r=1;" for number in range(1, len(commands) + 1))
    return f"{starts} r=0; {waits} exit $r"


def _as_gates(value: Any) -> list[tuple[str, float]]:
    """Gates by their names: a command, or an object with `cmd` and `timeout_secs`; or a list of commands."""
    if not isinstance(value, Mapping):
        return [(command, 0.0) for command in as_commands(value)]
    gates = []
    for name, gate in value.items():
        try:
            if not isinstance(gate, Mapping):
                gates.append((as_command(gate), 0.0))
                continue
            unknown: list[tuple[str | int, ...]] = []
            known = read_fields(gate, _GATE_FIELDS, unknown)
            if unknown or "cmd" not in known:
                raise Misfit("is an object with cmd and timeout_secs")
            gates.append((known["cmd"], known.get("timeout_s", 0.0)))
        except Misfit as misfit:
            raise misfit.within(name) from None
    return gates


def _as_program(value: Any) -> tuple[str, ...]:
    """A program: its name or path, perhaps with arguments."""
    line = as_line(value)
    try:
        words = (line,) if os.path.isfile(line) else tuple(shlex.split(line))
    except ValueError as error:
        raise Misfit(f"is not a command line: {error}") from None
    if not words:
        raise Misfit("must not be empty")
    return words


def _as_interval(value: Any) -> float:
    """Seconds between two looks."""
    seconds = as_duration(value)
    if not 0.05 <= seconds <= 86_400:
        raise Misfit(f"must be from 0.05 to 86400 seconds, not {describe(value)}")
    return seconds


def _as_branch(value: Any) -> str:
    return as_line(value).removeprefix("refs/heads/")


def _as_mends(value: Any) -> int:
    return MENDS if as_flag(value) else 0


def _only(wanted: bool, why: str) -> Callable[[Any], Any]:
    """A converter of a flag of which only one value is possible."""

    def convert(value: Any) -> bool:
        if as_flag(value) is not wanted:
            raise Misfit(why)
        return wanted

    return convert


def _refuse(why: str) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        raise Misfit(why)

    return convert


def load_frame(path: Path) -> str:
    """Read what is to stand around each task.

    Raises:
        Misfit: it cannot be read, or is empty.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise Misfit(f"{path}: is not UTF-8", "prompt_template") from None
    except OSError as error:
        raise Misfit(f"{path}: {error.strerror}", "prompt_template") from None
    if not text.strip():
        raise Misfit(f"{path}: is empty", "prompt_template")
    return text


_SLOT: Final = (
    "false is not possible: merges at the same time would undo each other; leave it out, or set "
    "auto_merge_worktrees to false and merge by hand (sessionrun merge ID)"
)
_SUMMARY: Final = "leave it out: `sessionrun status`, `results` and `cost` tell what each worker did"

_GATE_FIELDS: Final[Mapping[str, Field]] = {
    "cmd": Field("cmd", as_command),
    "timeout_secs": Field("timeout_s", as_duration),
}

_FIELDS: Final[Mapping[str, Field]] = {
    "num_workers": Field("workers", as_whole(1)),
    "worktree_placement": Field("placement", as_choice(PLACEMENTS)),
    "worktree_prefix": Field("prefix", as_id),
    "branch": Field("branch", _as_branch),
    "repo_root": Field("repo_root", as_line),
    "auto_merge_worktrees": Field("lands", as_flag),
    "create_bead_on_merge_conflict": Field("mends", _as_mends),
    "auto_retry_merge_on_conflict_close": Field("lands_again", as_flag),
    "merge_slot": Field("merge_slot", _only(True, _SLOT)),
    "worker_backend": Field("agent", as_line),
    "agent": Field("agent", as_line),
    "model": Field("model", as_line),
    "aider_cmd": Field("aider_cmd", _as_program),
    "claude_cmd": Field("claude_cmd", _as_program),
    "claude_model": Field("claude_model", as_line),
    "worker_timeout_secs": Field("timeout_s", as_duration),
    "max_worker_retries": Field("retries", as_whole(0)),
    "poll_interval_secs": Field("poll_s", _as_interval),
    "bd_sync_interval_secs": Field("sync_s", _as_interval),
    "auto_unblock_in_progress": Field("takes_back", as_flag),
    "auto_unblock_interval_secs": Field("take_back_s", _as_interval),
    "auto_unblock_max_items": Field("take_back_most", as_whole(1)),
    "gates": Field("gates", _as_gates),
    "gates_parallel": Field("gates_parallel", as_flag),
    "run_tests": Field("run_tests", as_flag),
    "test_command": Field("test_command", as_command),
    "check": Field("checks", as_commands),
    "expect_change": Field("expect_change", as_flag),
    "ingest": Field("ingest", as_whole(0)),
    "group": Field("group", as_line),
    "prompt_template": Field("prompt_template", as_line),
    "worker_summary": Field("worker_summary", _refuse(_SUMMARY)),
    "worker_summary_log": Field("worker_summary_log", _refuse(_SUMMARY)),
}
"""Each key with the name of the setting that it gives, or why it is refused."""

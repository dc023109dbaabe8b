"""The matrix dialect: tasks times models (times agents, times samples), one run for each cell.

Owns what the configuration of the Qwen Concurrent Runner may say and which runs it asks for.  Its paths count from
where the command was started, as they do there.  ``sessionrun-input(5)`` is its contract.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final, TypeAlias

from sessionrun.input import kinds
from sessionrun.input.fields import DEFAULT_FIELDS, as_limits
from sessionrun.input.formats import FORMATS
from sessionrun.input.levels import list_levels, settle_defaults, settle_task
from sessionrun.input.parse import Source
from sessionrun.input.plan import Plan, RepositoryWish
from sessionrun.input.reading import Field, Reading, Spot, table
from sessionrun.input.settings import Options, first
from sessionrun.input.text import quote
from sessionrun.model.errors import suggest
from sessionrun.model.spec import MATRIX_RESULTS, Export, Limits, TaskSpec, Workspace, WorkspaceKind

MAX_RUNS: Final = 100_000
"""More are a slip of the finger; and a list of them all is made before anything starts."""


Axes: TypeAlias = Mapping[str, Sequence[Any]]
"""What is multiplied: the names of tasks, models and agents, and the numbers of samples."""

Cell: TypeAlias = Mapping[str, Any]
"""One run: which task, with which model of which agent, for the how manieth time (from 1)."""

_MODEL_FIELDS: Final[Mapping[str, Field]] = {
    **table(name=kinds.as_line),
    **dict.fromkeys(("auth_type", "authType"), Field("auth_type", kinds.as_line)),
}
_RULE_FIELDS: Final[Mapping[str, Field]] = table(
    task=kinds.as_line, model=kinds.as_line, agent=kinds.as_line, sample=kinds.as_whole(1)
)


def _read_names(reading: Reading, axis: str, entries: Sequence[Any]) -> dict[str, str | None]:
    """An axis of names; one of a model may be an object that says how its agent is to sign in for it.

    Raises:
        InputError: an entry is no name, or is there twice.
    """
    names: dict[str, str | None] = {}
    for index, entry in enumerate(entries):
        spot, fields = Spot((axis, index)), {"name": entry}
        if axis == "models" and isinstance(entry, dict):
            fields = reading.read(spot, entry, _MODEL_FIELDS)
            if "name" not in fields:
                raise reading.error(spot, kinds.Misfit('has no "name"'))
        try:
            name = kinds.as_line(fields["name"])
        except kinds.Misfit as misfit:
            raise reading.error(spot, misfit) from None
        if name in names:
            raise reading.error(spot, kinds.Misfit(f"{quote(name)} is there twice; samples repeat a run"))
        names[name] = fields.get("auth_type")
    return names


def _spread(reading: Reading, axes: Axes, exclude: Sequence[Any]) -> list[Cell]:
    """The cells, task by task, in each model by model, in each agent by agent, but those that `exclude` matches.

    Raises:
        InputError: a rule is not valid, nothing is left, or there are too many.
    """
    count = math.prod(len(values) for values in axes.values())
    if count > MAX_RUNS:
        raise reading.error(Spot(), kinds.Misfit(f"makes {count:,} runs; the limit is {MAX_RUNS:,}"))
    rules = [_read_rule(reading, Spot(("exclude", index)), rule, axes) for index, rule in enumerate(exclude)]
    cells = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    kept: list[Cell] = [cell for cell in cells if not any(rule.items() <= cell.items() for rule in rules)]
    if not kept:
        raise reading.error(Spot(), kinds.Misfit("leaves no run", "exclude"))
    return kept


def _read_rule(reading: Reading, spot: Spot, rule: Any, axes: Axes) -> dict[str, Any]:
    """A rule names at least one axis, and only what is on it: else it would silently match nothing."""
    fields = reading.read(spot, rule, _RULE_FIELDS)
    if not fields:
        raise reading.error(spot, kinds.Misfit('names none of "task", "model", "agent", "sample"'))
    for key in ("task", "model", "agent"):
        values = axes[key]
        article = "an" if key == "agent" else "a"
        if key in fields and fields[key] not in values:
            problem = f"{quote(fields[key])} is not {article} {key} of this matrix{suggest(fields[key], values)}"
            raise reading.error(spot, kinds.Misfit(problem, key))
    if fields.get("sample", 1) not in axes["sample"]:
        raise reading.error(
            spot, kinds.Misfit(f"must be at most {len(axes['sample'])}, the number of samples", "sample")
        )
    return fields


AGENT: Final = "qwen"
MAX_PARALLEL: Final = 4
WORKTREE_BASE: Final = "~/.qwen/worktrees"
OUTPUTS_DIR: Final = "./outputs"
RESULTS_FILE: Final = "./results.json"
SETUP: Final = "if [ -f package.json ]; then npm install && npm run build; fi"
"""Whether there is one is asked where it counts: in the worktree, at the commit that it begins at."""


_LOGGING: Final = ("--openai-logging", "--openai-logging-dir={task_dir}/logs")
"""What qwen is told so that it logs its requests to its provider."""


_EXTRA_NAMES: Final = (
    *("environment", "setup", "setup_timeout_s", "check", "rounds", "retries", "timeout_s", "round_timeout_s"),
    *("idle_timeout_s", "leftovers", "linger_s", "env", "links", "sandbox", "repo", "ref"),
)
"""Keys of the native plan that all runs, or those of one task, may have as well."""

_EXTRAS: Final = {key: field for key, field in DEFAULT_FIELDS.items() if field.name in _EXTRA_NAMES}
_TOP_FIELDS: Final[Mapping[str, Field]] = {
    **table(
        concurrency=kinds.as_limit,
        yolo=kinds.as_flag,
        source_repo=kinds.as_line,
        branch=kinds.as_line,
        worktree_base=kinds.as_line,
        outputs_dir=kinds.as_line,
        results_file=kinds.as_line,
        keep_worktree=kinds.as_flag,
        tasks=kinds.as_list(1),
        models=kinds.as_list(1),
        agents=kinds.as_list(1),
        samples=kinds.as_whole(1),
        exclude=kinds.as_list(),
        name=kinds.as_line,
        limits=as_limits,
    ),
    "prompt_mode": DEFAULT_FIELDS["prompt_mode"],
    **_EXTRAS,
}
_TASK_FIELDS: Final[Mapping[str, Field]] = {
    **table(id=kinds.as_line, name=kinds.as_line, prompts=kinds.as_list(1).then(kinds.as_prompts)),
    **_EXTRAS,
}


def load(source: Source, options: Options) -> Plan:
    value = source.document.value
    reading = Reading(source.name)
    if not isinstance(value, dict):
        raise reading.error(
            Spot(), kinds.Misfit(f"expected {FORMATS['matrix'].expects}, not {kinds.describe(value)}")
        )
    top = reading.read(Spot(), value, _TOP_FIELDS)
    started_in = source.started_in or source.directory
    model, agent = options.given.get("model"), options.given.get("agent")  # each takes the place of a whole axis
    for key in ("tasks",) if model else ("tasks", "models"):
        if key not in top:
            raise reading.error(Spot(), kinds.Misfit(f'the object has no "{key}"'))
    rows = _read_rows(reading, top, started_in)
    models = {model: None} if model else _read_names(reading, "models", top["models"])
    agents = [agent] if agent else [*_read_names(reading, "agents", top.get("agents", ()))]
    axes = {
        "task": [*rows],
        "model": [*models],
        "agent": agents or [options.config.get("agent") or AGENT],
        "sample": range(1, top.get("samples", 1) + 1),
    }
    cells = _spread(reading, axes, top.get("exclude", ()))
    wish = RepositoryWish(
        path=kinds.resolve(started_in, top.get("source_repo", ".")),
        base=top.get("branch"),
        worktree_dir=kinds.resolve(started_in, top.get("worktree_base", WORKTREE_BASE)),
        keep="always" if top.get("keep_worktree") else None,
        keys={"path": "source_repo", "--base": "branch", "--worktree-dir": "worktree_base"},
    )
    parallel = first(options.choose("max_parallel", top.get("concurrency")), MAX_PARALLEL)
    settings: dict[str, Any] = {"setup": (SETUP,)}
    settings |= {name: top[name] for name in (*_EXTRA_NAMES, "prove", "prompt_mode") if name in top}
    settings = kinds.resolve_paths(started_in, settings)
    base = {**settle_defaults(options, settings, list_levels(options, {}, {})), "cwd": wish.path}
    return Plan(
        tasks=tuple(_make_tasks(base, rows, models, cells, branched="branch" in top)),
        name=top.get("name"),
        max_parallel=parallel or None,
        limits=top.get("limits", Limits()),
        agent=options.given.get("agent"),
        approve=top.get("yolo"),
        repository=wish,
        exports=(_export(top, started_in),),
        warnings=tuple(reading.warnings()),
    )


def _read_rows(reading: Reading, top: Mapping[str, Any], started_in: str) -> dict[str, dict[str, Any]]:
    """What each task says, by its id; its prompts are joined unless they are turns of one conversation."""
    rows: dict[str, dict[str, Any]] = {}
    for index, entry in enumerate(top["tasks"]):
        spot = Spot(("tasks", index))
        own = reading.read(
            spot, entry, _TASK_FIELDS, dict.fromkeys(_TOP_FIELDS, "it is a key of the whole matrix")
        )
        for key in ("id", "prompts"):
            if key not in own:
                raise reading.error(spot, kinds.Misfit(f'has no "{key}"'))
        if own["id"] in rows:
            raise reading.error(spot, kinds.Misfit(f"{quote(own['id'])} is used twice", "id"))
        if top.get("prompt_mode") != "continue":
            own["prompts"] = ("\n".join(own["prompts"]),)
        rows[own["id"]] = kinds.resolve_paths(started_in, own)
    return rows


def _make_tasks(
    base: Mapping[str, Any],
    rows: Mapping[str, Mapping[str, Any]],
    models: Mapping[str, str | None],
    cells: Sequence[Cell],
    *,
    branched: bool,
) -> Iterator[TaskSpec]:
    ids: set[str] = set()
    while len(ids) < len(cells):
        ids.add(os.urandom(4).hex())
    for cell, run_id in zip(cells, ids, strict=True):
        row, agent, model = dict(rows[cell["task"]]), cell["agent"], cell["model"]
        task_id, prompts = row.pop("id"), row.pop("prompts")
        title = row.pop("name", task_id)
        # which cell a run is of; by these it is found again when the same file is run once more
        labels = {"task": task_id, "name": title, "model": model, "agent": agent, "sample": str(cell["sample"])}
        args = _LOGGING if agent == AGENT else ()
        if auth_type := models[model]:
            labels["auth_type"] = auth_type
            args = (f"--auth-type={auth_type}", *args) if agent == AGENT else args
        name = f"run-{run_id}"
        fields = settle_task(row, base, ())
        kind: WorkspaceKind = "mirror" if fields["upstream"] is not None else "worktree"
        fields.update(
            agent=agent,
            model=model,
            args=args,
            workspace=Workspace(kind, branch=f"{{base}}-{name}" if branched else name, directory=name),
            cwd=base["cwd"] if kind == "worktree" else None,
            labels=labels,
        )
        yield TaskSpec(id=run_id, title=f"{title} ({model})", prompts=prompts, **fields)


def _export(top: Mapping[str, Any], started_in: str) -> Export:
    """The results file and the directories of outputs; `shown_as` is how the former names the latter."""
    outputs = top.get("outputs_dir", OUTPUTS_DIR)
    settings = {
        "results_file": kinds.resolve(started_in, top.get("results_file", RESULTS_FILE)),
        "outputs_dir": kinds.resolve(started_in, outputs),
        "shown_as": os.path.normpath(outputs),
        "kept": {},
    }
    return Export(MATRIX_RESULTS, settings)

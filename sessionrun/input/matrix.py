"""The matrix dialect: tasks times models (times agents, times samples), one run for each cell.

Owns what the configuration of the Qwen Concurrent Runner may say and which runs it asks for.  Its paths count from
where the command was started, as they do there.  Must not know sessions or the file system;
``sessionrun-input(5)`` is its contract.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sessionrun.input.fields import DEFAULT_FIELDS, as_limits
from sessionrun.input.formats import FORMATS
from sessionrun.input.kinds import (
    Misfit,
    as_flag,
    as_limit,
    as_line,
    as_list,
    as_prompts,
    as_whole,
    describe,
    resolve,
    resolve_repo,
)
from sessionrun.input.levels import list_levels, settle_defaults, settle_task
from sessionrun.input.limits import quote
from sessionrun.input.parse import Source
from sessionrun.input.plan import Plan, RepositoryWish
from sessionrun.input.reading import Field, Reading, Spot, table
from sessionrun.input.settings import Options, first
from sessionrun.model.errors import suggest
from sessionrun.model.frozen import frozen
from sessionrun.model.spec import MATRIX_RESULTS, Export, Limits, TaskSpec, Workspace, WorkspaceKind

MAX_RUNS: Final = 100_000
"""More are a slip of the finger; and a list of them all is made before anything starts."""


@frozen
class Model:
    """One entry of the axis of models; `auth_type` is how the agent is to sign in for it."""

    name: str
    auth_type: str | None = None


@frozen
class Cell:
    """One run: which task, with which model of which agent, for the how manieth time (from 1)."""

    task: str
    model: Model
    agent: str
    sample: int = 1


@frozen
class Axes:
    """What is multiplied."""

    tasks: Sequence[str]
    models: Sequence[Model]
    agents: Sequence[str]
    samples: int = 1

    def count(self) -> int:
        """How many cells there are."""
        return len(self.tasks) * len(self.models) * len(self.agents) * self.samples

    def cells(self) -> Iterator[Cell]:
        """All cells: task by task, in each model by model, in each agent by agent."""
        for task in self.tasks:
            for model in self.models:
                for agent in self.agents:
                    for sample in range(1, self.samples + 1):
                        yield Cell(task, model, agent, sample)


_MODEL_FIELDS: Final[Mapping[str, Field]] = {
    **table(name=as_line),
    **dict.fromkeys(("auth_type", "authType"), Field("auth_type", as_line)),
}
_RULE_FIELDS: Final[Mapping[str, Field]] = table(task=as_line, model=as_line, agent=as_line, sample=as_whole(1))


def read_models(reading: Reading, entries: Sequence[Any]) -> list[Model]:
    """The axis of models: names, or objects with a name.

    Raises:
        InputError: an entry is not a model, or is there twice.
    """
    models: dict[str, Model] = {}
    for index, entry in enumerate(entries):
        spot = Spot(("models", index))
        fields = reading.read(spot, entry, _MODEL_FIELDS) if isinstance(entry, dict) else {}
        if isinstance(entry, dict) and "name" not in fields:
            raise reading.error(spot, Misfit('has no "name"'))
        model = Model(**fields) if fields else Model(_read_name(reading, spot, entry))
        if models.setdefault(model.name, model) is not model:
            raise reading.error(spot, Misfit(f"{quote(model.name)} is there twice; samples repeat a run"))
    return list(models.values())


def read_agents(reading: Reading, entries: Sequence[Any]) -> list[str]:
    """The axis of agents.

    Raises:
        InputError: an entry is not a name, or is there twice.
    """
    names: list[str] = []
    for index, entry in enumerate(entries):
        spot = Spot(("agents", index))
        name = _read_name(reading, spot, entry)
        if name in names:
            raise reading.error(spot, Misfit(f"{quote(name)} is there twice; samples repeat a run"))
        names.append(name)
    return names


def spread(reading: Reading, axes: Axes, exclude: Sequence[Any]) -> list[Cell]:
    """The cells of the axes without those that `exclude` matches.

    Raises:
        InputError: a rule is not valid, nothing is left, or there are too many.
    """
    if axes.count() > MAX_RUNS:
        raise reading.error(Spot(), Misfit(f"makes {axes.count():,} runs; the limit is {MAX_RUNS:,}"))
    rules = [_read_rule(reading, Spot(("exclude", index)), rule, axes) for index, rule in enumerate(exclude)]
    cells = [cell for cell in axes.cells() if not any(_matches(rule, cell) for rule in rules)]
    if not cells:
        raise reading.error(Spot(), Misfit("leaves no run", "exclude"))
    return cells


def _read_name(reading: Reading, spot: Spot, entry: Any) -> str:
    try:
        return as_line(entry)
    except Misfit as misfit:
        raise reading.error(spot, misfit) from None


def _read_rule(reading: Reading, spot: Spot, rule: Any, axes: Axes) -> dict[str, Any]:
    """A rule names at least one axis, and only what is on it: else it would silently match nothing."""
    if not isinstance(rule, dict):
        raise reading.error(spot, Misfit(f"must be an object, not {describe(rule)}"))
    fields = reading.read(spot, rule, _RULE_FIELDS)
    if not fields:
        raise reading.error(spot, Misfit('names none of "task", "model", "agent", "sample"'))
    known = {"task": axes.tasks, "model": [model.name for model in axes.models], "agent": axes.agents}
    for key, values in known.items():
        article = "an" if key == "agent" else "a"
        if key in fields and fields[key] not in values:
            problem = f"{quote(fields[key])} is not {article} {key} of this matrix{suggest(fields[key], values)}"
            raise reading.error(spot, Misfit(problem, key))
    if fields.get("sample", 1) > axes.samples:
        raise reading.error(spot, Misfit(f"must be at most {axes.samples}, the number of samples", "sample"))
    return fields


def _matches(rule: Mapping[str, Any], cell: Cell) -> bool:
    own = {"task": cell.task, "model": cell.model.name, "agent": cell.agent, "sample": cell.sample}
    return all(own[key] == value for key, value in rule.items())


AGENT: Final = "qwen"
MAX_PARALLEL: Final = 4
WORKTREE_BASE: Final = "~/.qwen/worktrees"
OUTPUTS_DIR: Final = "./outputs"
RESULTS_FILE: Final = "./results.json"
SETUP: Final = "if [ -f package.json ]; then npm install && npm run build; fi"
"""Whether there is one is asked where it counts: in the worktree, at the commit that it begins at."""


_LOGGING: Final[Mapping[str, tuple[str, ...]]] = {
    "qwen": ("--openai-logging", "--openai-logging-dir={task_dir}/logs"),
}
"""What an agent is told so that it logs its requests to its provider."""

_AUTH: Final[Mapping[str, str]] = {"qwen": "--auth-type="}


def _as_prompts(value: Any) -> tuple[str, ...]:
    return as_prompts(as_list(1)(value))


_EXTRA_NAMES: Final = (
    *("environment", "setup", "setup_timeout_s", "check", "rounds", "retries", "timeout_s", "round_timeout_s"),
    *("idle_timeout_s", "leftovers", "linger_s", "env", "links", "sandbox", "repo", "ref"),
)
"""Keys of the native plan that all runs, or those of one task, may have as well."""

_EXTRAS: Final = {key: field for key, field in DEFAULT_FIELDS.items() if field.name in _EXTRA_NAMES}
_TOP_FIELDS: Final[Mapping[str, Field]] = {
    **table(
        concurrency=as_limit,
        yolo=as_flag,
        source_repo=as_line,
        branch=as_line,
        worktree_base=as_line,
        outputs_dir=as_line,
        results_file=as_line,
        keep_worktree=as_flag,
        tasks=as_list(1),
        models=as_list(1),
        agents=as_list(1),
        samples=as_whole(1),
        exclude=as_list(),
        name=as_line,
        limits=as_limits,
    ),
    "prompt_mode": DEFAULT_FIELDS["prompt_mode"],
    **_EXTRAS,
}
_TASK_FIELDS: Final[Mapping[str, Field]] = {**table(id=as_line, name=as_line, prompts=_as_prompts), **_EXTRAS}


@frozen
class _Row:
    """One task: its id and name in the input, its prompts, and what else it says for its runs."""

    id: str
    name: str
    prompts: tuple[str, ...]
    own: Mapping[str, Any]


def load(source: Source, options: Options) -> Plan:
    """Read a matrix."""
    value = source.document.value
    reading = Reading(source.name)
    if not isinstance(value, dict):
        raise reading.error(Spot(), Misfit(f"expected {FORMATS['matrix'].expects}, not {describe(value)}"))
    top = reading.read(Spot(), value, _TOP_FIELDS)
    started_in = source.started_in or source.directory
    rows = _read_rows(reading, top, started_in)
    axes = _read_axes(reading, top, options, rows)
    cells = spread(reading, axes, top.get("exclude", ()))
    wish = _wish_repository(top, started_in)
    parallel = first(options.choose("max_parallel", top.get("concurrency")), MAX_PARALLEL)
    base = _settle_base(top, options, wish, started_in)
    return Plan(
        tasks=tuple(_make_tasks(base, rows, cells, branched="branch" in top)),
        name=options.given.get("name", top.get("name")),
        labels=options.given.get("labels", {}),
        max_parallel=parallel or None,
        limits=top.get("limits", Limits()),
        auto_release=options.given.get("auto_release", True),
        agent=options.given.get("agent"),
        approve=top.get("yolo"),
        repository=wish,
        exports=(_export(top, started_in),),
        warnings=tuple(reading.warnings()),
    )


def _read_rows(reading: Reading, top: Mapping[str, Any], started_in: str) -> dict[str, _Row]:
    """The tasks by their ids, in order."""
    rows: dict[str, _Row] = {}
    for index, entry in enumerate(_needed(reading, top, "tasks")):
        spot = Spot(("tasks", index))
        if not isinstance(entry, dict):
            raise reading.error(spot, Misfit(f"must be an object, not {describe(entry)}"))
        own = reading.read(
            spot, entry, _TASK_FIELDS, dict.fromkeys(_TOP_FIELDS, "it is a key of the whole matrix")
        )
        for key in ("id", "prompts"):
            if key not in own:
                raise reading.error(spot, Misfit(f'has no "{key}"'))
        if "repo" in own:
            own["repo"] = resolve_repo(started_in, own["repo"])
        prompts = own.pop("prompts")
        turns = prompts if top.get("prompt_mode") == "continue" else ("\n".join(prompts),)
        name = own.pop("name", own["id"])
        row = _Row(own.pop("id"), name, turns, own)
        if rows.setdefault(row.id, row) is not row:
            raise reading.error(spot, Misfit(f"{quote(row.id)} is used twice", "id"))
    return rows


def _read_axes(reading: Reading, top: Mapping[str, Any], options: Options, rows: Mapping[str, _Row]) -> Axes:
    """What is multiplied; a flag takes the place of a whole axis."""
    model, agent = options.given.get("model"), options.given.get("agent")
    models = [Model(model)] if model else read_models(reading, _needed(reading, top, "models"))
    agents = [agent] if agent else read_agents(reading, top.get("agents", ()))
    return Axes(list(rows), models, agents or [options.config.get("agent") or AGENT], top.get("samples", 1))


def _settle_base(
    top: Mapping[str, Any], options: Options, wish: RepositoryWish, started_in: str
) -> dict[str, Any]:
    """What all runs have in common; agent and model are each one's own."""
    settings = {"setup": (SETUP,), **{name: top[name] for name in (*_EXTRA_NAMES, "prompt_mode") if name in top}}
    if "repo" in settings:
        settings["repo"] = resolve_repo(started_in, settings["repo"])
    return {**settle_defaults(options, settings, list_levels(options, {}, {})), "cwd": wish.path}


def _make_tasks(
    base: Mapping[str, Any], rows: Mapping[str, _Row], cells: Sequence[Cell], *, branched: bool
) -> Iterator[TaskSpec]:
    ids = _fresh_ids(len(cells))
    for cell in cells:
        row, run_id = rows[cell.task], next(ids)
        name = f"run-{run_id}"
        fields = settle_task(row.own, base, ())
        kind: WorkspaceKind = "mirror" if fields["upstream"] is not None else "worktree"
        fields.update(
            agent=cell.agent,
            model=cell.model.name,
            args=_arguments(cell),
            workspace=Workspace(kind, branch=f"{{base}}-{name}" if branched else name, directory=name),
            cwd=base["cwd"] if kind == "worktree" else None,
            labels=_label(row, cell),
        )
        yield TaskSpec(id=run_id, title=f"{row.name} ({cell.model.name})", prompts=row.prompts, **fields)


def _arguments(cell: Cell) -> tuple[str, ...]:
    auth_type = cell.model.auth_type
    sign_in = (_AUTH[cell.agent] + auth_type,) if auth_type and cell.agent in _AUTH else ()
    return (*sign_in, *_LOGGING.get(cell.agent, ()))


def _label(row: _Row, cell: Cell) -> dict[str, str]:
    """Which cell a run is of; what it is found by again when the same file is run once more."""
    labels = {"task": row.id, "name": row.name, "model": cell.model.name, "agent": cell.agent}
    labels["sample"] = str(cell.sample)
    if cell.model.auth_type:
        labels["auth_type"] = cell.model.auth_type
    return labels


def _wish_repository(top: Mapping[str, Any], started_in: str) -> RepositoryWish:
    return RepositoryWish(
        path=resolve(started_in, top.get("source_repo", ".")),
        base=top.get("branch"),
        worktree_dir=resolve(started_in, top.get("worktree_base", WORKTREE_BASE)),
        keep="always" if top.get("keep_worktree") else None,
        keys={"path": "source_repo", "--base": "branch", "--worktree-dir": "worktree_base"},
    )


def _export(top: Mapping[str, Any], started_in: str) -> Export:
    """The results file and the directories of outputs; `shown_as` is how the former names the latter."""
    outputs = top.get("outputs_dir", OUTPUTS_DIR)
    settings = {
        "results_file": resolve(started_in, top.get("results_file", RESULTS_FILE)),
        "outputs_dir": resolve(started_in, outputs),
        "shown_as": os.path.normpath(outputs),
        "kept": {},
    }
    return Export(MATRIX_RESULTS, settings)


def _needed(reading: Reading, top: Mapping[str, Any], key: str) -> Sequence[Any]:
    if key not in top:
        raise reading.error(Spot(), Misfit(f'the object has no "{key}"'))
    entries: Sequence[Any] = top[key]
    return entries


def _fresh_ids(count: int) -> Iterator[str]:
    """So many different ids of eight hexadecimal digits."""
    seen: set[str] = set()
    while len(seen) < count:
        new = os.urandom(4).hex()
        if new not in seen:
            seen.add(new)
            yield new

"""The axes of a matrix and the cells they span.  Must not know what a cell's run is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sessionrun.input.kinds import Misfit, as_line, as_whole, describe
from sessionrun.input.limits import quote
from sessionrun.input.reading import Field, Reading, Spot, table
from sessionrun.model.frozen import frozen
from sessionrun.model.phrases import suggest

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

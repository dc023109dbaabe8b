"""Configuration: `sessionrun.toml`, the user's own file, and environment variables, named one by one.

Owns where these lie, which keys they may have and which wins.  A key that is not known is an error here: a
setting that silently does nothing would be worse than a refusal.  Must not know sessions.  Verbs that only read
use `load_results_dir`: it parses a file only if that names a directory of results.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sessionrun.model.errors import InputError
from sessionrun.store.index import user_directory

if TYPE_CHECKING:
    from sessionrun.model.spec import AgentSpec, Price

PROJECT_FILE: Final = "sessionrun.toml"
_PREFIXES: Final = ("SESSIONRUN_", "SWEBENCH_")
DEFAULT: Final = "default"


class InUse(NamedTuple):
    """A setting, its value (None: it is not set), and a file, a variable or `DEFAULT`."""

    name: str
    value: Any
    origin: str


class Config(NamedTuple):
    """What files and environment say.

    `agents` holds the built-in agents, as the files changed them, and the user's own; `prices` the prices of
    models as the user gives them; `values` the settings by their names, as far as they are set, with absolute
    directories; `origins` where each of them stands, `tables` the agents and prices as the files say them.
    """

    agents: Mapping[str, AgentSpec]
    prices: Mapping[str, Price] = {}
    values: Mapping[str, Any] = {}
    origins: Mapping[str, str] = {}
    tables: Mapping[str, InUse] = {}


def load_config(cwd: Path, environ: Mapping[str, str]) -> Config:
    """Read all configuration: environment over `sessionrun.toml` over the user's file.

    A model belongs to the agent beside which it is written: a stronger level that names another agent and no model
    drops the model.

    Raises:
        InputError: a file that cannot be read or parsed, an unknown key, a value that does not fit.
    """
    from sessionrun.agents.table import BUILTIN
    from sessionrun.input.fields import make_agent, make_price
    from sessionrun.input.kinds import Misfit, as_record
    from sessionrun.input.reading import Reading, Spot

    agents, merged, origins, tables = dict(BUILTIN), dict[str, Any](), dict[str, str](), dict[str, InUse]()
    prices: dict[str, Price] = {}
    for file in _files(cwd, environ):
        values = _read_file(file)
        for kind in ("agents", "prices"):
            for name, table in values.pop(kind, {}).items():
                try:
                    if kind == "agents":
                        agents[name] = make_agent(name, as_record(table), agents.get(name))
                    else:
                        prices[name] = make_price(name, as_record(table))
                except Misfit as misfit:
                    raise Reading(str(file)).error(Spot((kind, name)), misfit) from None
                tables[f"{kind}.{name}"] = InUse(f"{kind}.{name}", table, str(file))
        merged = _lay_over(merged, values)
        origins |= dict.fromkeys(values, str(file))
    found = _read_variables(cwd, environ)
    origins |= {name: variable for name, (variable, _) in found.items()}
    merged = _lay_over(merged, {name: value for name, (_, value) in found.items()})
    return Config(agents, prices, merged, origins, tables)


def _lay_over(weak: Mapping[str, Any], strong: Mapping[str, Any]) -> dict[str, Any]:
    """Two levels as one: another agent without a model drops the model of the weaker one."""
    merged = {**weak, **strong}
    if weak.get("agent") not in (None, merged.get("agent")) and "model" not in strong:
        merged.pop("model", None)
    return merged


def trace_settings(cwd: Path, environ: Mapping[str, str]) -> list[InUse]:
    """All settings in use, also those that are not set, then the agents and prices that files name."""
    from sessionrun.input.rows import SETTINGS

    config = load_config(cwd, environ)
    values, origins = config.values, config.origins
    names = [row.name for row in SETTINGS if row.config]
    settings = [InUse(name, values.get(name), origins[name] if name in values else DEFAULT) for name in names]
    return [*settings, *config.tables.values()]


def load_results_dir(cwd: Path, environ: Mapping[str, str]) -> tuple[Path | None, str | None]:
    """The configured results directory, absolute, or None; and the problem, if a file could not be read.

    Verbs that only look at sessions work although a configuration file is broken: that stops only launches.
    """
    chosen = environ.get("SESSIONRUN_RESULTS_DIR")
    if chosen:
        return cwd / chosen, None
    problem = None
    for file in reversed(_files(cwd, environ)):
        try:
            values = _read_file(file, "results_dir")
        except InputError as error:
            problem = problem or str(error)
            continue
        if "results_dir" in values:
            return values["results_dir"], problem
    return None, problem


def load_setting(name: str, cwd: Path, environ: Mapping[str, str]) -> Any:
    """Find just what the files say of one setting; None: nothing."""
    values = (_read_file(file, name) for file in reversed(_files(cwd, environ)))
    return next((one[name] for one in values if name in one), None)


def _files(cwd: Path, environ: Mapping[str, str]) -> list[Path]:
    """The files there are, weakest first: the user's, then the project's, here or at the top of its repository."""
    top = next((place for place in (cwd, *cwd.parents) if (place / ".git").exists()), cwd)
    project = cwd if (cwd / PROJECT_FILE).is_file() else top
    files = [user_directory("config", environ) / "config.toml", project / PROJECT_FILE]
    return [file for file in files if file.is_file()]


def _read_file(file: Path, only: str | None = None) -> dict[str, Any]:
    """The settings of a file; `only`: just this one, whatever else is wrong.  Directories begin at its place."""
    from sessionrun.input.parse import parse_toml

    try:
        settings = parse_toml(file.read_bytes(), str(file))
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from None
    if only is not None:
        settings = {name: value for name, value in settings.items() if name == only}
    if not settings:
        return {}  # so most polls do without what knows all settings
    from sessionrun.input.kinds import Misfit
    from sessionrun.input.reading import Reading, Spot, read_known
    from sessionrun.input.rows import FILE_FIELDS

    try:
        values = read_known(settings, FILE_FIELDS)
    except Misfit as misfit:
        raise Reading(str(file)).error(Spot(), misfit) from None
    for name in ("results_dir", "worktree_dir", "cache_dir"):
        if name in values:
            values[name] = file.parent / os.path.expanduser(values[name])
    return values


def _read_variables(cwd: Path, environ: Mapping[str, str]) -> dict[str, tuple[str, Any]]:
    """The settings from environment variables, each with its variable; an empty variable sets nothing."""
    if not any(name.startswith(_PREFIXES) for name in environ):
        return {}
    from sessionrun.input.kinds import Misfit
    from sessionrun.input.rows import SETTINGS

    values: dict[str, tuple[str, Any]] = {}
    for row in SETTINGS:
        for variable in filter(environ.get, row.variables):
            try:
                value = row.kind(row.kind.word(environ[variable]))
            except Misfit as misfit:
                raise InputError(f"{variable}: {misfit.problem}") from None
            values[row.name] = variable, cwd / value if row.name in ("results_dir", "cache_dir") else value
    return values

"""From the words of `run` to a settled spec: input, configuration and flags come together here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from sessionrun import agents
from sessionrun.cli.assemble import Choice, assemble_spec, choose_agent
from sessionrun.cli.run import read_input
from sessionrun.config import Config, load_config
from sessionrun.dialects import MAX_INPUT_BYTES, Fallback, Options, Plan, Source, choose_dialect
from sessionrun.errors import InputError
from sessionrun.model import KeepPolicy, Repository, SessionSpec


class Asked(NamedTuple):
    """What the command line of `run` says about the tasks; None means "not said"."""

    agent: str | None
    model: str | None
    max_parallel: int | None
    timeout_s: float | None
    name: str | None
    labels: tuple[str, ...]
    approve: bool | None
    envelope: bool
    dialect: str | None


class AskedGit(NamedTuple):
    """What the command line of `run` says about worktrees."""

    worktree: bool = False
    base: str | None = None
    worktree_dir: Path | None = None
    keep: KeepPolicy | None = None


class Planned(NamedTuple):
    """A spec that can be started, and what to tell people about how it came to be."""

    spec: SessionSpec
    choice: Choice
    dialect_reason: str
    warnings: tuple[str, ...]


def plan_session(file: str | None, asked: Asked, git: AskedGit) -> Planned:
    """Read the input and settle it.

    Raises:
        InputError: with one line on the first problem; nothing was created.
    """
    config = load_config(Path.cwd(), os.environ, agents.BUILTIN)
    name, text = read_input(file, MAX_INPUT_BYTES)
    directory = Path.cwd() if name == "stdin" else Path(name).absolute().parent
    source = Source(name, text, str(directory))
    options = _options(asked, config, worktree=git.worktree)
    dialect, reason = choose_dialect(source, asked.dialect)
    plan = dialect.load(source, options)
    choice = choose_agent(plan, config)
    repository, remarks = _find_repository(plan, git, config)
    spec = assemble_spec(
        plan,
        config,
        choice,
        dialect=dialect.NAME,
        source=name,
        approve=options.approve,
        envelope=options.envelope,
        repository=repository,
    )
    return Planned(spec, choice, reason, (*plan.warnings, *remarks))


def _find_repository(plan: Plan, git: AskedGit, config: Config) -> tuple[Repository | None, list[str]]:
    """The repository that worktrees are made from, if any task wants one; and remarks on it."""
    if not any(task.workspace.kind == "worktree" for task in plan.tasks):
        if git.base or git.worktree_dir or git.keep:
            raise InputError("--base, --worktree-dir and --keep-worktree need --worktree")
        return None, []
    from sessionrun.workspaces.repository import find_repository

    repository, remark = find_repository(
        Path.cwd(), base=git.base, worktree_dir=git.worktree_dir or config.worktree_dir, keep=git.keep or "never"
    )
    return repository, [remark] if remark else []


def _options(asked: Asked, config: Config, *, worktree: bool) -> Options:
    approve = asked.approve if asked.approve is not None else config.approve
    return Options(
        agent=asked.agent,
        model=asked.model,
        max_parallel=asked.max_parallel,
        timeout_s=asked.timeout_s,
        name=asked.name,
        labels=_parse_labels(asked.labels),
        approve=True if approve is None else approve,
        envelope=asked.envelope,
        workspace="worktree" if worktree else None,
        fallback=Fallback(
            agent=config.agent,
            model=config.model,
            max_parallel=config.max_parallel,
            timeout_s=config.timeout_s,
        ),
    )


def _parse_labels(labels: tuple[str, ...]) -> dict[str, str]:
    parsed = {}
    for label in labels:
        key, equals, value = label.partition("=")
        if not key or not equals:
            raise InputError(f"--label {label!r}: write KEY=VALUE")
        parsed[key] = value
    return parsed

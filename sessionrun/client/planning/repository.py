"""Settles the repository from which worktrees are made, and how the work lands there."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.client.planning.draft import Draft
from sessionrun.input.plan import LandingWish
from sessionrun.input.rows import BY_NAME
from sessionrun.model.errors import InputError
from sessionrun.model.spec import Landing

GATE_TIMEOUT_S: Final = 3600.0
"""How long a gate may take where nothing else is said."""

_OF_WORKTREES: Final = ("base", "worktree_dir", "keep")


def find_repository(draft: Draft) -> Draft:
    """The repository of the tasks with worktrees; a session to which tasks are added has its own.

    Raises:
        InputError: there is none that can be used, or something is said of worktrees that no task has.
    """
    draft = _add_links(draft)
    if draft.into is not None:
        return draft
    given = draft.options.given
    if not any(task.workspace.kind == "worktree" for task in draft.spec.tasks):
        mirrored = any(task.upstream is not None for task in draft.spec.tasks)
        if mirrored and "base" in given:
            raise InputError("--base has no effect on tasks with a repository of their own: say ref in the input")
        if not mirrored and any(name in given for name in _OF_WORKTREES):
            raise InputError("--base, --worktree-dir and --keep-worktree need --worktree")
        return draft
    from sessionrun.workspaces import repository

    wish, source = draft.plan.repository, draft.source.name
    if wish.path and not os.path.isdir(wish.path):
        raise InputError(f"{source}: {wish.keys['path']}: {wish.path} is not a directory")
    worktree_dir = draft.options.choose("worktree_dir", wish.worktree_dir)
    try:
        found, remarks = repository.find_repository(
            Path(wish.path) if wish.path else draft.place,
            base=given.get("base", wish.base),
            worktree_dir=Path(worktree_dir) if worktree_dir else None,
            keep=given.get("keep") or wish.keep or "never",
        )
    except InputError as error:
        raise _name_key(error, draft) from None
    filled = all("submodule" in " ".join(task.setup) for task in draft.plan.tasks)
    if not filled and (names := repository.find_submodules(found)):
        more = " and others" if len(names) > 3 else ""
        mend = "--setup 'git submodule update --init' fills them"
        remarks.append(f"submodules are empty in worktrees: {', '.join(names[:3])}{more}; {mend}")
    return replace(draft, spec=replace(draft.spec, repository=found)).remark(*remarks)


def _add_links(draft: Draft) -> Draft:
    """The tasks with those of the plan's optional links that lead to something."""
    links = tuple(link for link in draft.plan.optional_links if os.path.lexists(link))
    if not links:
        return draft
    return replace(
        draft,
        spec=replace(
            draft.spec, tasks=tuple(replace(task, links=(*task.links, *links)) for task in draft.spec.tasks)
        ),
    )


def _name_key(error: InputError, draft: Draft) -> InputError:
    """The error, with the input's key in place of the option if the value came from the input."""
    problem, wish, source = str(error), draft.plan.repository, draft.source.name
    for option, key in wish.keys.items():
        if problem.startswith(option) or f": {option}" in problem:
            is_option = any(BY_NAME[name].spell() == option for name in draft.options.given)
            return error if is_option else InputError(f"{source}: {key}: {problem.replace(option + ' ', '')}")
    return (
        error if wish.path is None else InputError(f"{source}: {wish.keys.get('path', 'repository')}: {problem}")
    )


def settle_landing(draft: Draft) -> Draft:
    """How the work of the session lands by itself: the command line wins over the plan.

    Raises:
        InputError: options without landing, no worktrees, or no such branch.
    """
    given, wish, repository = draft.options.given, draft.plan.landing, draft.spec.repository
    if draft.into is not None:
        return draft
    if not given.get("land", wish is not None and wish.lands):
        if draft.plan.feed is not None:
            return draft.remark(f"nothing lands by itself: {_word_merge(draft)}")
        lost = next((name for name in ("land_into", "gates", "mends") if name in given), None)
        if lost is not None:
            raise InputError(f"{BY_NAME[lost].spell()} needs --land")
        return draft
    if repository is None:
        raise InputError("land needs tasks with a worktree: add --worktree")
    from sessionrun.landing.target import find_target  # few sessions land, and this imports all that git needs

    wish = wish or LandingWish()
    timeout_s = GATE_TIMEOUT_S if wish.gate_timeout_s is None else wish.gate_timeout_s
    target = find_target(repository, given.get("land_into", wish.into))
    gates, mends = given.get("gates", wish.gates), given.get("mends", wish.mends)
    return replace(
        draft,
        spec=replace(
            draft.spec, landing=Landing(target, gates, timeout_s or None, wish.batch, mends, wish.sandbox)
        ),
    )


def _word_merge(draft: Draft) -> str:
    """The command that lands the work as the session would: with its gates."""
    wish = draft.plan.landing or LandingWish()
    gates = draft.options.given.get("gates", wish.gates)
    words = ["sessionrun", "merge", draft.spec.session_id[:8]]
    words += [word for gate in gates for word in ("--gate", gate)]
    words += ["--gate-timeout", f"{wish.gate_timeout_s:g}"] if gates and wish.gate_timeout_s else []
    return shlex.join(words)

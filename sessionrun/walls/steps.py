"""Settles which tasks have walls, and refuses walls that cannot be had: never is there a fallback."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sessionrun.model.asked import LIMITS
from sessionrun.model.errors import InputError
from sessionrun.model.repositories import has_worktree
from sessionrun.model.spec import hides_tests
from sessionrun.model.validation import refuse_task

if TYPE_CHECKING:
    from sessionrun.input.settings import Options
    from sessionrun.model.asked import Sandbox
    from sessionrun.model.places import Repository
    from sessionrun.model.spec import SessionSpec, TaskSpec

_PROGRAMS: Final = ("clean", "smudge", "process", "driver")
_SAFE: Final = (["git-lfs"], ["cat"])


def settle_sandboxes(spec: SessionSpec, options: Options) -> SessionSpec:
    """The sandbox of each task: its own, or the one that holds for all.

    Raises:
        InputError: a task cannot have the walls that are asked for.
    """
    default: Sandbox | None = options.choose("sandbox")
    if default is None:
        spec = _wall_hidden_tests(spec)
    tasks = []
    for num, task in enumerate(spec.tasks, 1):
        sandbox = task.sandbox or default
        tasks.append(replace(task, sandbox=None if sandbox is None or sandbox.policy == "none" else sandbox))
        problem = _find_problem(spec, tasks[-1])
        if problem is not None:
            raise refuse_task(num, task, problem)
    landing = spec.landing
    if landing is not None:
        gated = landing.sandbox or default
        problem = None if gated is None else _find_problem_here(gated)
        if problem is not None:
            raise InputError(f"land: {problem}")
        landing = replace(landing, sandbox=None if gated is None or gated.policy == "none" else gated)
    return replace(spec, tasks=tuple(tasks), landing=landing)


def _wall_hidden_tests(spec: SessionSpec) -> SessionSpec:
    """The spec with walls around the tasks that have hidden tests, if these can be had.

    Without walls an agent can read the tests: they lie in the session's directory, which is its user's.
    """
    open_tasks = [task for task in spec.tasks if hides_tests(task) and task.sandbox is None]
    if spec.cluster is not None or not open_tasks:
        return spec
    from sessionrun.input.fields import make_sandbox
    from sessionrun.walls.trial import find_problem

    walled = {task.id: replace(task, sandbox=make_sandbox("project")) for task in open_tasks}
    if find_problem("project") is not None or any(_find_problem(spec, task) for task in walled.values()):
        return spec
    return replace(spec, tasks=tuple(walled.get(task.id, task) for task in spec.tasks))


def may_have_walls(spec: SessionSpec) -> bool:
    """Whether agents of the session could be walled and are not: they have worktrees, and bubblewrap is there."""
    from sessionrun.walls.programs import find_bwrap

    open_tasks = [task for task in spec.tasks if task.sandbox is None and has_worktree(task)]
    asking = any(spec.agents[task.agent].prompt_kind != "script" for task in open_tasks)
    return asking and spec.approve and spec.cluster is None and find_bwrap() is not None


def find_filter(repository: Repository) -> str | None:
    """The name of a filter or merge driver, in the settings of git, that may run a program of a task.

    Git runs these outside of walls on what a task wrote.  A filter runs in the task's worktree: even of a program
    outside of it (``python3 -m nbstripout``) a part can be planted there, so only Git LFS is known to be safe.  A
    merge driver runs in an empty directory, and must not be a file of the checkout.
    """
    for name, command in repository.settings.config if repository.settings is not None else ():
        section, kind = name.partition(".")[0], name.rpartition(".")[2]
        if section not in ("filter", "merge") or kind not in _PROGRAMS or not command:
            continue
        try:
            words = shlex.split(command)
        except ValueError:
            return name
        if section == "filter" and words[:1] not in _SAFE and words[:2] != ["git", "lfs"]:
            return name
        if any(_is_of_checkout(repository.top, word) for word in words):
            return name
    return None


def _is_of_checkout(top: str, word: str) -> bool:
    if word.startswith(("-", "%")):
        return False
    path = os.path.normpath(os.path.join(top, word))
    inside = path.startswith(os.path.join(os.path.normpath(top), ""))
    return inside and ("/" in word or os.path.exists(path))


def _find_problem(spec: SessionSpec, task: TaskSpec) -> str | None:
    """Why a task cannot have its walls, as far as its spec tells; None: it can, or has none."""
    sandbox = task.sandbox
    if sandbox is None:
        return None
    if not has_worktree(task):
        return "a sandbox needs a worktree; add --worktree, or say --sandbox none"
    if spec.cluster is not None and spec.cluster.is_slurm:
        limits = [name for name in LIMITS if getattr(sandbox, name) is not None]
        if limits:
            return f"sandbox.{limits[0]}: Slurm has limits of its own, say it with --slurm-option"
    program = None if spec.repository is None else find_filter(spec.repository)
    if program is not None:
        why = f"git runs {program} outside of walls on files of the task, which can change what that does"
        return f"{why}: remove it from git's settings, or say --sandbox none"
    place = spec.repository
    holds_checkout = place is not None and f"{place.top}/".startswith(f"{place.worktree_dir}/")
    if hides_tests(task) and task.upstream is None and holds_checkout:
        return "its repository lies in the directory of worktrees, which hidden tests want to be hidden: move one"
    names = (task.agent, *(other.agent for other in task.fallback))
    asking = [name for name in names if spec.agents[name].prompt_kind != "script"]
    if sandbox.network == "none" and asking:
        return f'agent {asking[0]!r} cannot reach its model without a network; say "proxy", or a list of hosts'
    return _find_problem_here(sandbox) if spec.cluster is None else None


def _find_problem_here(sandbox: Sandbox) -> str | None:
    from sessionrun.walls.programs import find_sandbox_problem

    return find_sandbox_problem(sandbox)

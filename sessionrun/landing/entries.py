"""What every door to a landing says of the work: whose it is, and in what surroundings its gates run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sessionrun.landing.records import GateEnvironment
from sessionrun.model.spec import CacheSite, TaskSpec
from sessionrun.workspaces.environments.request import find_cache


def gather_links(tasks: Iterable[TaskSpec]) -> tuple[str, ...]:
    """The links of the worktrees of tasks; those of repositories elsewhere are not among them."""
    return tuple(dict.fromkeys(link for task in tasks if task.upstream is None for link in task.links))


def gather_environment(tasks: Iterable[TaskSpec], site: CacheSite | None, session: Path) -> GateEnvironment | None:
    """The environment that the tasks of a session want, if all that want one want the same; else None.

    Args:
        tasks: of the session; those with a repository elsewhere do not count.
        site: its cache.
        session: its directory.
    """
    wanted = {task.environment for task in tasks if task.upstream is None and task.environment is not None}
    if len(wanted) != 1:
        return None
    require_cache = site is not None and site.require_cache
    return GateEnvironment(find_cache(site), str(session.absolute()), wanted.pop().python, require_cache)


def word_trailers(
    task: str, session_id: str, agent: str, model: str | None, cost_usd: float | None
) -> tuple[str, ...]:
    """The lines at the end of the message of a task's merge: whose work it is."""
    trailers = {
        "Task": task,
        "Session": session_id,
        "Agent": agent,
        "Model": model,
        "Cost": None if cost_usd is None else f"{cost_usd:.4f} USD",
    }
    return tuple(f"Sessionrun-{name}: {' '.join(str(value).split())}" for name, value in trailers.items() if value)

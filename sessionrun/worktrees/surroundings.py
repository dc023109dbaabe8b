"""Where the environment of a task is, and the variables by which its jobs find that, and overlook its links."""

from __future__ import annotations

import os
from collections.abc import Mapping

from sessionrun.git.links import HIDDEN
from sessionrun.model.asked import PATH_TOKEN, uses_replicas
from sessionrun.model.keys import JobKey
from sessionrun.model.places import Place
from sessionrun.model.spec import TaskSpec
from sessionrun.session.shared import Site
from sessionrun.worktrees.env_request import FOLDER, find_target, name_variables


def find_environments(site: Site) -> str:
    """The directory of all environments, where the jobs run."""
    return f"{site.cache}/{FOLDER}"


def name_environment(site: Site, task: TaskSpec, key: JobKey, place: Place | None) -> Mapping[str, str]:
    """The variables by which programs find the task's environment."""
    if place is None:
        return {}
    made = place.environment.path if place.environment else None
    folder = made or find_target(find_environments(site), site.spec.session_id, task.id, key.attempt)
    if uses_replicas(site.spec.cluster):
        return name_variables(folder, task.env.get("PATH") or PATH_TOKEN, {"PYTHONHOME": "perhaps"})
    return name_variables(folder, task.env.get("PATH") or os.environ.get("PATH") or os.defpath, os.environ)


def hide_links(site: Site, task: TaskSpec, key: JobKey, place: Place | None) -> Mapping[str, str]:
    """What makes the task's git overlook links that lead out of the repository: they are no work."""
    if place is None:
        return {}
    prepared = site.session.find_starts(key._replace(round=1, phase="prepare"))
    rules = next((path for folder in prepared if (path := folder / HIDDEN).exists()), None)
    if rules is None:
        return {}
    number = task.env.get("GIT_CONFIG_COUNT") or os.environ.get("GIT_CONFIG_COUNT") or "0"
    setting = {f"GIT_CONFIG_KEY_{number}": "core.excludesFile", f"GIT_CONFIG_VALUE_{number}": str(rules)}
    return {"GIT_CONFIG_COUNT": str(int(number) + 1), **setting} if number.isdecimal() else {}

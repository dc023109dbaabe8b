"""What stands around a job in a worktree: its environment and links, and what runs before its program."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from sessionrun.git.links import HIDDEN
from sessionrun.model.asked import PATH_TOKEN, uses_replicas
from sessionrun.model.errors import SessionrunError
from sessionrun.model.keys import JobKey
from sessionrun.model.places import Place
from sessionrun.model.spec import TaskSpec
from sessionrun.session.shared import Site
from sessionrun.store.files import replace_file
from sessionrun.store.jobfiles import NOT_BEGUN, load_request
from sessionrun.worktrees.env_request import FOLDER, find_target, name_variables
from sessionrun.worktrees.request import WorkRequest

if TYPE_CHECKING:
    from sessionrun.worktrees.env_request import EnvironmentReport


def begin_work(folder: Path) -> NoReturn:
    """Set the worktree back, and become the agent.

    Raises:
        SessionrunError, OSError: the worktree cannot be set back, or the agent not be started.
    """
    from sessionrun.worktrees.rounds import take_back  # what the other of these jobs does not need

    request = load_request(folder, WorkRequest)
    try:
        take_back(request, folder)
    except (SessionrunError, OSError) as error:
        replace_file(folder / NOT_BEGUN, str(error).encode("utf-8", "replace"), durable=False)
        raise
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and an agent would inherit that
        signal.signal(number, signal.SIG_DFL)
    os.execvp(request.argv[0], request.argv)


def make_environment(folder: Path) -> EnvironmentReport:
    """Make the environment that a SETUP begins with, and leave a report.

    Raises:
        SessionrunError, OSError: the request cannot be used, or its walls not be built.
    """
    from sessionrun.walls.build import raise_if_any  # what the other of these jobs does not need
    from sessionrun.worktrees.env_make import make_environment as make
    from sessionrun.worktrees.env_request import load_wish

    request = load_wish(folder)
    report = make(request, folder, raise_if_any(request.walls, builds=True))
    if report.problem is not None:
        print(f"environment: {report.problem}", file=sys.stderr)
    return report


def find_environments(site: Site) -> str:
    """The directory of all environments, where the jobs run."""
    return f"{site.cache}/{FOLDER}"


def locate_environment(site: Site, task: TaskSpec, key: JobKey, place: Place) -> str:
    """Where the task's environment is, or will be."""
    made = place.environment.path if place.environment else None
    return made or find_target(find_environments(site), site.spec.session_id, task.id, key.attempt)


def name_environment(site: Site, task: TaskSpec, key: JobKey, place: Place | None) -> Mapping[str, str]:
    """The variables by which programs find the task's environment."""
    if place is None:
        return {}
    folder = locate_environment(site, task, key, place)
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

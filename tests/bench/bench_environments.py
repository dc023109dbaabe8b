"""How long the warm set-up of a task takes: a worktree and its cached environment, against a clone, venv and pip.

The project has 5,000 files and pytest with what that needs, from wheels that are fetched once before the rounds.
Nothing is removed between the rounds.  On ext4 a new file looks first at every inode that was freed in the last
minutes, so what one round removes would make the next one several times as long.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from uv import find_uv_bin

from sessionrun.model.places import Place as Workspace
from sessionrun.model.places import Seats
from sessionrun.workspaces.environments.make import make_environment
from sessionrun.workspaces.environments.request import EnvironmentRequest, find_target
from sessionrun.workspaces.release import release
from sessionrun.workspaces.repository import find_repository
from sessionrun.workspaces.request import WorkspaceRequest
from sessionrun.workspaces.worktree import prepare

from .measure import Place, Row, Spent, compare, compare_figure, interleave, make_place

FILES: Final = 5000
GOAL: Final = 0.05
GOAL_MS: Final = 1000.0
FLOOR_GOAL: Final = 2.0
LEAST_GOAL: Final = 1.5
WARM: Final = f"worktree and cached environment, {FILES:,} files"
STAYS: Final = f"the same in a worktree that stays, {FILES:,} files"
COLD: Final = "git clone, venv, pip install -e .[test]"
FLOOR: Final = "git worktree add"
"""What of the warm set-up is git's own work: no set-up can be faster than that."""

LEAST: Final = "git worktree add, cp -a of the environment"
"""The same files by the plainest programs: what is above it is our own work."""

_PROJECT: Final = """
[build-system]
requires = ["setuptools>=64"]
build-backend = "setuptools.build_meta"

[project]
name = "demo"
version = "1.0"

[project.optional-dependencies]
test = ["pytest"]

[tool.setuptools]
package-dir = {"" = "src"}
packages = ["demo"]
"""

_NUMBERS: Final = itertools.count()


def measure(rounds: int = 2) -> list[Row]:
    """Measure; a round takes half a minute, and wheels come from the package index or from pip's settings."""
    with make_place() as place:
        repository = _make_repository(place)
        wheels = place.path / "wheels"
        pip = (sys.executable, "-m", "pip")
        subprocess.run([*pip, "download", "-q", "-d", wheels, "pytest", "setuptools", "wheel"], check=True)
        for installer in ("PIP", "UV"):
            os.environ.update({f"{installer}_NO_INDEX": "1", f"{installer}_FIND_LINKS": str(wheels)})
        python = os.path.dirname(os.path.realpath(sys.executable))  # of both: one on PATH may be a slow script
        os.environ["PATH"] = os.pathsep.join((python, os.path.dirname(find_uv_bin()), os.environ["PATH"]))
        _warm(place, repository)
        _warm(place, repository, stays=True)
        (env, *_) = (place.path / "cache" / "tasks").glob("[!.]*")
        cases = {
            COLD: lambda: _cold(place, repository),
            WARM: lambda: _warm(place, repository),
            STAYS: lambda: _warm(place, repository, stays=True),
            FLOOR: lambda: _check_out(place, repository),
            LEAST: lambda: _check_out(place, repository, env),
        }
        samples = interleave(cases, rounds)
    row = compare(samples, WARM, COLD, GOAL)
    return [
        row,
        compare(samples, STAYS, COLD, GOAL),
        compare(samples, WARM, FLOOR, FLOOR_GOAL),
        compare(samples, WARM, LEAST, LEAST_GOAL),
        compare_figure(f"{WARM} (ms)", 1000 * row.case_s, GOAL_MS),
    ]


def _make_repository(place: Place) -> Path:
    top = place.path / "repository"
    for number in range(FILES):
        path = top / "src" / "demo" / f"part{number // 100}" / f"file{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"VALUE = {number}\n" * 20)
    (top / "src" / "demo" / "__init__.py").write_text("")
    (top / "pyproject.toml").write_text(_PROJECT)
    for argv in (
        ("init", "-q", "-b", "main"),
        ("add", "-A"),
        ("-c", "user.name=x", "-c", "user.email=x@y", "commit", "-qm", "first"),
    ):
        subprocess.run(["git", *argv], cwd=top, check=True)
    return top


def _cold(place: Place, repository: Path) -> Spent:
    folder = place.path / f"cold{next(_NUMBERS)}"
    begun = _now()
    subprocess.run(["git", "clone", "-q", repository, folder], check=True)
    subprocess.run([sys.executable, "-m", "venv", folder / ".venv"], check=True)
    install = (folder / ".venv" / "bin" / "python", "-m", "pip", "install", "-q", "-e", ".[test]")
    subprocess.run(install, cwd=folder, check=True)
    return _since(begun)


def _check_out(place: Place, repository: Path, env: Path | None = None) -> Spent:
    folder = place.path / f"floor{next(_NUMBERS)}"
    begun = _now()
    subprocess.run(["git", "worktree", "add", "-q", "--detach", folder], cwd=repository, check=True)
    if env is not None:
        subprocess.run(["cp", "-a", env, place.path / f"{folder.name}-env"], check=True)
    return _since(begun)


def _warm(place: Place, repository: Path, *, stays: bool = False) -> Spent:
    """What PREPARE and the environment take, without the start of the interpreters of their jobs.

    A worktree that `stays` is the one that the round before gave back.
    """
    number = next(_NUMBERS)
    folders = [place.path / "jobs" / f"t{number}" / f"a1-r1-{phase}" for phase in ("prepare", "setup", "release")]
    for folder in folders:
        folder.mkdir(parents=True)
    found = find_repository(repository, base=None, worktree_dir=place.path / "worktrees", keep="never")[0]
    cache = str(place.path / "cache")
    seats = Seats(str(place.path / "seats"), placement="sibling") if stays else None
    begun = _now()
    request = WorkspaceRequest(
        found, "s", f"t{number}", "do it", seats=seats, seat=1 if stays else None, prompt="x"
    )
    made: Workspace = prepare(request, folders[0])
    target = find_target(cache, "s", f"t{number}", 1)
    top = made.worktree or ""
    report = make_environment(EnvironmentRequest(top, top, cache, target, f"s/t{number}"), folders[1])
    spent = _since(begun)
    assert report.problem is None, report.problem
    if stays:
        release(replace(request, place=made, succeeded=True, patch=str(folders[2] / "patch")), folders[2])
    return spent


def _now() -> Spent:
    return Spent(time.perf_counter(), sum(os.times()[:4]))


def _since(begun: Spent) -> Spent:
    now = _now()
    return Spent(now.seconds - begun.seconds, (now.cpu_s or 0.0) - (begun.cpu_s or 0.0))


if __name__ == "__main__":
    from .measure import print_table

    print_table(measure())

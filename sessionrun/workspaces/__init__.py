"""Workspaces: where a task's processes run, and how its work gets out of there.

PREPARE and RELEASE are processes of their own (see `job`), so that they run where the executor
runs jobs and a slow disk never holds up the supervisor.  They read ``request.json`` in their job's folder and
leave ``answer.json`` there.  Both are idempotent: what is found done is not done again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from sessionrun.errors import SessionrunError
from sessionrun.model import Handed, KeepPolicy, Place, Repository
from sessionrun.regular import read_regular
from sessionrun.store import replace_file

REQUEST: Final = "request.json"
ANSWER: Final = "answer.json"
CLAIM: Final = "claim.json"
"""Written before a branch or a worktree is made, so that `clean` can find what a crash left behind."""

NEEDS_CONFLICT: Final = 10
"""Exit code of a PREPARE that cannot begin because the work of its needs does not go together."""

RESCUE_SUFFIX: Final = "-rescue"
"""Ends the name of the branch that holds what could not go to the task's own."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a PREPARE or RELEASE job is to do; `patch` is where the diff goes, `place` what PREPARE made.

    With `expect_change` work that changes nothing is no success.  `branch` and `directory` are the names that are
    wished for.  `needs` are the ends of other tasks at which the worktree begins.
    """

    repository: Repository
    session_id: str
    task: str
    title: str
    links: tuple[str, ...] = ()
    place: Place | None = None
    keep: KeepPolicy = "never"
    succeeded: bool = False
    patch: str | None = None
    expect_change: bool = False
    branch: str | None = None
    directory: str | None = None
    needs: tuple[Handed, ...] = ()

    @property
    def owner(self) -> str:
        """Whose the worktree is, as it is marked."""
        return f"{self.session_id}/{self.task}"


@dataclass(frozen=True, slots=True)
class Claim:
    """The branch and the worktree that a PREPARE job is about to make; `owner` is how it is marked.

    `moved` is where RELEASE found it when somebody had moved it: what is left of it lies there.  `emptied`: the
    worktree is gone, and RELEASE deletes the branch, or has deleted it, because it holds nothing.
    """

    branch: str
    worktree: str
    base_commit: str
    owner: str
    moved: str | None = None
    emptied: bool = False

    @property
    def paths(self) -> tuple[Path, ...]:
        """Where the worktree was made and, if it was moved, where to."""
        return tuple(Path(path) for path in (self.worktree, self.moved) if path)


class NeedsConflict(SessionrunError):
    """The work of a task's needs does not go together."""


def main() -> None:
    """Do what ``argv[1]`` says with the request in the folder ``argv[2]``; a failure is a line and a code."""
    folder = Path(sys.argv[2])
    try:
        place = _find_action(sys.argv[1])(load_request(folder), folder)
        replace_file(folder / ANSWER, orjson.dumps(place), durable=True)
    except (SessionrunError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(NEEDS_CONFLICT if isinstance(error, NeedsConflict) else 1)


def _find_action(name: str) -> Callable[[Request, Path], Place]:
    """Of the two, only the one that is wanted is imported."""
    if name == "prepare":
        from sessionrun.workspaces.worktree import prepare

        return prepare
    from sessionrun.workspaces.release import release

    return release


def load_request(folder: Path) -> Request:
    """Read a request."""
    record = orjson.loads(read_regular(folder / REQUEST))
    record["repository"] = Repository(**record["repository"])
    record["links"] = tuple(record["links"])
    record["place"] = Place(**record["place"]) if record["place"] else None
    record["needs"] = tuple(Handed(**need) for need in record.get("needs", ()))
    return Request(**record)


def load_answer(folder: Path) -> Place | None:
    """What a finished job answered; None when it did not."""
    record = _load(folder / ANSWER)
    return None if record is None else Place(**record)


def load_claim(folder: Path) -> Claim | None:
    """What a PREPARE job was about to make; None when it did not come so far."""
    record = _load(folder / CLAIM)
    return None if record is None else Claim(**record)


def command_line(action: str, folder: Path) -> tuple[str, ...]:
    """The argument list of a workspace job."""
    return (sys.executable, str(Path(__file__).resolve().with_name("job.py")), action, os.fspath(folder))


def _load(path: Path) -> dict[str, Any] | None:
    try:
        return dict(orjson.loads(read_regular(path)))
    except FileNotFoundError:
        return None

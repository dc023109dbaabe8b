"""What a PROVE is asked for, and what it answers; see `runtime.jobs.job`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Final

from sessionrun.model.checks import Counts, Note
from sessionrun.model.frozen import frozen
from sessionrun.model.spec import Check, ProofVerdict, Prove
from sessionrun.runtime.jobs.prove.runners import RanTests
from sessionrun.walls.wish import WallsWish
from sessionrun.workspaces.environments.request import EnvironmentRequest
from sessionrun.workspaces.request import WorkspaceRequest

SOURCE_PATCH: Final = "source.patch"
"""In the folder of a PROVE by hidden tests: what the work changes, without tests and test set-up."""

OBJECTS: Final = "objects"
"""In the folder of a PROVE while it runs: the objects of the trees that it compares."""


@frozen
class ProveRequest:
    """What is to be proved.

    Attributes:
        workspace: the task's; its place has the work, `commit`, above `work_base`.
        directory: where the commands run, from the top of the repository.
        setup: shell commands that prepare a room, in one shell.
        check: the task's; its commands have a shell of their own each.
        prove: what of it is to be proved, or the tests that take its place.
        env: variables that the task's jobs are given; checks with others are not the same.
        setup_timeout_s: how long the setup may take (seconds); None: any time.
        known: the session's directory for results of checks, by what they were done on.
        environment: what each room gets, if the task has one.
        walls: of the task, around the rooms.
    """

    workspace: WorkspaceRequest
    directory: str
    setup: tuple[str, ...]
    check: Check
    prove: Prove
    env: Mapping[str, str]
    setup_timeout_s: float | None
    known: str
    environment: EnvironmentRequest | None = None
    walls: WallsWish | None = None


@frozen
class Ran:
    """How a check ended in a room: whether it passed; in one line what did not; the tests, if counted.

    `tests` says which ones, `canaries` which planted tests failed, by file.  Neither is in the answer.
    """

    passed: bool
    why: str | None = None
    counts: Counts | None = None
    tests: RanTests | None = None
    canaries: Mapping[str, bool] = field(default_factory=dict)


@frozen
class JudgedTests:
    """What hidden tests came to, by their ids: `failed` should pass now, `broken` passed before.

    `total` is how many there are; of those that did not pass, `errors` broke otherwise than by a wrong assertion.
    `red_before` are those of `broken` that do not pass without the work either.
    """

    total: int
    failed: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    errors: int = 0
    red_before: tuple[str, ...] = ()


@frozen
class ProveReport:
    """The answer: the verdict; in one line what is wrong, if the task fails by it; each check that was done.

    `reason_class` is the class of that problem, if it is not called as the verdict is.  `audit` never changes the
    verdict.
    """

    verdict: ProofVerdict
    problem: str | None = None
    checks: Mapping[str, Ran] = field(default_factory=dict)
    reason_class: str | None = None
    tests: JudgedTests | None = None
    audit: tuple[Note, ...] = ()

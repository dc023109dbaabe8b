"""What a CHECK and a PROVE are asked for, and what they answer; see `session.job`.

The agent's answer becomes files, commands run, the agent judges.  All of it is one process, so that its output is
what the next round is given, and a slow disk never holds up the supervisor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sessionrun.model.checks import Brief, HiddenTests
from sessionrun.model.frozen import frozen
from sessionrun.model.kinds import Seconds
from sessionrun.model.spec import Check, OutputFormat, Prove, TaskSpec
from sessionrun.walls.wish import WallsWish
from sessionrun.worktrees.request import EnvironmentRequest, WorkspaceRequest


@frozen
class Verification:
    """How the agent is asked for its verdict, perhaps inside of `walls`; `output` is the format that it prints."""

    argv: tuple[str, ...]
    prompt_file: str
    on_stdin: bool
    output: OutputFormat
    walls: WallsWish | None = None


@frozen
class CheckRequest:
    """What a CHECK is to do in `directory`.

    Attributes:
        applied: the file that holds what was written of the answer, once it was: a check that is done again does
            not make the same edits twice.
        answer: the file with the agent's answer; None for an agent that edits files itself.  Without a brief it is
            a patch for the worktree.
        earlier: files that the agent was shown because other tasks wrote them.
        workspace: as RELEASE is asked, with the round, if git is needed in its worktree.
        keeps: what the round came to is kept, because there may be another one.
        known: tests that passed before, of which those that are there still have to pass.
        before: the folder of SETUP, which has what these tests came to before the work; None: there was none.
        resets: the next round begins with the files with which WORK began.
    """

    directory: str
    prompt: str
    applied: str = ""
    brief: Brief | None = None
    answer: str | None = None
    check: Check = Check(())
    verification: Verification | None = None
    earlier: tuple[str, ...] = ()
    workspace: WorkspaceRequest | None = None
    keeps: bool = False
    walls: WallsWish | None = None
    resets: bool = False
    known: HiddenTests | None = None
    before: str | None = None


@frozen
class KnownRequest:
    """What runs behind the commands of a SETUP: `known` tests, perhaps inside of `walls`."""

    known: HiddenTests
    walls: WallsWish | None = None


def name_known(task: TaskSpec) -> HiddenTests | None:
    """The tests that passed before the work, if the task has hidden ones; without the patch that brings others.

    One that did not pass shows what the environment of this machine lacks, so no round fails because of it.
    """
    hidden = task.prove.hidden if task.prove is not None else None
    return None if hidden is None or task.check is None else replace(hidden, patch="", fail_to_pass=())


SOURCE_PATCH: Final = "source.patch"
"""In the folder of a PROVE by hidden tests: what the work changes, without tests and test set-up."""

OBJECTS: Final = "objects"
"""In the folder of a PROVE while it runs: the objects of the trees that it compares."""


@frozen
class ProveRequest:
    """What is to be proved: the work, `commit` of the workspace's place, above its `work_base`.

    The commands run in `directory`, from the top of the repository; each room gets an environment if the task
    has one.  `before` is as in `CheckRequest`.
    """

    workspace: WorkspaceRequest
    directory: str
    setup: tuple[str, ...]
    check: Check
    prove: Prove
    setup_timeout_s: Seconds | None
    environment: EnvironmentRequest | None = None
    walls: WallsWish | None = None
    before: str | None = None

"""Plays a session again without models: what agents printed and changed comes from its files, all else is real.

All of it happens in a directory of its own with a clone of the repository: nothing of the user's is changed.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from time import time
from typing import Any, Final, NamedTuple

from sessionrun.client.evidence import find_runs
from sessionrun.client.planning.assemble import check_spec
from sessionrun.client.reading.view import load_history
from sessionrun.git.git import Git, GitError
from sessionrun.git.repository import find_repository
from sessionrun.model.errors import InputError
from sessionrun.model.events import Entry, JobFinished
from sessionrun.model.keys import JobKey
from sessionrun.model.places import Repository
from sessionrun.model.repositories import has_worktree
from sessionrun.model.spec import AgentSpec, Landing, SessionSpec, TaskSpec
from sessionrun.model.times import format_time
from sessionrun.model.words import read_landing
from sessionrun.session.player import name_part, write_recording
from sessionrun.session.shared import find_counterpart
from sessionrun.store.session import SessionDir

RECORDING: Final = "recording"
REPOSITORY: Final = "repository"
PROVIDER: Final = "replay"
"""The account of all agents that are played: what they meet holds nothing but themselves."""

LEAST_LIMIT_S: Final = 5.0
"""A time limit that ended an attempt is shorter, too, but not below this: what plays the agent has to start."""

COMPARED: Final = ("outcome", "reason_class", "attempt", "round", "exit_code", "signal", "proof", "diff_stat")


class Difference(NamedTuple):
    """What of a task is not as it was recorded."""

    task: str
    key: str
    recorded: Any
    replayed: Any


def find_place(session: SessionDir) -> Path:
    """A directory that is not there yet, beside the session."""
    base = session.path.parent.absolute() / f"replay-{session.session_id[:8]}"
    places = chain([base], (base.with_name(f"{base.name}-{number}") for number in count(2)))
    return next(place for place in places if not os.path.lexists(place))


PLAYER: Final = (sys.prefix, sys.base_prefix, str(Path(__file__).resolve().parents[2]))
"""Where the program of the stand-in for an agent lies."""


def plan_replay(session: SessionDir, place: Path, *, speed: float, source: Path | None = None) -> SessionSpec:
    """The spec of a session that plays `session` again; makes `place` with all that it needs.

    Args:
        session: has ended.
        place: a directory that is not there yet.
        speed: so many times as fast as the agents were.
        source: the repository, or a bundle of it; None: where it was.

    Raises:
        InputError: it has not ended, the place is taken, or the repository or its commit is gone.
        StoreError: the session's files are damaged.
    """
    view, evidence = load_history(session)
    if view["ended_at"] is None:
        raise InputError(f"session {session.session_id} has not ended: wait for it, cancel or resume it first")
    spec = evidence.require().spec
    tasks = [task.spec for task in evidence.require().tasks.values() if task.spec.mend is None]
    origin = None
    if spec.repository is not None and any(has_worktree(task) for task in tasks):
        origin = source or Path(spec.repository.common_dir)
        if not origin.exists():
            raise InputError(f"{origin} is gone: name the repository with --repository")
    _make_place(place)
    limits = _record(session, place / RECORDING, view["tasks"], evidence.entries)
    repository = _clone(spec.repository, place, origin, spec.landing) if spec.repository and origin else None
    move = partial(_move_directory, place, spec.repository, repository)
    # what the stand-in for an agent reads; walls hide all results
    read = (str(place / RECORDING), str(session.path.absolute()), *PLAYER)
    cwd, worktrees = _move(spec.cwd, spec.repository, repository) or str(place), str(place / "worktrees")
    replayed = replace(
        spec,
        session_id=str(uuid.uuid4()),
        created_at=format_time(time()) or "",
        cwd=cwd,
        name=f"replay of {spec.name or spec.session_id[:8]}",
        tasks=tuple(
            replace(_replay_task(task, limits.get(task.id), speed, read), cwd=move(task.cwd)) for task in tasks
        ),
        agents={name: _replay_agent(agent, place / RECORDING, speed) for name, agent in spec.agents.items()},
        limits=replace(spec.limits, max_load=None, min_free_memory=None, stagger_s=None, starts_at=None),
        repository=repository,
        mirrors=spec.mirrors and replace(spec.mirrors, worktree_dir=worktrees),
        seats=spec.seats and replace(spec.seats, directory=worktrees),
        open_feed=False,
        feed=None,
        template=None,
        exports=(),
        notify=(),
        origin=None,
    )
    for task in replayed.tasks:
        os.makedirs(os.path.join(cwd, task.cwd or ""), exist_ok=True)
    check_spec(replayed)
    return replayed


def _make_place(place: Path) -> None:
    try:
        place.mkdir(mode=0o700)
    except FileExistsError:
        raise InputError(f"{place} is there already: name another directory with --directory") from None
    except OSError as error:
        raise InputError(f"cannot make {place}: {error.strerror}") from None


def compare_replay(recorded: SessionDir, replayed: SessionDir) -> list[Difference]:
    """What is not as it was recorded, task by task."""
    before, after = (
        {task["id"]: task for task in load_history(session)[0]["tasks"]} for session in (recorded, replayed)
    )
    found = []
    for name, task in before.items():
        if task.get("mends"):
            continue  # what mends work that bounced is made anew, under another name
        played = after.get(name)
        if played is None:
            found.append(Difference(name, "task", "there", "missing"))
            continue
        pairs = [(key, task.get(key), played.get(key)) for key in COMPARED]
        checks = task["check"] or {}, played["check"] or {}
        pairs += [(f"check.{key}", checks[0].get(key), checks[1].get(key)) for key in _CHECK]
        pairs.append(("landing", read_landing(task), read_landing(played)))
        found += [Difference(name, key, was, now) for key, was, now in pairs if was != now]
    return found


_CHECK: Final = ("passed", "counts")


def _record(
    session: SessionDir, folder: Path, tasks: Sequence[Mapping[str, Any]], entries: Sequence[Entry]
) -> dict[str, bool]:
    """Write the recording; by task whether a time limit ended one of its jobs."""
    folder.mkdir(mode=0o700)
    jobs: dict[str, dict[JobKey, dict[str, Any]]] = {task["id"]: {} for task in tasks}
    for key, run in find_runs(entries).items():
        if key.phase == "work" and run.begin and run.end:
            ended = run.end.event if isinstance(run.end.event, JobFinished) else None
            jobs[key.task][key] = {
                "duration_s": max(0.0, run.end.at - run.begin.at),
                "exit_code": ended and ended.exit_code,
                "signal": ended and ended.signal,
                "stays": run.timer is not None,
            }
    for name, known in jobs.items():
        parts = {}
        for key, part in known.items():
            later = [other for other in known if other > key]
            ends_attempt = all(other.attempt != key.attempt for other in later)
            parts[name_part(key.attempt, key.round, key.start)] = {
                **part,
                **_find_streams(session, key, is_last=not later),
                "patch": _find_patch(session, key) if ends_attempt else None,
            }
        write_recording(folder, name, parts)
    return {name: any(part["stays"] for part in known.values()) for name, known in jobs.items()}


def _find_streams(session: SessionDir, key: JobKey, *, is_last: bool) -> dict[str, str | None]:
    """Where a job of WORK left its two streams; the agent's own stream goes before the answer made of it."""
    folder, task = session.job_path(key), key.task
    outputs = [folder / "raw", folder / "stdout"]
    errors = [folder / "stderr"]
    if is_last:
        outputs, errors = [session.raw_path(task), session.output_path(task)], [session.error_path(task)]
    return {
        "stdout": next((str(path.absolute()) for path in outputs if path.is_file()), None),
        "stderr": next((str(path.absolute()) for path in errors if path.is_file()), None),
    }


def _find_patch(session: SessionDir, key: JobKey) -> str | None:
    path = session.patch_path(key)
    return str(path.absolute()) if path.is_file() else None


def _replay_task(task: TaskSpec, limited: bool | None, speed: float, read: tuple[str, ...]) -> TaskSpec:
    """The task, with a time limit only if one ended it: a slow machine would meet the others."""

    def shorten(limit: float | None) -> float | None:
        return max(LEAST_LIMIT_S, limit / speed) if limited and limit is not None else None

    return replace(
        task,
        timeout_s=shorten(task.timeout_s),
        round_timeout_s=shorten(task.round_timeout_s),
        idle_timeout_s=shorten(task.idle_timeout_s),
        linger_s=shorten(task.linger_s),
        args=(),
        sandbox=task.sandbox and replace(task.sandbox, read=(*task.sandbox.read, *read)),
        upstream=task.upstream and replace(task.upstream, home=None),  # no branch comes into the user's repository
        handed=(),
    )


def _replay_agent(agent: AgentSpec, recording: Path, speed: float) -> AgentSpec:
    """The agent with the player as its program."""
    return replace(
        agent,
        argv=(sys.executable, "-m", "sessionrun.session.player", str(recording), repr(speed)),
        stdin="none",
        model_args=(),
        approve_args=(),
        continue_args=(),
        budget_args=(),
        provider=PROVIDER,
        env={},
        ready=(),
    )


def _clone(repository: Repository, place: Path, origin: Path, landing: Landing | None) -> Repository:
    """A clone beside the recording, at the commit at which the session began.

    Raises:
        InputError: it cannot be made.
    """
    top = place / REPOSITORY
    shared = () if origin.is_file() else ("--shared",)  # so it has commits, too, that no branch has any more
    _git(place, "clone", "-q", "--no-checkout", *shared, "--", str(origin.absolute()), str(top))
    branches = {repository.base_branch, *([landing.target.removeprefix("refs/heads/")] if landing else ())}
    _git(top, "checkout", "-q", "--detach", repository.base_commit)
    for branch in sorted(branches):
        _git(top, "branch", "-q", "-f", branch, repository.base_commit)
    _git(top, "checkout", "-q", repository.base_branch)
    _git(top, "remote", "remove", "origin")
    made, _ = find_repository(top, base=None, worktree_dir=place / "worktrees", keep=repository.keep)
    return made


def _git(cwd: Path, *words: str) -> None:
    try:
        Git(cwd, limit_s=None, protocols=("file",))(*words)
    except GitError as error:
        raise InputError(f"{error}, in {cwd}") from None


def _move_directory(place: Path, old: Repository | None, new: Repository | None, path: str | None) -> str | None:
    """The counterpart of a task's own directory: in the clone, else below `place`; never where the user has it."""
    if path is None or not os.path.isabs(path):
        return path
    return _move(path, old, new) or str(place.joinpath("directories", *Path(path).parts[1:]))


def _move(path: str, old: Repository | None, new: Repository | None) -> str | None:
    """The counterpart in the clone of a directory in the repository."""
    if old is None or new is None:
        return None
    return find_counterpart(path, old.top, new.top) or new.top

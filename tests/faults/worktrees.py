"""Campaigns on sessions with worktrees: no work of a task is lost, and the user's repository is as it was."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from sessionrun.store.session import SessionDir

from .campaign import HUNG_S, KILLS, PAUSE_S, has_ended, is_gone, resume_by
from .chain import ROLES, Role, kill_role
from .oracle import CODES, LEAVE_S, Figures, examine, make_plan
from .place import Place, wait_until

TASKS: Final = 8
PARALLEL: Final = 3
WORK: Final = 'echo "$SESSIONRUN_TASK" > "work-$SESSIONRUN_TASK"; echo "$SESSIONRUN_TASK" >> "{told}";'


COMMIT: Final = "git add -A; git commit -qm work; sleep "


def kill_in_worktrees(place: Place, rng: random.Random) -> Figures:
    """Supervisors and keepers die, one at a time; the session ends by itself."""
    return _run(place, rng, lambda: [rng.choice(ROLES[1:])], may_lose=False)


def kill_chain_in_worktrees(place: Place, rng: random.Random) -> Figures:
    """Roots die as well, and users `resume`."""
    return _run(place, rng, lambda: rng.sample(ROLES, rng.randint(1, 3)), may_lose=True)


def kill_behind_walls(place: Place, rng: random.Random) -> Figures:
    """Supervisors and keepers die; the tasks have walls."""
    return _run(place, rng, lambda: [rng.choice(ROLES[1:])], may_lose=False, walled=True)


def kill_chain_behind_walls(place: Place, rng: random.Random) -> Figures:
    """Roots die as well, and users `resume`; the tasks have walls."""
    return _run(place, rng, lambda: rng.sample(ROLES, rng.randint(1, 3)), may_lose=True, walled=True)


def _run(
    place: Place, rng: random.Random, choose: Callable[[], list[Role]], *, may_lose: bool, walled: bool = False
) -> Figures:
    _make_repository(place)
    before = _refs(place)
    executed, written = _Told(place.executed, walled), _Told(place.path / "written", walled)
    plan = _add_phases(make_plan(executed.path, TASKS, rng, more=WORK.format(told=written.path)))
    for task in plan["prompts"] if walled else ():
        shown = [str(executed.path), str(written.path)]
        task["sandbox"] = {"policy": "project", "network": "none", "read": shown}
        task["prompt"] = task["prompt"].replace("sleep ", COMMIT, 1)
    words = ["--max-parallel", str(PARALLEL), "--worktree", "--worktree-dir", str(place.path / "trees")]
    session = place.start(plan, *words, cwd=place.path / "repo")
    seen = Figures()
    deadline = time.monotonic() + HUNG_S
    while not has_ended(session) and time.monotonic() < deadline:
        if seen.kills.total() < KILLS:
            wait_until(lambda: has_ended(session), rng.uniform(0.0, PAUSE_S))
            for role in choose():
                seen.kills[role] += kill_role(session.path, role)
        if may_lose and is_gone(session):
            seen.resumed += resume_by(1, place, session, seen)
    wait_until(lambda: not session.is_alive(), LEAVE_S)
    for told in (executed, written):
        told.finish()
    figures = examine(session, place.executed, may_lose=may_lose)
    figures.wrong += [f"{session.session_id}: {one}" for one in _examine(place, session, before)]
    figures.add(seen)
    return figures


class _Told:
    """A file that tasks write into; those with walls by a pipe, which takes words where all can only be read."""

    def __init__(self, file: Path, walled: bool) -> None:
        self._file = file
        self.path = file.with_name(f"{file.name}.pipe") if walled else file
        if walled:
            os.mkfifo(self.path)
            self._fd = os.open(self.path, os.O_RDWR)  # so that no writer waits, and the pipe has no end
            self._thread = threading.Thread(target=self._carry, daemon=True)
            self._thread.start()

    def _carry(self) -> None:
        with open(self._fd, "rb", closefd=False) as pipe, open(self._file, "ab", buffering=0) as file:
            file.writelines(iter(pipe.readline, b"\n"))

    def finish(self) -> None:
        """See that all which was written is in the file."""
        if self.path != self._file:
            os.write(self._fd, b"\n")
            self._thread.join()
            os.close(self._fd)


def _add_phases(plan: dict[str, Any]) -> dict[str, Any]:
    """The plan with all phases: what succeeds is checked, parked and proved, and each second task has a setup."""
    for number, task in enumerate(plan["prompts"]):
        if number % CODES == 0:
            task.update(check='test -e "work-$SESSIONRUN_TASK"', prove=True)
        if number % 2:
            task["setup"] = ['echo "$SESSIONRUN_TASK" > "setup-$SESSIONRUN_TASK"']
    return plan


def _make_repository(place: Place) -> None:
    (place.path / "repo").mkdir()
    place.environ.update(HOME=str(place.path), GIT_CONFIG_NOSYSTEM="1")
    (place.path / ".gitconfig").write_text("[user]\nname = Ann\nemail = ann@example.org\n")
    _git(place, "init", "-q", "-b", "main")
    (place.path / "repo" / "a.txt").write_text("a\n")
    _git(place, "add", "-A")
    _git(place, "commit", "-q", "-m", "first")


def _git(place: Place, *words: str) -> str:
    command = ["git", "-C", str(place.path / "repo"), *words]
    return subprocess.run(command, env=place.environ, capture_output=True, text=True, check=True).stdout


def _refs(place: Place) -> dict[str, str]:
    lines = _git(place, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
    return {name: commit for name, _, commit in (line.partition(" ") for line in lines)}


def _examine(place: Place, session: SessionDir, before: dict[str, str]) -> list[str]:
    words = ["clean", session.session_id, "--worktrees", "--json", "--results-dir", str(place.results)]
    process = place.popen([sys.executable, "-m", "sessionrun", *words])
    out, said = process.communicate(timeout=120)
    wrong = [f"clean said {said}"] if said or process.returncode else []
    kept = [one for one in json.loads(out)["findings"] if not one["removed"] and one["what"] == "worktree"]
    wrong += [f"clean kept {kept}"] if kept else []
    refs = _refs(place)
    wrong += [f"{name} was {commit}" for name, commit in before.items() if refs.get(name) != commit]
    ours = [name for name in refs if name not in before]
    wrong += [f"{name} is not ours" for name in ours if not name.startswith("refs/heads/main-task-t")]
    files = {file for name in ours for file in _git(place, "ls-tree", "--name-only", name).split()}
    told = place.path / "written"
    written = told.read_text().split() if told.exists() else []
    wrong += [f"the work of {task} is lost" for task in written if f"work-{task}" not in files]
    if len(_git(place, "worktree", "list", "--porcelain").split("\n\n")) > 2:
        wrong.append(_git(place, "worktree", "list"))
    changed = _git(place, "status", "--porcelain")
    return [*wrong, f"the checkout has changed: {changed}"] if changed else wrong

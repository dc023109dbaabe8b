"""Campaigns on sessions with worktrees: no work of a task is lost, and the user's repository is as it was."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from sessionrun.store.session import SessionDir

from .campaign import HUNG_S, KILLS, PAUSE_S, has_ended, is_gone, resume_by
from .chain import ROLES, Role, kill_role
from .oracle import CODES, Figures, examine, make_plan
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
    written = place.path / "written"
    plan = _add_phases(make_plan(place.executed, TASKS, rng, more=WORK.format(told=written)))
    if walled:  # what tasks tell outside they write into files that are let in as devices are
        for path in (place.executed, written):
            path.touch()
        told = [str(place.executed), str(written)]
        for task in plan["prompts"]:
            task["sandbox"] = {"policy": "project", "network": "none", "devices": told}
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
    figures = examine(session, place.executed, may_lose=may_lose)
    figures.wrong += [f"{session.session_id}: {one}" for one in _examine(place, session, before)]
    figures.add(seen)
    return figures


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

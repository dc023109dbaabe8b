"""Campaigns on sessions with worktrees: no work of a task is lost, and the user's repository is as it was."""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
from collections import Counter
from pathlib import Path
from typing import Any, Final

from conftest import kill_sessions, wait_until

from sessionrun.store.session import SessionDir

from .oracle import CODES, HUNG_S, LEAVE_S, PAUSE_S, Choice, Figures, examine, has_ended, kill_by_chance, make_plan
from .place import Place

TASKS: Final = 8
PARALLEL: Final = 3
WORK: Final = 'echo "$SESSIONRUN_TASK" > "work-$SESSIONRUN_TASK"; echo "$SESSIONRUN_TASK" >> "{told}";'


COMMIT: Final = "git add -A; git commit -qm work; sleep "
COMMIT_SOME: Final = '[ "${SESSIONRUN_TASK#t}" -lt 4 ] || git add -A && git commit -qm work;'


def kill_in_worktrees(
    place: Place, rng: random.Random, choose: Choice, *, may_lose: bool = False, walled: bool = False
) -> Figures:
    """A session of tasks in worktrees, or with walls; unless it may lose its root, it has to end by itself."""
    make_repository(place)
    before = find_refs(place)
    executed, written = _Told(place.executed, walled), _Told(place.path / "written", walled)
    plan = _add_phases(make_plan(executed.path, TASKS, rng, more=WORK.format(told=written.path)))
    for task in plan["prompts"] if walled else ():
        shown = [str(executed.path), str(written.path)]
        task["sandbox"] = {"policy": "project", "network": "none", "read": shown}
        task["prompt"] = task["prompt"].replace("sleep ", COMMIT, 1)
    words = ["--max-parallel", str(PARALLEL), "--worktree", "--worktree-dir", str(place.path / "trees")]
    session = place.start(plan, *words, cwd=place.path / "repo")
    seen = kill_by_chance(place, rng, session, choose, may_lose=may_lose)
    wait_until(lambda: not session.is_alive(), LEAVE_S)
    for told in (executed, written):
        told.finish()
    figures = examine(session, place.executed, may_lose=may_lose)
    figures.wrong += [f"{session.session_id}: {one}" for one in _examine(place, session, before)]
    figures.add(seen)
    return figures


def kill_everything_in_worktrees(place: Place, rng: random.Random) -> Figures:
    """All processes of a session die at a moment after its start, the tasks, too; `clean` has to do all alone."""
    make_repository(place)
    before = find_refs(place)
    more = f"{WORK.format(told=place.path / 'written')} {COMMIT_SOME}"
    plan = _add_phases(make_plan(place.executed, TASKS, rng, more=more))
    words = ["--max-parallel", str(PARALLEL), "--worktree", "--worktree-dir", str(place.path / "trees")]
    session = place.start(plan, *words, cwd=place.path / "repo")
    goal, written = rng.randrange(TASKS), place.path / "written"

    def is_far() -> bool:
        return goal > 0 and written.exists() and written.read_text().count("\n") >= goal

    wait_until(lambda: has_ended(session) or is_far(), HUNG_S if goal else PAUSE_S)
    wait_until(lambda: has_ended(session), rng.uniform(0.0, PAUSE_S))
    kill_sessions(place.results)
    for lock in (place.path / "repo" / ".git" / "refs").rglob("*.lock"):
        os.utime(lock, (0, 0))  # as if the crash had been a while ago
    wrong = [f"{session.session_id}: {one}" for one in _examine(place, session, before)]
    return Figures(sessions=1, wrong=wrong, kills=Counter(root=1))


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


def make_repository(place: Place) -> None:
    (place.path / "repo").mkdir()
    place.environ.update(HOME=str(place.path), GIT_CONFIG_NOSYSTEM="1")
    (place.path / ".gitconfig").write_text("[user]\nname = Ann\nemail = ann@example.org\n")
    git(place, "init", "-q", "-b", "main")
    (place.path / "repo" / "a.txt").write_text("a\n")
    git(place, "add", "-A")
    git(place, "commit", "-q", "-m", "first")


def git(place: Place, *words: str) -> str:
    command = ["git", "-C", str(place.path / "repo"), *words]
    return subprocess.run(
        command, env=place.environ, capture_output=True, text=True, check=True, timeout=HUNG_S
    ).stdout


def find_refs(place: Place) -> dict[str, str]:
    lines = git(place, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
    return {name: commit for name, _, commit in (line.partition(" ") for line in lines)}


def _examine(place: Place, session: SessionDir, before: dict[str, str]) -> list[str]:
    code, out, said = place.run_verb("clean", session.session_id, "--worktrees", "--json")
    wrong = [f"clean said {said}"] if said or code else []
    kept = [one for one in json.loads(out)["findings"] if not one["removed"] and one["what"] == "worktree"]
    wrong += [f"clean kept {kept}"] if kept else []
    refs = find_refs(place)
    wrong += [f"{name} was {commit}" for name, commit in before.items() if refs.get(name) != commit]
    ours = [name for name in refs if name not in before]
    wrong += [f"{name} is not ours" for name in ours if not name.startswith("refs/heads/main-task-t")]
    files = {file for name in ours for file in git(place, "ls-tree", "--name-only", name).split()}
    told = place.path / "written"
    written = told.read_text().split() if told.exists() else []
    wrong += [f"the work of {task} is lost" for task in written if f"work-{task}" not in files]
    if len(git(place, "worktree", "list", "--porcelain").split("\n\n")) > 2:
        wrong.append(git(place, "worktree", "list"))
    left = [place.path / "repo/.git/worktrees", *(place.path / "trees").glob("*")]
    wrong += [f"{path} is left" for path in left if path.exists()]
    changed = git(place, "status", "--porcelain")
    return [*wrong, f"the checkout has changed: {changed}"] if changed else wrong

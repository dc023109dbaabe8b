"""Bad neighbours.

One task of a session takes hostile steps, a round each: git settings, links, FIFOs, files of the session, signals.
Honest tasks beside it, in worktrees, write files and say so outside.  At the end the repository's settings are put
right, as its user would, and then all of the honest work must be on a branch, or in a worktree that was kept; the
session must have ended, and no reader may hang or show a traceback.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from conftest import wait_until
from stages import make_program

from sessionrun.store.session import SessionDir

from .chain import find_left
from .oracle import HUNG_S, Figures
from .place import Place
from .worktrees import find_refs, git, make_repository

STEPS: Final = 10
"""Hostile steps in one session."""

STEP_S: Final = 5
"""Git of the hostile task waits at its own FIFO, step after step; the session must have ended before `HUNG_S`."""

HONEST: Final = ("h1", "h2", "h3", "h4")
CODES: Final = (0, 1, 2, 3, 4, 75, 124)


class Step(NamedTuple):
    """What the hostile task does; `hurts`: an honest task may fail by it, but its work must not be lost."""

    script: str
    hurts: bool = False


def _signal(program: str, signal: str) -> str:
    """Signals the session's processes of a program."""
    found = f"tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep -v __main__ | grep -q '{program}.*'\"$S\""
    return f"for p in /proc/[0-9]*; do {found} && kill -{signal} ${{p#/proc/}} 2>/dev/null; done"


STEPS_BY_NAME: Final[dict[str, Step]] = {
    # git settings that all worktrees share
    "filter": Step("git config filter.zap.clean true; mkdir -p $C/info; echo '* filter=zap' > $C/info/attributes"),
    "failing filter": Step("git config filter.zap.clean false; git config filter.zap.required true"),
    "line ends": Step("git config core.autocrlf input; git config core.safecrlf true; git config core.eol crlf"),
    "attributes": Step("echo '* text eol=lf ident working-tree-encoding=UTF-16' > $C/info/attributes"),
    "ignore all": Step(
        "mkdir -p $C/info; echo '*' > $C/info/exclude; git config core.excludesFile $C/info/exclude"
    ),
    "modes": Step("git config core.fileMode false; git config core.symlinks false"),
    "hooks": Step("git config core.hooksPath $O/hooks; git config core.fsmonitor $X"),
    "programs": Step("git config diff.external $X; git config core.pager $X; git config alias.diff '!$X'"),
    "include a FIFO": Step("mkfifo $C/pipe 2>/dev/null; git config include.path $C/pipe"),
    "no settings": Step("echo '[' > $C/config"),
    "settings are a FIFO": Step("rm -f $C/config; mkfifo $C/config"),
    "settings are a link": Step("rm -f $C/config; ln -s $O/nowhere $C/config"),
    "another top": Step("git config core.worktree /; git config core.bare true"),
    "lazy fetch": Step('git config extensions.partialClone e; git config remote.e.url "ext::sh $X"'),
    "replaced commit": Step(
        "git replace -f HEAD HEAD~0 2>/dev/null; git update-ref refs/replace/$(git rev-parse HEAD) HEAD"
    ),
    "collect garbage": Step("git gc --prune=now --quiet"),
    "prune worktrees": Step("git worktree prune --expire=now"),
    "info is a file": Step("rm -rf $C/info; echo x > $C/info"),
    "draft is taken": Step("mkdir -p $C/.sessionrun-draft; echo x > $C/.sessionrun-draft/x"),
    # its own worktree
    "own link is a FIFO": Step("rm -f .git; mkfifo .git"),
    "own link is another's": Step('echo "gitdir: $C/worktrees/main-task-h2" > .git'),
    "own worktree is gone": Step('rm -rf "$SESSIONRUN_WORKTREE"; mkdir -p "$SESSIONRUN_WORKTREE"'),
    "own index is rubbish": Step("echo garbage > $(git rev-parse --git-path index)"),
    # files of the session
    "status is rubbish": Step(  # not through a link of an earlier step: the hostile shell would follow it
        "for f in status.json summary; do [ ! -L $S/$f ] || rm -f $S/$f; done; "
        "head -c 500 /dev/urandom > $S/status.json; echo '{}' > $S/summary"
    ),
    "status is a FIFO": Step("rm -f $S/status.json; mkfifo $S/status.json"),
    "status is a link": Step("ln -sf $O/victim $S/status.json; ln -sf $O/victim $S/summary"),
    "requests are rubbish": Step(
        "for n in 1 2 3 4; do head -c 99 /dev/urandom > $S/requests/$n.json; done; mkfifo $S/requests/f.json"
    ),
    "wake is rubbish": Step("head -c 300 /dev/urandom > $S/wake"),
    "answers are rubbish": Step(
        "for f in $S/jobs/h*/a*-prepare*/ $S/jobs/h*/a*-release*/; do echo '{' > $f/answer.json; done", True
    ),
    "answers are lists": Step("for f in $S/jobs/h*/a*-release*/; do echo '[1]' > $f/answer.json; done", True),
    "claims are rubbish": Step("for f in $S/jobs/h*/a*-prepare*/; do echo '[]' > $f/claim.json; done", True),
    "requests of jobs": Step("for f in $S/jobs/h*/a*-*/; do echo 'null' > $f/request.json; done", True),
    "answers to come": Step("mkdir -p $S/jobs/h3/a1-r1-release/answer.json $S/jobs/h4/a1-r1-release", True),
    "log is a FIFO": Step("rm -f $S/supervisor.log; mkfifo $S/supervisor.log"),
    "outputs are links": Step("ln -sf $O/victim $S/task-bad.err; ln -sf $O/victim $S/task-bad.raw"),
    # signals
    "supervisor is killed": Step(_signal("sessionrun.session.main", "KILL")),
    "supervisor stands still": Step(
        'trap "" TERM; '  # on a busy machine the looking takes long: what is stopped must go on all the same
        f"{_signal('sessionrun.session.main', 'STOP')}; sleep 0.3; {_signal('sessionrun.session.main', 'CONT')}"
    ),
    "jobs of workspaces are killed": Step(_signal("session/job.py", "KILL")),
}

WORK: Final = r"""
told() { echo "$SESSIONRUN_TASK $1" >> "OUTSIDE/told"; }
printf 'text of %s\n' $SESSIONRUN_TASK > $SESSIONRUN_TASK.txt; told $SESSIONRUN_TASK.txt
sleep BRIEF
printf 'one\r\n%s\r\n' $SESSIONRUN_TASK > $SESSIONRUN_TASK.dos; told $SESSIONRUN_TASK.dos
printf '\000\001%s' $SESSIONRUN_TASK > $SESSIONRUN_TASK.bin; told $SESSIONRUN_TASK.bin
mkdir -p in; printf '$Id$ %s\n' $SESSIONRUN_TASK > in/$SESSIONRUN_TASK.log; told in/$SESSIONRUN_TASK.log
"""

SUFFIXES: Final = {".txt": b"text of %b\n", ".dos": b"one\r\n%b\r\n", ".bin": b"\0\1%b", ".log": b"$Id$ %b\n"}


def run_beside_neighbour(place: Place, rng: random.Random, *, walled: bool = False) -> Figures:
    """One session: some hostile steps beside honest tasks, then what must be true.

    With `walled` the hostile task has walls, and none of its steps may reach anything.
    """
    names = [rng.choice(list(STEPS_BY_NAME)) for _ in range(STEPS)]
    seen = Figures(sessions=1, tasks=len(HONEST), kills=Counter(step=STEPS))
    place.environ["XDG_STATE_HOME"] = str(place.path / "state")
    make_repository(place)
    shutil.copy(place.path / "repo" / ".git" / "config", place.path / "config-before")
    plan = _make_plan(place, rng, names)
    if walled:
        plan["prompts"][0]["sandbox"] = {"policy": "project", "network": "none"}
    session = place.start(plan, "--worktree", cwd=place.path / "repo")
    _read_all(place, session, seen, rng.sample(_READERS, 4))
    if not wait_until(lambda: _has_ended(place, session), HUNG_S):
        seen.wrong.append(f"it did not end: locks {session.held_locks()}, {find_left(session.path)}")
    else:
        _read_all(place, session, seen, _READERS)
        if walled:
            seen.wrong += _find_reached(place, session)
        else:
            _mend(place)
        hurts = any(STEPS_BY_NAME[name].hurts for name in names)
        _check(place, session, seen, may_fail=hurts and not walled, may_stay=not walled)
    seen.wrong = [f"{names}: {line}" for line in seen.wrong]
    return seen


def _find_reached(place: Place, session: SessionDir) -> Iterator[str]:
    """What a task with walls has changed of what is outside of them."""
    common = place.path / "repo" / ".git"
    if (common / "config").read_bytes() != (place.path / "config-before").read_bytes():
        yield "the settings of the repository have changed"
    made = [name for name in ("pipe", ".sessionrun-draft", "refs/replace") if os.path.lexists(common / name)]
    yield from (f".git/{name} was made" for name in made)
    if "SupervisorStarted" in session.journal_path.read_text().partition("SupervisorStarted")[2]:
        yield "the supervisor was started anew"


def _make_plan(place: Place, rng: random.Random, names: list[str]) -> dict[str, Any]:
    outside = place.path / "outside"
    outside.mkdir()
    # its own git may run what it planted; SESSIONRUN_GIT is in the environment of ours alone
    planted = f'[ -z "$SESSIONRUN_GIT" ] || echo "$0 $*" >> {outside}/ran'
    program = make_program(outside / "program", planted)
    make_program(outside / "hooks" / "reference-transaction", planted)
    (outside / "victim").write_text("precious\n")
    head = f"S={place.results}/session-$SESSIONRUN_SESSION\nO={outside}\nX={program}\nC={place.path}/repo/.git\n"
    scripts = [shlex.quote(head + STEPS_BY_NAME[name].script) for name in names]
    steps = [f"timeout {STEP_S} sh -c {script}\nsleep {rng.uniform(0, 0.15):.3f}" for script in scripts]
    script = "\n".join(steps)
    honest = [
        {
            "id": name,
            "prompt": f"sleep {rng.uniform(0, 0.3):.3f}\n"
            + WORK.replace("OUTSIDE", str(outside)).replace("BRIEF", f"{rng.uniform(0, 0.6):.3f}"),
        }
        for name in HONEST
    ]
    honest[3]["needs"] = "h1"
    return {"prompts": [{"id": "bad", "prompt": f"{script}\nexit 0"}, *honest]}


_READERS: Final = [
    "status",
    "status --json",
    "results",
    "explain",
    "logs",
    "cost",
    "diff",
    "diff --stat",
    "doctor",
    "list",
    "list --totals",
    "clean --worktrees --dry-run",
]


def _read_all(place: Place, session: SessionDir, seen: Figures, readers: list[str]) -> None:
    for verb in readers:
        named = [] if verb.startswith("list") else [session.session_id]
        _call(place, seen, *verb.split(), *named)


def _call(place: Place, seen: Figures, *words: str) -> str:
    process = place.start_verb(*words)
    try:
        out, said = process.communicate(timeout=HUNG_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        seen.wrong.append(f"{words} hangs")
        return ""
    if "Traceback" in said or process.returncode not in CODES:
        seen.wrong.append(f"{words} ended with {process.returncode}: {said[-600:]}")
    return str(out)


def _has_ended(place: Place, session: SessionDir) -> bool:
    """By the word of a reader: the hostile task may have put anything in the place of status.json."""
    if session.is_alive():
        time.sleep(0.05)
        return False
    shown = _call(place, Figures(), "status", "--json", session.session_id)
    try:
        return bool(json.loads(shown)["ended_at"])
    except (ValueError, KeyError):
        return False


def _mend(place: Place) -> None:
    """What the user does who finds the repository's settings spoilt."""
    common = place.path / "repo" / ".git"
    for name in ("config", "info", "hooks", "pipe"):
        path = common / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    shutil.copy(place.path / "config-before", common / "config")
    shutil.rmtree(common / "refs" / "replace", ignore_errors=True)


def _check(place: Place, session: SessionDir, seen: Figures, *, may_fail: bool, may_stay: bool) -> None:
    outside = place.path / "outside"
    if (outside / "ran").exists():
        seen.wrong.append("a planted program was run")
    if (outside / "victim").read_text() != "precious\n":
        seen.wrong.append("a planted link was followed")
    view = json.loads(_call(place, seen, "status", "--json", session.session_id))
    tasks = {task["id"]: task for task in view["tasks"]}
    for name in HONEST:
        if tasks[name]["outcome"] != "succeeded" and not may_fail:
            seen.wrong.append(f"{name} ended as {tasks[name]['outcome']}: {tasks[name]['reason']}")
    _call(place, seen, "clean", "--worktrees", session.session_id)
    told = set((outside / "told").read_text().splitlines()) if (outside / "told").exists() else set()
    if not may_fail and len(told) != len(HONEST) * len(SUFFIXES):
        seen.wrong.append(f"honest tasks told of {len(told)} files")
    for one in sorted(told):
        name, _, file = one.partition(" ")
        if not _is_there(place, name, file, may_stay=may_stay):
            seen.wrong.append(f"{file} of {name} is lost: {tasks[name]['reason']}, {tasks[name]['worktree_kept']}")
    refs = find_refs(place)
    if refs.get("refs/heads/main") is None or git(place, "status", "--porcelain"):
        seen.wrong.append(f"the checkout has changed: {git(place, 'status', '--porcelain')!r}")


def _is_there(place: Place, name: str, file: str, *, may_stay: bool) -> bool:
    """Whether an honest file is, as it was written, on a branch, or in a worktree that was kept."""
    wanted = SUFFIXES[Path(file).suffix].replace(b"%b", name.encode())
    show = ["git", "-C", str(place.path / "repo"), "--no-replace-objects", "cat-file", "blob"]
    for ref in find_refs(place):
        if ref.startswith(f"refs/heads/main-task-{name}"):
            done = subprocess.run([*show, f"{ref}:{file}"], env=place.environ, capture_output=True, timeout=HUNG_S)
            if done.returncode == 0 and done.stdout == wanted:
                return True
    kept = [path / file for path in (place.path / "repo-worktrees").glob(f"main-task-{name}*") if may_stay]
    return any(path.is_file() and path.read_bytes() == wanted for path in kept)

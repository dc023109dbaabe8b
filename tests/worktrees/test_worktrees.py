"""Sessions with worktrees through the real command: no work is lost, and the user's checkout is as it was."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, eventually, slow
from stages import commit_all
from test_workspaces import Project, make_repository

from sessionrun.git.repository import find_repository

SLOW_S = 180.0
MIB = 1024 * 1024


def make_ignoring_repository(top: Path) -> None:
    make_repository(top)
    (top / ".gitignore").write_text("*.log\nnode_modules\n__pycache__/\n")
    commit_all(top, "ignore")


class IgnoringProject(Project):
    """Its repository ignores what Python writes, too."""

    make = staticmethod(make_ignoring_repository)


@pytest.fixture
def project(own_place: Path, sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A repository in which the command is started; plans and results lie outside of it."""
    monkeypatch.setenv("SESSIONRUN_RESULTS_DIR", str(own_place / "results"))
    (Path(os.environ["HOME"]) / ".gitconfig").write_text("[user]\nname = Bob\nemail = bob@example.org\n")
    return IgnoringProject(own_place)


def start(sessionrun: Command, project: Project, plan: object, *words: str, cwd: Path | None = None) -> str:
    """Start a session in the repository; return its id."""
    place = Command(cwd or project.top, sessionrun.results)
    file = project.root / f"plan-{len(list(project.root.glob('plan-*')))}.json"
    file.write_text(json.dumps({"prompts": plan}))
    done = place("-q", "--agent", "shell", *words, str(file))
    assert done.returncode == 0, done.stderr
    sessionrun.sessions.append(done.stdout.strip())
    return sessionrun.sessions[-1]


def finish(
    sessionrun: Command, project: Project, plan: object, *words: str, cwd: Path | None = None
) -> dict[str, Any]:
    """Run a session in worktrees of the repository to its end; the status."""
    return wait(sessionrun, start(sessionrun, project, plan, "--worktree", *words, cwd=cwd))


def wait(sessionrun: Command, session_id: str) -> dict[str, Any]:
    """Wait for the end, however long; the status."""
    return sessionrun.until(session_id, lambda view: view["ended_at"], timeout_s=SLOW_S)


def by_id(view: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {task["id"]: task for task in view["tasks"]}


def snapshot(project: Project) -> dict[str, object]:
    """All of the user's: checkout, index, HEAD, config, stash and refs, without the branches of tasks."""
    git = project.top / ".git"
    files = {
        str(path.relative_to(project.top)): path.read_bytes()
        for path in sorted(project.top.rglob("*"))
        if path.is_file() and git not in path.parents
    }
    refs = project.run("for-each-ref", "--format=%(refname) %(objectname)").splitlines()
    return {
        "files": files,
        "refs": [ref for ref in refs if "-task-" not in ref and "/agent/" not in ref],
        "stash": (git / "logs/refs/stash").read_bytes() if (git / "logs/refs/stash").exists() else b"",
        **{name: (git / name).read_bytes() for name in ("index", "HEAD", "config")},
    }


def dirty(project: Project) -> None:
    """Work of the user's own, half done, in every place where git keeps such a thing."""
    (project.top / "a.txt").write_text("stashed\n")
    project.run("stash", "push", "-q")
    project.run("branch", "topic")
    project.run("tag", "v1")
    (project.top / "a.txt").write_text("staged\n")
    project.run("add", "a.txt")
    (project.top / "a.txt").write_text("edited after staging\n")
    (project.top / "untracked").write_text("mine\n")


def blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def reachable(project: Project) -> set[str]:
    """Every object that a branch or tag holds; after a crash git may not be able to read a worktree's HEAD."""
    listed = project.run("rev-list", "--branches", "--tags", "--objects")
    return {line.split(" ")[0] for line in listed.splitlines()}


def lying_in(folders: list[Path]) -> set[str]:
    """The content of all files that are left in these directories, but for the very large."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {blob_id(path.read_bytes()) for path in files if path.stat().st_size < MIB}


def worktrees(project: Project) -> list[Path]:
    """The linked worktrees, as git lists them."""
    lines = project.run("worktree", "list", "--porcelain").splitlines()
    return [Path(line.removeprefix("worktree ")) for line in lines if line.startswith("worktree ")][1:]


# --- many at once ---

SPECIAL = {
    "nested": "git init -q inner; cd inner; echo $SELF > f; git add f; git commit -qm inner; echo more $SELF > g",
    "added": "git init -q inner; cd inner; echo $SELF > f; git add f; git commit -qm inner; cd ..; "
    "git add inner 2>/dev/null; git commit -qm added",
    "merge": "git switch -qc agent/$ID; echo theirs $SELF > a.txt; git commit -qam side; git switch -q -; "
    "echo ours $SELF > a.txt; git commit -qam ours; git merge -q agent/$ID; test -f a.txt",
    "switched": "git switch -qc agent/$ID; echo on agent $SELF > c; git add c; git commit -qm c; echo $SELF > d",
    "detached": "git switch -q --detach; echo loose $SELF > c; git add c; git commit -qm c",
    "huge": "truncate -s 200M huge.bin; echo $SELF > beside",
    "linked": "mv sub kept; ln -s kept sub; echo $SELF > kept/n",
    "swapped": "rm -r sub; echo $SELF > sub; rm a.txt; mkdir a.txt; echo x $SELF > a.txt/x",
    "staged": "echo $SELF > s; git add s; git rm -q --cached a.txt",
    "hidden": "git update-index --assume-unchanged a.txt; echo hidden $SELF > a.txt",
    "moved": "git branch -m agent/$ID; echo $SELF > after",
    "intent": "echo $SELF > n; git add -N n",
}
LEFT = {
    "nested": ("SELF\n", "more SELF\n"),
    "added": ("SELF\n",),
    "merge": ("theirs SELF\n", "ours SELF\n"),
    "switched": ("on agent SELF\n", "SELF\n"),
    "detached": ("loose SELF\n",),
    "huge": ("SELF\n",),
    "linked": ("SELF\n",),
    "swapped": ("SELF\n", "x SELF\n"),
    "staged": ("SELF\n",),
    "hidden": ("hidden SELF\n",),
    "moved": ("SELF\n",),
    "intent": ("SELF\n",),
}
"""What each special task leaves; SELF stands for its session and id."""

KEPT = {"nested", "added", "merge", "switched", "detached", "huge", "moved"}
"""Those whose worktree cannot go."""


def ordinary(number: int) -> str:
    lines = ["echo work $SELF > new", "mkdir -p 'dir ü'", "echo deep $SELF > 'dir ü/file'"]
    lines += {
        1: ["rm a.txt"],
        2: ["git mv sub/b.txt moved.txt"],
        3: ["printf '\\000\\001\\377 %s' $SELF > binary"],
        4: ["echo no work > x.log", "mkdir -p node_modules", "echo none > node_modules/m"],
        5: ["chmod +x a.txt"],
    }.get(number % 7, [])
    if number % 2:
        lines += ["git add -A", "git commit -qm work"]
    return "\n".join(lines)


def many(size: int, special: Collection[str]) -> tuple[list[dict[str, Any]], dict[str, tuple[str, ...]]]:
    """Tasks, `size` and the special ones, and what each leaves."""
    scripts = {name: SPECIAL[name] for name in special}
    left = {name: LEFT[name] for name in special}
    for number in range(size):
        scripts[f"o{number}"] = ordinary(number)
        binary = ("\0\1\xff SELF",) if number % 7 == 3 else ()
        left[f"o{number}"] = ("work SELF\n", "deep SELF\n", *binary)
    names = "SELF=$SESSIONRUN_SESSION/$SESSIONRUN_TASK\nID=$SESSIONRUN_SESSION-$SESSIONRUN_TASK\n"
    return [{"id": name, "prompt": names + script} for name, script in scripts.items()], left


@pytest.mark.slow
def test_two_sessions_at_once_lose_nothing(sessionrun: Command, project: Project) -> None:
    """Of 32 tasks each, 32 worktrees at a time."""
    dirty(project)
    before = snapshot(project)
    plan, left = many(32 - len(SPECIAL), SPECIAL)
    ids = [start(sessionrun, project, plan, "--worktree", "--max-parallel", "16") for _ in range(2)]
    views = [wait(sessionrun, session_id) for session_id in ids]
    assert snapshot(project) == before
    tasks = [task for view in views for task in view["tasks"]]
    assert [(task["id"], task["reason"]) for task in tasks if task["outcome"] != "succeeded"] == []
    to_keep = KEPT
    assert {task["id"] for task in tasks if task["worktree_kept"]} == to_keep
    kept = [Path(task["worktree"]) for task in tasks if task["worktree"]]
    assert sorted(kept) == sorted(worktrees(project)) and len(kept) == 2 * len(to_keep)
    check_keys(project, tasks)
    check_patches(sessionrun, project, views)
    held = reachable(project) | lying_in(kept)
    for session_id in ids:
        for name, contents in left.items():
            for content in contents:
                blob = blob_id(content.replace("SELF", f"{session_id}/{name}").encode("latin-1"))
                assert blob in held, (name, content)
    for task in tasks:
        if task["id"] == "huge":
            assert (Path(task["worktree"]) / "huge.bin").stat().st_size == 200 * MIB
    assert not list(kept[0].parent.glob(".trash*"))
    check_clean_keeps(sessionrun, project, kept)
    assert snapshot(project) == before


@pytest.mark.parametrize(
    "task", [*many(2, SPECIAL)[0][::2], *slow(*many(2, SPECIAL)[0][1::2])], ids=lambda task: str(task["id"])
)
def test_what_any_task_leaves_is_held(project: Project, task: dict[str, Any]) -> None:
    """Without a session: PREPARE, the task's script, RELEASE."""
    dirty(project)
    before = snapshot(project)
    name = task["id"]
    env = {**os.environ, "SESSIONRUN_SESSION": "s1", "SESSIONRUN_TASK": name}
    place, path = project.cycle(
        lambda path: subprocess.run(
            ["sh", "-c", task["prompt"]], cwd=path, env=env, capture_output=True, check=True
        ),
        name,
    )
    assert snapshot(project) == before
    assert (place.kept is not None, path.exists()) == (name in KEPT, name in KEPT)
    assert worktrees(project) == ([path] if name in KEPT else [])
    held = reachable(project) | lying_in(worktrees(project))
    for content in many(7, SPECIAL)[1][name]:
        assert blob_id(content.replace("SELF", f"s1/{name}").encode("latin-1")) in held, content
    assert project.run("rev-parse", place.rescue or place.branch or "") == place.commit
    assert place.base_commit == project.run("rev-parse", "main")
    project.check_patch(project.root / "p" / f"{name}.patch", place.base_commit, place.commit or "")
    if name == "huge":
        assert (path / "huge.bin").stat().st_size == 200 * MIB
    assert not list(path.parent.glob(".trash*"))


def check_keys(project: Project, tasks: list[dict[str, Any]]) -> None:
    branches = [task["branch"] for task in tasks if task["id"] != "moved"]  # that one renamed it
    assert [task for task in tasks if task["branch"] is None and task["id"] != "moved"] == []
    assert sorted(set(branches)) == sorted(branches)
    refs = dict(
        line.split(" ") for line in project.run("for-each-ref", "--format=%(refname) %(objectname)").split("\n")
    )
    for task in tasks:
        assert task["base_commit"] == project.run("rev-parse", "main")
        assert set(task["diff_stat"] or ()) == {"files", "insertions", "deletions"}, task
        assert (task["worktree"] is None) == (task["worktree_kept"] is None), task["id"]
        holder = task["rescue_branch"] or task["branch"]
        assert refs.get(f"refs/heads/{holder}") == task["commit"], task


def check_patches(sessionrun: Command, project: Project, views: list[dict[str, Any]]) -> None:
    for view in views:
        for task in view["tasks"]:
            patch = sessionrun.directory(view["session_id"]) / "jobs" / task["id"] / "a1-diff.patch"
            project.check_patch(patch, task["base_commit"], task["commit"])


def check_clean_keeps(sessionrun: Command, project: Project, kept: list[Path]) -> None:
    """`clean` removes neither a worktree that holds work nor a branch that is not merged."""
    before, held = project.run("for-each-ref"), reachable(project) | lying_in(kept)
    assert sessionrun("clean", "--worktrees", "--dry-run").returncode == 0
    assert project.run("for-each-ref") == before
    done = sessionrun.load("clean", "--worktrees")["findings"]
    assert not any(finding["removed"] for finding in done)
    assert held <= reachable(project) | lying_in(kept)


# --- however a task ends ---


FOREVER = "exec sleep 600"


@pytest.mark.slow
def test_work_is_parked_however_a_task_ends(sessionrun: Command, project: Project) -> None:
    plan = [
        {"id": "fails", "prompt": "echo fails > f; exit 3"},
        {"id": "late", "prompt": f"echo late > f; {FOREVER}", "timeout": 10},
        {"id": "shot", "prompt": "echo shot > f; kill -KILL $$"},
        {
            "id": "child",
            "prompt": f"(trap '' TERM HUP; echo child > f; {FOREVER}) & until [ -s f ]; do sleep 0.1; done",
        },
        {"id": "retried", "prompt": "echo $SESSIONRUN_ATTEMPT > f; [ $SESSIONRUN_ATTEMPT = 2 ]", "retries": 1},
    ]
    view = finish(sessionrun, project, plan)
    tasks = by_id(view)
    assert {name: task["outcome"] for name, task in tasks.items()} == {
        "fails": "failed",
        "late": "timed_out",
        "shot": "failed",
        "child": "succeeded",
        "retried": "succeeded",
    }
    check_parked(sessionrun, project, view)
    assert tasks["retried"]["branch"] == "main-task-retried-2"
    assert project.show("main-task-retried", "f") == b"1\n"
    patches = sessionrun.directory(view["session_id"]) / "jobs" / "retried"
    assert (patches / "a2-diff.patch").stat().st_size


@pytest.mark.slow
def test_work_is_parked_when_a_task_is_cancelled(sessionrun: Command, project: Project) -> None:
    plan = [
        {"id": "stopped", "prompt": f"echo stopped > f; touch {project.root}/ready1; {FOREVER}"},
        {"id": "stubborn", "prompt": f"trap '' TERM; echo stubborn > f; touch {project.root}/ready2; {FOREVER}"},
        {"id": "other", "prompt": "echo other > f"},
    ]
    session_id = start(sessionrun, project, plan, "--worktree")
    eventually(lambda: (project.root / "ready1").exists() and (project.root / "ready2").exists())
    assert sessionrun("cancel", "last", "stopped", "stubborn").returncode == 0
    view = wait(sessionrun, session_id)
    outcomes = {name: task["outcome"] for name, task in by_id(view).items()}
    assert outcomes == {"stopped": "cancelled", "stubborn": "cancelled", "other": "succeeded"}
    check_parked(sessionrun, project, view)


def check_parked(sessionrun: Command, project: Project, view: dict[str, Any]) -> None:
    """Each task's file is on its branch and in a patch, and no worktree is left."""
    for name, task in by_id(view).items():
        content = "2" if name == "retried" else name
        assert project.show(task["commit"], "f") == f"{content}\n".encode(), name
        assert (task["worktree"], task["worktree_kept"]) == (None, None), name
        patches = sessionrun.directory(view["session_id"]) / "jobs" / name
        assert (patches / "a1-diff.patch").stat().st_size, name
    assert worktrees(project) == []


def test_cancelled_while_it_is_made_nothing_is_left(sessionrun: Command, project: Project) -> None:
    """The checkout waits in a filter, so that the cancel finds PREPARE at work."""
    (project.top / ".gitattributes").write_text("*.slow filter=slow\n")
    (project.top / "x.slow").write_text("x")
    project.run("add", "-A")
    project.run("commit", "-qm", "slow")
    script = f"touch {project.root}/made; exec sleep 600"
    project.run("config", "filter.slow.smudge", script)
    before = snapshot(project)
    session_id = start(sessionrun, project, [{"id": "t", "prompt": "true"}], "--worktree")
    eventually((project.root / "made").exists)
    assert sessionrun("cancel", "last").returncode == 0
    task = by_id(wait(sessionrun, session_id))["t"]
    assert (task["outcome"], task["branch"], task["worktree"]) == ("cancelled", None, None)
    check_clean(project, before)


def check_clean(project: Project, before: dict[str, object]) -> None:
    """Nothing of ours is in the repository."""
    assert snapshot(project) == before
    assert project.run("for-each-ref", "refs/heads/*-task-*") == "" and worktrees(project) == []
    assert not (project.top / ".git/worktrees").exists()
    assert not list(project.root.glob("repo-worktrees/*"))


# --- what git itself would overlook ---


_COMMITTED = "echo own > lib/own; git -C lib add own; git -C lib commit -qm own; git commit -qam 'new lib'"
_CHANGED = "echo new > lib/a.txt"
SUBMODULES: Mapping[str, tuple[str | None, str, str | None]] = {
    "committed there and in the worktree": (None, _COMMITTED, "submodule lib has commits of its own"),
    "changed": (None, _CHANGED, "submodule lib has changes of its own"),
    "changed, and to be overlooked": ("all", _CHANGED, "submodule lib has changes of its own"),
    "untouched": (None, "true", None),
}
"""How a submodule is to be ignored, what a task does in it, and why the worktree is kept."""


@pytest.mark.parametrize("how", SUBMODULES)
def test_work_in_a_submodule_keeps_the_worktree(project: Project, how: str) -> None:
    """Its repository would go with the worktree, whatever git shows of it."""
    ignore, script, kept = SUBMODULES[how]
    allow = ("-c", "protocol.file.allow=always")
    subprocess.run(["git", "clone", "-q", str(project.top), str(project.root / "library")], check=True)
    project.run(*allow, "submodule", "add", "-q", str(project.root / "library"), "lib")
    if ignore:
        project.run("config", "-f", ".gitmodules", "submodule.lib.ignore", ignore)
    project.run("add", "-A")
    project.run("commit", "-qm", "lib")

    def work(path: Path) -> None:
        project.run(*allow, "submodule", "update", "-q", "--init", cwd=path)
        project.shell(script, path)

    place, path = project.cycle(work)
    assert (place.kept, path.exists()) == (kept, kept is not None)
    if kept is not None:
        assert (path / "lib" / ("own" if script == _COMMITTED else "a.txt")).read_text() in ("own\n", "new\n")


def test_settings_for_people_do_not_spoil_the_patch(project: Project) -> None:
    for name, value in {"diff.noprefix": "true", "diff.submodule": "log", "diff.external": "false"}.items():
        project.run("config", name, value)
    place, _ = project.cycle(lambda path: (path / "a.txt").write_text("new\n"))
    project.run("apply", "--index", str(project.root / "p" / "t.patch"))
    assert project.run("write-tree") == project.run("rev-parse", f"{place.commit}^{{tree}}")


def test_a_link_or_included_file_that_became_work_is_parked(project: Project) -> None:
    (project.top / ".worktreeinclude").write_text("*.log\n")
    (project.top / "env.log").write_text("secret\n")
    (project.top / "data").mkdir()
    (project.top / "more").mkdir()

    def work(path: Path) -> None:
        (path / ".gitignore").unlink()
        (path / "env.log").write_text("changed\n")
        (path / "data").unlink()
        (path / "data").write_text("no link\n")
        (path / "more").unlink()
        (path / "more").symlink_to("elsewhere")

    place, _ = project.cycle(work, links=("data/", "more"))
    assert place.commit is not None
    assert project.show(place.commit, "env.log") == b"changed\n"
    assert project.show(place.commit, "data") == b"no link\n"
    assert project.show(place.commit, "more") == b"elsewhere"


def test_a_locked_worktree_stays(project: Project) -> None:
    place, path = project.cycle(lambda path: project.run("worktree", "lock", str(path)))
    assert place.kept == "it is locked (git worktree lock)" and path.is_dir()


def test_a_branch_lock_that_a_crash_left(project: Project) -> None:
    lock = project.top / ".git/refs/heads/main-task-t.lock"
    lock.touch()
    place, _ = project.cycle(lambda path: (path / "new").write_text("n"))
    assert place.branch == "main-task-t-2" and lock.exists()


def test_branches_below_the_name(project: Project) -> None:
    project.run("branch", "main-task-t/x")
    assert project.prepare()[1].branch == "main-task-t-2"


def test_a_worktree_dir_behind_a_link(project: Project, own_place: Path) -> None:
    (own_place / "real").mkdir()
    (own_place / "link").symlink_to("real")
    repository, _ = find_repository(project.top, base=None, worktree_dir=own_place / "link", keep="never")
    place, path = project.cycle(lambda path: (path / "new").write_text("n"), repository=repository)
    assert path == own_place / "real" / "main-task-t" and place.kept is None and not path.exists()


# --- what cannot be made ---


@pytest.mark.parametrize("words", [("--base", "origin/main/x"), ("--worktree-dir", "{}/file/folder")], ids=str)
def test_a_branch_or_a_worktree_dir_that_cannot_be(
    sessionrun: Command, project: Project, words: tuple[str, str]
) -> None:
    project.run("update-ref", "refs/remotes/origin/main/x", "HEAD")
    (project.root / "file").write_text("")
    before = snapshot(project)
    plan = [
        {"id": "t", "prompt": f"touch {project.root}/ran"},
        {"id": "free", "prompt": "true", "workspace": "none"},
    ]
    check_refused(project, finish(sessionrun, project, plan, *(word.format(project.root) for word in words)))
    check_clean(project, before)


@pytest.mark.slow
def test_links_that_cannot_be(sessionrun: Command, project: Project) -> None:
    before = snapshot(project)
    ran = f"touch {project.root}/ran"
    plan: list[dict[str, Any]] = [
        {"id": "t", "prompt": ran, "links": ["a.txt"]},
        {"id": "free", "prompt": "true", "workspace": "none"},
        {"id": "good", "prompt": "true"},
    ]
    tasks = check_refused(project, finish(sessionrun, project, plan))
    assert tasks["good"]["outcome"] == "succeeded"
    assert sessionrun.load("clean", "--worktrees")["findings"] == []
    check_clean(project, before)


@pytest.mark.slow
def test_clean_where_the_results_directory_is_relative(
    sessionrun: Command, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SESSIONRUN_RESULTS_DIR")
    plan = [{"id": "t", "prompt": "git switch -qc other; echo work > work.txt"}]
    session_id = start(sessionrun, project, plan, "--worktree")
    monkeypatch.chdir(project.top)
    sessionrun.cwd, sessionrun.results = project.top, project.top / "results"
    (task,) = wait(sessionrun, session_id)["tasks"]
    assert task["worktree_kept"] == "HEAD is on other, not on main-task-t"
    project.run("-C", task["worktree"], "add", ".")
    project.run("-C", task["worktree"], "commit", "-qm", "work")
    project.run("-C", task["worktree"], "switch", "-q", "main-task-t")
    planned = sessionrun("clean", "--worktrees", "--dry-run").stdout
    assert f"would remove worktree {task['worktree']}: " in planned
    assert f"removed worktree {task['worktree']}: " in sessionrun("clean", "--worktrees").stdout
    assert not Path(task["worktree"]).exists()
    assert project.run("show", "other:work.txt") == "work"


def check_refused(project: Project, view: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Task t never ran, in one line; the one without a worktree went on."""
    tasks = by_id(view)
    assert (tasks["t"]["outcome"], tasks["t"]["reason_class"]) == ("failed", "workspace_failed")
    assert tasks["t"]["reason"].startswith("workspace_failed: ") and "\n" not in tasks["t"]["reason"]
    assert "Traceback" not in tasks["t"]["reason"] and "Error:" not in tasks["t"]["reason"]
    assert not (project.root / "ran").exists()
    assert tasks["free"]["outcome"] == "succeeded"
    return tasks


# --- what a task finds ---


def test_what_a_task_finds_in_its_worktree(sessionrun: Command, project: Project) -> None:
    (project.top / ".worktreeinclude").write_text("*.log\n")
    (project.top / "env.log").write_text("secret\n")
    (project.top / "node_modules").mkdir()
    (project.top / "node_modules" / "m").write_text("module\n")
    show = "pwd; cat ../env.log ../node_modules/m ../from-setup; env | grep ^SESSIONRUN_"
    plan = [
        {"id": "full", "prompt": show, "setup": ["echo set > ../from-setup"], "links": ["node_modules"]},
        {"id": "unignores", "prompt": "echo > ../.gitignore", "links": ["node_modules"]},
        {"id": "bare", "prompt": "pwd", "workspace": "none"},
    ]
    view = finish(sessionrun, project, plan, cwd=project.top / "sub")
    session_id, tasks = view["session_id"], by_id(view)
    assert {task["outcome"] for task in tasks.values()} == {"succeeded"}
    lines = (sessionrun.directory(session_id) / "task-full.txt").read_text().splitlines()
    where = project.root / "repo-worktrees" / "main-task-full"
    assert lines[:4] == [str(where / "sub"), "secret", "module", "set"]
    base = project.run("rev-parse", "HEAD")
    assert {
        f"SESSIONRUN_WORKTREE={where}",
        "SESSIONRUN_BRANCH=main-task-full",
        f"SESSIONRUN_BASE_COMMIT={base}",
        f"SESSIONRUN_REPOSITORY={project.top}",
        "SESSIONRUN_TASK=full",
        f"SESSIONRUN_SESSION={session_id}",
    } <= set(lines)
    assert (tasks["full"]["commit"], tasks["full"]["branch"]) == (base, None)  # what setup left is no work
    assert project.files(tasks["unignores"]["commit"]) == project.files(base)  # neither secret nor link
    assert (sessionrun.directory(session_id) / "task-bare.txt").read_text() == f"{project.top / 'sub'}\n"
    assert tasks["bare"]["branch"] is None


def test_a_worktree_for_one_task_alone(sessionrun: Command, project: Project) -> None:
    plan = [{"id": "in", "prompt": "pwd; echo > new", "workspace": "worktree"}, {"id": "out", "prompt": "pwd"}]
    session_id = start(sessionrun, project, plan)
    tasks = by_id(wait(sessionrun, session_id))
    assert (tasks["in"]["branch"], tasks["out"]["branch"]) == ("main-task-in", None)
    assert (sessionrun.directory(session_id) / "task-out.txt").read_text() == f"{project.top}\n"
    assert not (project.top / "new").exists()


# --- clean, while names come back ---


@pytest.mark.slow
def test_clean_leaves_the_worktrees_of_a_living_session_alone(sessionrun: Command, project: Project) -> None:
    """Merged, deleted and run again: the claims of the first session name what the second lives in."""
    plan = [{"id": "t", "prompt": "echo new > new; while [ -e ../go-on ]; do sleep 0.05; done"}]
    finish(sessionrun, project, plan)
    project.run("merge", "-q", "main-task-t")
    project.run("branch", "-q", "-d", "main-task-t")
    plan[0]["prompt"] = f"echo more > more; touch {project.root}/ready; exec sleep 600"
    session_id = start(sessionrun, project, plan, "--worktree")
    eventually((project.root / "ready").exists)
    (path,) = worktrees(project)
    assert path.name == "main-task-t"
    removed = [finding for finding in sessionrun.load("clean", "--worktrees")["findings"] if finding["removed"]]
    assert removed == [] and (path / "more").exists()
    assert sessionrun("cancel", "last").returncode == 0
    wait(sessionrun, session_id)
    assert project.show("main-task-t", "more") == b"more\n"


@pytest.mark.slow
def test_two_repositories_share_a_worktree_dir(sessionrun: Command, project: Project, own_place: Path) -> None:
    (own_place / "second").mkdir()
    other = Project(own_place / "second")
    folder = str(own_place / "shared")
    plan = [{"id": f"t{number}", "prompt": "git rev-parse --git-common-dir > whose"} for number in range(8)]
    words = ("--worktree-dir", folder)
    ids = [start(sessionrun, one, plan, "--worktree", *words) for one in (project, other)]
    for one, session_id in zip((project, other), ids, strict=True):
        tasks = wait(sessionrun, session_id)["tasks"]
        assert {task["outcome"] for task in tasks} == {"succeeded"}
        for task in tasks:
            assert one.show(task["commit"], "whose").decode() == f"{one.top}/.git\n"


# --- a disk that is nearly full ---


@pytest.mark.slow
@pytest.mark.parametrize("small_disk", ["300m"], indirect=True)
def test_new_worktrees_wait_for_room(sessionrun: Command, project: Project, small_disk: Path) -> None:
    filler = small_disk / "filler"
    with filler.open("wb") as stream:
        for _ in range(100):
            stream.write(b"x" * MIB)
    plan = [
        {"id": "t", "prompt": "echo > new"},
        {"id": "given-up", "prompt": "true"},
        {"id": "free", "prompt": "true", "workspace": "none"},
    ]
    folder = str(small_disk / "worktrees")
    session_id = start(sessionrun, project, plan, "--worktree", "--worktree-dir", folder)
    view = sessionrun.until(session_id, lambda view: by_id(view)["free"]["outcome"] == "succeeded")
    task = by_id(sessionrun.until(session_id, lambda view: by_id(view)["t"]["reason_class"] == "held"))["t"]
    assert task["status"] != "completed" and task["held_until"] is not None
    assert f"MiB are free in {small_disk}" in task["reason"] and "256 MiB" in task["reason"]
    assert view["ended_at"] is None
    assert sessionrun("cancel", session_id, "given-up").returncode == 0
    view = sessionrun.status(session_id)
    assert by_id(view)["given-up"]["outcome"] == "cancelled" and by_id(view)["t"]["outcome"] is None
    filler.unlink()
    view = wait(sessionrun, session_id)
    assert by_id(view)["t"]["outcome"] == "succeeded"
    assert project.show("main-task-t", "new") == b"\n"

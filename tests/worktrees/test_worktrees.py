"""Sessions with worktrees through the real command: no work is lost, and the user's checkout is as it was."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Command, eventually, slow
from stages import commit_all, put_first, refs_are_files
from test_workspaces import Project

from sessionrun.git.git import Git
from sessionrun.git.repository import find_repository
from sessionrun.model.errors import SessionrunError
from sessionrun.worktrees.clean import clean_claimed
from sessionrun.worktrees.release import release


@pytest.fixture
def project(own_place: Path, sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A repository in which the command is started; plans and results lie outside of it."""
    monkeypatch.setenv("SESSIONRUN_RESULTS_DIR", str(own_place / "results"))
    (Path(os.environ["HOME"]) / ".gitconfig").write_text("[user]\nname = Bob\nemail = bob@example.org\n")
    return Project(own_place)


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
    return sessionrun.until(session_id, lambda view: view["ended_at"], timeout_s=180)


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
    """Work of the user's own, half done, in every place where git keeps such a thing; and settings for people."""
    for setting in ("diff.noprefix true", "diff.submodule log", "diff.external false"):
        project.run("config", *setting.split())
    (project.top / "a.txt").write_text("stashed\n")
    project.run("stash", "push", "-q")
    project.run("branch", "topic")
    project.run("tag", "v1")
    (project.top / "a.txt").write_text("staged\n")
    project.run("add", "a.txt")
    (project.top / "a.txt").write_text("edited after staging\n")
    (project.top / "untracked").write_text("mine\n")


def worktrees(project: Project) -> list[Path]:
    """The linked worktrees, as git lists them."""
    lines = project.run("worktree", "list", "--porcelain").splitlines()
    return [Path(line.removeprefix("worktree ")) for line in lines if line.startswith("worktree ")][1:]


@pytest.mark.slow
def test_sessions_at_once_lose_nothing(sessionrun: Command, project: Project, own_place: Path) -> None:
    """Two in one repository and one in another, with all worktrees in one directory."""
    (own_place / "second").mkdir()
    places, shared = (project, project, Project(own_place / "second")), own_place / "shared"
    plan = [{"id": f"t{number}", "prompt": "echo $SESSIONRUN_SESSION > self"} for number in range(16)]
    words = ("--worktree", "--worktree-dir", str(shared), "--max-parallel", "16")
    ids = [start(sessionrun, one, plan, *words) for one in places]
    for one, session_id in zip(places, ids, strict=True):
        for task in wait(sessionrun, session_id)["tasks"]:
            assert (task["outcome"], task["worktree_kept"]) == ("succeeded", None), task["reason"]
            assert one.run("show", f"{task['branch']}:self") == session_id
    assert worktrees(project) == [] and list(shared.iterdir()) == []


# --- however a task ends ---


FOREVER = "exec sleep 600"


@pytest.mark.slow
def test_work_is_parked_however_a_task_ends(sessionrun: Command, project: Project) -> None:
    plan = [
        {"id": "late", "prompt": f"echo late > f; {FOREVER}", "timeout": 10},
        {"id": "shot", "prompt": "echo shot > f; kill -KILL $$"},
        {
            "id": "child",
            "prompt": f"(trap '' TERM HUP; echo child > f; {FOREVER}) & until [ -s f ]; do sleep 0.1; done",
        },
    ]
    view = finish(sessionrun, project, plan)
    tasks = by_id(view)
    assert {name: task["outcome"] for name, task in tasks.items()} == {
        "late": "timed_out",
        "shot": "failed",
        "child": "succeeded",
    }
    for name, task in tasks.items():
        assert project.show(task["commit"], "f") == f"{name}\n".encode(), name
        assert (task["worktree"], task["worktree_kept"]) == (None, None), name
        assert (sessionrun.directory(view["session_id"]) / f"jobs/{name}/a1-diff.patch").stat().st_size, name
    assert worktrees(project) == []


def test_cancelled_while_it_is_made_nothing_is_left(sessionrun: Command, project: Project) -> None:
    """The checkout waits in a filter, so that the cancel finds PREPARE at work."""
    (project.top / ".gitattributes").write_text("*.slow filter=slow\n")
    (project.top / "x.slow").write_text("x")
    commit_all(project.top, "slow")
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


# --- whatever a task does in its worktree, its index and git's settings ---

WORK = "echo x1 > a.txt; echo n > n"
MONITOR = """
printf '#!/bin/sh\nprintf "t\\0"' > ../../hook
chmod +x ../../hook
git config core.fsmonitor $PWD/../../hook
git config core.fsmonitorHookVersion 2
git update-index --fsmonitor
git status
git update-index --fsmonitor-valid a.txt
"""

TRICKS = {
    "a split index": "git update-index --split-index",
    "a file system monitor that sees nothing": MONITOR,
    "an untracked cache": "git update-index --untracked-cache; git status",
    "times that tell nothing": "git config core.trustctime false; git config core.checkStat minimal; git status",
    "stat data that are trusted": "git config core.ignoreStat true; git reset -q --hard",
    "a sparse checkout": "git sparse-checkout set sub; git sparse-checkout reapply",
    "modes that do not count": "git config core.fileMode false; chmod +x sub/b.txt",
    "no index": "rm $(git rev-parse --git-path index)",
    "files taken out of the index": "git rm -q --cached a.txt sub/b.txt",
    "a commit that is replaced": "echo own > own; git add own; git commit -qm own; git replace HEAD HEAD~1",
    "a tag of the branch's name": "git tag main-task-t",
    "a branch that is another's name": "git symbolic-ref refs/heads/agent/alias refs/heads/main-task-t; "
    "git symbolic-ref HEAD refs/heads/agent/alias",
    "a bisection": "echo own > own; git add own; git commit -qm own; git bisect start HEAD HEAD~1",
    "attributes": "echo '* -text' > .gitattributes",
    "a filter that empties files": "git config filter.zap.clean true; echo '* filter=zap' > .gitattributes",
    "a filter that empties files, if a condition holds": "git config includeIf.gitdir:/.path more; "
    "git config -f $(git rev-parse --git-common-dir)/more filter.zap.clean true; "
    "echo '* filter=zap' > .gitattributes",
    "a filter that fails": "git config filter.bad.clean false; git config filter.bad.required true; "
    "echo '* filter=bad' > .gitattributes",
    "line ends": "git config core.autocrlf input; git config core.safecrlf true; printf 'a\\r\\nb\\r\\n' > a.txt",
    "attributes of all worktrees": "echo '* text eol=lf' > $(git rev-parse --git-common-dir)/info/attributes; "
    "printf 'a\\r\\n' > a.txt",
    "an encoding": "echo '* working-tree-encoding=UTF-16' > $(git rev-parse --git-common-dir)/info/attributes",
    "another top": "git config extensions.worktreeConfig true; git config --worktree core.worktree /",
}

PARKED = {
    "uncommitted": "printf 'changed\\n' > a.txt; mkdir 'new dir'; printf '\\000\\377' > 'new dir/ünï.bin'; "
    "rm sub/b.txt; echo > x.log; mkdir node_modules; echo none > node_modules/m",
    "committed, and more": "echo 1 > one; git add one; git commit -qm mine; echo 2 > two",
    "a new name, and a new mode": "mv a.txt c.txt; chmod +x sub/b.txt",
    "hidden": "git update-index --assume-unchanged a.txt; git update-index --skip-worktree sub/b.txt; "
    "echo ha > a.txt; echo hb > sub/b.txt",
    "behind a lock, hooks and a key": "git config commit.gpgSign true; "
    "H=$(git rev-parse --git-common-dir)/hooks; mkdir -p $H; "
    "for name in pre-commit post-commit post-index-change reference-transaction; do "
    "printf '#!/bin/sh\\ntouch $0.ran; exit 1\\n' > $H/$name; chmod +x $H/$name; done; "
    "touch $(git rev-parse --git-dir)/index.lock",
    "where nobody may write": "mkdir ro; echo x > ro/f; chmod 555 ro",
    "in a worktree that was moved": 'git worktree move "$PWD" "$PWD-elsewhere"',
    "behind a link": "mv sub kept; ln -s kept sub; echo more > kept/n; mv kept/b.txt kept/c.txt",
    "a file for a directory": "rm -r sub; echo > sub; rm a.txt; mkdir a.txt; echo x > a.txt/x",
    "staged": "echo s > s; git add s; git rm -q --cached a.txt",
    "to be added": "echo x > x; git add -N x",
    "on a branch that was deleted": "echo own > a.txt; git commit -qam own; "
    "git update-ref -d refs/heads/main-task-t",
    "while its user goes on": "git -C ../../repo commit -q --allow-empty -m more",
    "beside a repository that is none": "mkdir -p beside/.git; echo g > beside/g",
}
"""Work that a commit holds, whatever git's commands would say of it."""

NEST = "(git init -q {0}; cd {0}; echo f > f; git add f; git commit -qm {0}); "
KEPT = {
    "inner/ is a repository of its own": NEST.format("inner") + "echo more > inner/g",
    "added/ is a repository of its own": NEST.format("added") + "git add added 2>/dev/null; git commit -qm added",
    "inner/.git is not a repository, and no commit can hold it": NEST.format("inner") + "rm inner/.git/HEAD",
    "a merge was left unfinished": "git switch -qc side; echo side > a.txt; git commit -qam side; "
    "git switch -q -; echo ours > a.txt; git commit -qam ours; ! git merge -q side",
    "HEAD is on else, not on main-task-t": "git switch -qc else; echo c > c; git add c; git commit -qm c",
    "HEAD is on no branch, not on main-task-t": "git switch -q --detach; echo c > c; git add c; git commit -qm c",
    "HEAD is on mine, not on main-task-t": "git branch -m mine",
    "huge.bin is larger than 100 MiB": "truncate -s 200M huge.bin",
    "it is locked (git worktree lock)": 'git worktree lock "$PWD"',
}
"""Why a worktree stays: what no commit can hold, or not on the task's branch."""


def lying(path: Path) -> dict[str, bytes]:
    """What lies there and is work: where links lead, the contents of files, and the size of one that is huge."""
    found = [
        one for one in path.rglob("*") if not {".git", "node_modules"} & {*one.parts} and one.suffix != ".log"
    ]
    left: dict[str, bytes] = {}
    for one in found:
        name = str(one.relative_to(path))
        if one.is_symlink():
            left[name] = os.fsencode(os.readlink(one))
        elif one.is_file():
            size = one.stat().st_size
            left[name] = one.read_bytes() if size < 2**20 else b"%d" % size
    return left


WAYS = {**PARKED, **TRICKS, **KEPT}


@pytest.mark.parametrize("name", [*list(WAYS)[::2], *slow(*list(WAYS)[1::2])])
def test_nothing_is_overlooked(project: Project, name: str) -> None:
    """What is the user's stays as it was, and nothing of theirs is run."""
    dirty(project)
    left: dict[str, bytes] = {}
    before: dict[str, object] = {}

    def work(path: Path) -> None:
        words = ["sh", "-c", f"set -e; {WAYS[name]}\necho n > n"]
        if name in TRICKS:
            words[2] = f"{TRICKS[name]}\n{WORK}"
        subprocess.run(words, cwd=path, capture_output=True, check=True)
        (lies,) = path.parent.iterdir()
        left.update(lying(lies))
        before.update(snapshot(project))

    place, path = project.cycle(work)
    assert snapshot(project) == before
    branch = f"refs/heads/{place.rescue or place.branch}"
    commit = project.run("--no-replace-objects", "rev-parse", branch)
    assert place.commit == commit
    if name in KEPT:
        assert (place.kept, place.worktree, lying(path)) == (name, str(path), left)
        assert project.show(commit, "n") == b"n\n"
    else:
        assert (place.kept, place.rescue, place.branch) == (None, None, "main-task-t")
        assert list(path.parent.iterdir()) == []
        assert {file: project.show(commit, file) for file in project.files(commit)} == left
    git, patch = Git(project.top).with_index(project.root / "patch-index"), project.root / "p" / "t.patch"
    git("read-tree", place.base_commit or "")
    if patch.stat().st_size:
        git("apply", "--cached", "--whitespace=nowarn", str(patch))
    assert git.line("write-tree") == git.line("rev-parse", f"{commit}^{{tree}}"), "the patch gives the commit"
    assert list((project.top / ".git").rglob("*.ran")) == []


def test_what_cannot_be_read_stays(project: Project) -> None:
    request, path = project.begin_work()
    project.shell(f"echo garbage > $(git rev-parse --git-path index)\n{WORK}", path)
    left = lying(path)
    with pytest.raises(SessionrunError) as caught:
        release(request, project.folder())
    assert "\n" not in str(caught.value)
    assert lying(path) == left and {"a.txt", "n"} <= set(left)


def test_objects_that_another_task_prunes_meanwhile_are_made_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``git gc --prune=now`` deletes the files of a commit that is just being made: nothing refers to them yet."""
    mark = project.root / "pruned"

    def work(path: Path) -> None:
        project.shell(WORK, path)
        prune = f'env -i PATH="$PATH" {shutil.which("git")} -C "$GIT_WORK_TREE" prune --expire=now'
        when = f'case " $* " in *" write-tree "*) if mkdir {mark} 2>/dev/null'
        put_first(project.root, monkeypatch, f"{when}; then {prune}; fi;; esac")

    place, _ = project.cycle(work)
    assert mark.exists()
    assert (place.kept, place.worktree) == (None, None)
    assert project.show(str(place.commit), "n") == b"n\n"


CLOSED = """
echo e > e; mkdir d listed; echo z > d/z; echo l > listed/l; echo s > secret; echo changed > sub/b.txt
odd=$(printf 'o\\374'); echo o > "$odd"
chmod 000 d secret sub "$odd"; chmod 444 listed
"""
OPEN = "chmod 700 d listed secret sub o*"


def branches(project: Project) -> list[str]:
    return project.run("for-each-ref", "--format=%(refname)", "refs/heads").split()


def run_obeying(sessionrun: Command, project: Project, prompt: str) -> dict[str, Any]:
    """A task that has ended, whose user obeys the modes of files, also if it is root."""
    obeying = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    if obeying and subprocess.run(["sh", "-c", f"{' '.join(obeying)} true"], capture_output=True).returncode != 0:
        pytest.skip("root reads all files, and setpriv cannot change that here")
    plan = sessionrun.cwd / "plan.json"
    plan.write_text(json.dumps([{"id": "t", "prompt": prompt}]))
    words = ("-q", "--sync", "--worktree", "--agent", "shell", "--results-dir", str(sessionrun.results), str(plan))
    argv = [*obeying, *sessionrun.argv, *words]
    subprocess.run(argv, cwd=project.top, env=os.environ, check=True, capture_output=True)
    (task,) = sessionrun.load("status", "last")["tasks"]
    return dict(task)


def test_a_closed_directory_in_the_place_of_a_submodule_keeps_the_worktree(
    sessionrun: Command, project: Project
) -> None:
    link = "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),lib"
    task = run_obeying(sessionrun, project, f"{link}; mkdir -p lib/in; echo > lib/in/new; chmod 000 lib/in")
    assert task["worktree_kept"].startswith("lib/ is the place of a submodule")
    os.chmod(f"{task['worktree']}/lib/in", 0o700)


def test_what_its_user_cannot_read_keeps_the_worktree(sessionrun: Command, project: Project) -> None:
    """Of a directory that it cannot open git only warns; and a file in it seems to be deleted."""
    names = sorted([*project.run("ls-files").split(), "e"])
    task = run_obeying(sessionrun, project, CLOSED)
    worktree = Path(task["worktree"])
    try:
        assert task["outcome"] == "succeeded"
        assert project.run("ls-tree", "-r", "--name-only", "main-task-t-rescue").split() == names
        for name in ("d/", "listed/l", "secret", "o\ufffd", "sub/"):
            assert f"{name} cannot be read" in task["worktree_kept"]
    finally:
        subprocess.run(["sh", "-c", OPEN], cwd=worktree, check=True)
    sessionrun("clean", "--worktrees", "last")
    held = {name for one in branches(project) for name in project.run("ls-tree", "-r", "--name-only", one).split()}
    assert not worktree.exists() and held == {*names, "d/z", "listed/l", "secret", '"o\\374"'}


# --- what git itself would overlook ---


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


@refs_are_files
def test_a_branch_lock_that_a_crash_left(project: Project) -> None:
    lock = project.top / ".git/refs/heads/main-task-t.lock"
    lock.touch()
    place, _ = project.cycle(lambda path: (path / "new").write_text("n"))
    assert place.branch == "main-task-t-2" and lock.exists()


def test_a_worktree_of_a_person_whose_disk_is_away(project: Project) -> None:
    _, path = project.cycle(lambda path: None)
    project.run("worktree", "add", "-q", "--lock", "-b", "own", str(path))
    shutil.rmtree(path)
    place = project.prepare()[1]
    assert place.worktree is not None and place.worktree != str(path)
    assert f"worktree {path}" in project.run("worktree", "list", "--porcelain").splitlines()


def test_a_worktree_dir_behind_a_link(project: Project, own_place: Path) -> None:
    (own_place / "real").mkdir()
    (own_place / "link").symlink_to("real")
    repository, _ = find_repository(project.top, base=None, worktree_dir=own_place / "link", keep="never")
    place, path = project.cycle(lambda path: (path / "new").write_text("n"), repository=repository)
    assert path == own_place / "real" / "main-task-t" and place.kept is None and not path.exists()


# --- what cannot be made ---


@pytest.mark.parametrize(
    ("words", "links"),
    [
        ("--base origin/main/x", ()),
        ("--worktree-dir {}/file/folder", ()),
        pytest.param("", ("a.txt",), marks=pytest.mark.slow),
    ],
)
def test_a_task_whose_worktree_cannot_be_made_never_runs_and_leaves_nothing(
    sessionrun: Command, project: Project, words: str, links: tuple[str, ...]
) -> None:
    """It is told in one line, and the task without a worktree goes on."""
    project.run("update-ref", "refs/remotes/origin/main/x", "HEAD")
    (project.root / "file").write_text("")
    before = snapshot(project)
    plan = [
        {"id": "t", "prompt": f"touch {project.root}/ran", "links": links},
        {"id": "free", "prompt": "true", "workspace": "none"},
    ]
    tasks = by_id(finish(sessionrun, project, plan, *words.format(project.root).split()))
    assert (tasks["t"]["outcome"], tasks["t"]["reason_class"]) == ("failed", "workspace_failed")
    assert tasks["t"]["reason"].startswith("workspace_failed: ") and "\n" not in tasks["t"]["reason"]
    assert "Traceback" not in tasks["t"]["reason"] and "Error:" not in tasks["t"]["reason"]
    assert not (project.root / "ran").exists()
    assert tasks["free"]["outcome"] == "succeeded"
    assert sessionrun.load("clean", "--worktrees")["findings"] == []
    check_clean(project, before)


def test_clean_where_the_results_directory_is_relative(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    request, path = project.begin_work()
    (path / "work.txt").write_text("work")
    monkeypatch.chdir(project.root)
    claimed = project.claim(request, folder=Path(f"jobs-{project._jobs}", "a1-1-prepare"))
    found = list(clean_claimed(claimed, dry_run=False))
    assert [(finding.what, finding.removed) for finding in found] == [("worktree", True), ("branch", False)]
    assert project.run("show", "main-task-t:work.txt") == "work"


# --- what a task finds ---


def test_what_a_task_finds_in_its_worktree(sessionrun: Command, project: Project) -> None:
    (project.top / ".worktreeinclude").write_text("*.log\n!skip.log\nuntracked-but-not-ignored\n")
    for name in ("env.log", "skip.log", "untracked-but-not-ignored"):
        (project.top / name).write_text("secret\n")
    (project.top / "node_modules").mkdir()
    (project.top / "node_modules" / "m").write_text("module\n")
    show = "pwd; cat ../env.log ../node_modules/m ../from-setup; cat ../skip.log ../unt*; env | grep ^SESSIONRUN_"
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
    assert lines[:4] == [str(where / "sub"), "secret", "module", "set"] and "secret" not in lines[4:]
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


# --- clean, while names come back ---


def test_clean_leaves_the_worktrees_of_a_living_session_alone(project: Project) -> None:
    """Merged, deleted and run again: the claims of the first session name what the second lives in."""
    request, path = project.begin_work()
    claims = [project.claim(request, worked=worked) for worked in (False, True)]
    (path / "new").write_text("new\n")
    release(request, project.folder())
    project.run("merge", "-q", "main-task-t")
    project.run("branch", "-q", "-d", "main-task-t")
    assert project.begin_work(session_id="s2")[1] == path
    (path / "more").write_text("more\n")
    for claimed in claims:
        found = list(clean_claimed(claimed, dry_run=False))
        assert not any(finding.removed for finding in found) and (path / "more").exists()


# --- a disk that is nearly full ---


@pytest.mark.slow
@pytest.mark.parametrize("small_disk", ["300m"], indirect=True)
def test_new_worktrees_wait_for_room(sessionrun: Command, project: Project, small_disk: Path) -> None:
    filler = small_disk / "filler"
    with filler.open("wb") as stream:
        for _ in range(100):
            stream.write(b"x" * 2**20)
    plan = [{"id": "t", "prompt": "echo > new"}, {"id": "free", "prompt": "true", "workspace": "none"}]
    folder = str(small_disk / "worktrees")
    session_id = start(sessionrun, project, plan, "--worktree", "--worktree-dir", folder)
    view = sessionrun.until(session_id, lambda view: by_id(view)["free"]["outcome"] == "succeeded")
    task = by_id(sessionrun.until(session_id, lambda view: by_id(view)["t"]["reason_class"] == "held"))["t"]
    assert task["status"] != "completed" and task["held_until"] is not None
    assert f"MiB are free in {small_disk}" in task["reason"] and "256 MiB" in task["reason"]
    assert view["ended_at"] is None
    filler.unlink()
    view = wait(sessionrun, session_id)
    assert by_id(view)["t"]["outcome"] == "succeeded"
    assert project.show("main-task-t", "new") == b"\n"


# --- git that does not come back: the job ends in time or by `cancel --now`, and so does its session ---

TASK = {"id": "a", "prompt": "echo work >made.txt"}


def block(sessionrun: Command, project: Project, monkeypatch: pytest.MonkeyPatch, *, first: str = "") -> Path:
    """Let the git of a RELEASE do what comes `first`, and wait until the file is gone."""
    sessionrun.cwd, held = project.top, project.root / "held"
    held.touch()
    waits = f"touch {project.root}/waits; while [ -e {held} ]; do sleep 0.1; done"
    put_first(project.root, monkeypatch, f'case " $* " in *" write-tree "*) {first} {waits};; esac')
    return held


@pytest.mark.slow
def test_a_release_over_its_time_leaves_worktree_and_outcome(
    sessionrun: Command, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = block(sessionrun, project, monkeypatch, first="trap '' TERM;")
    session_id = sessionrun.start({"limits": {"workspace_timeout": 10}, "prompts": [TASK]}, "--worktree")
    view = sessionrun.wait(session_id)
    task = view["tasks"][0]
    assert (view["outcome"], task["outcome"]) == ("succeeded", "succeeded")
    assert task["worktree_kept"] == "release_failed: not done after 10 s (workspace_timeout)"
    assert Path(task["worktree"], "made.txt").read_text() == "work\n"
    assert "release_failed: not done after 10 s" in sessionrun("results", session_id).stdout
    held.unlink()
    done = sessionrun("clean", "--worktrees", session_id)
    assert done.returncode == 0, done.stderr
    assert project.run("show", "main-task-a:made.txt") == "work"


def test_cancel_now_ends_a_release_and_cancel_does_not(
    sessionrun: Command, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    block(sessionrun, project, monkeypatch)
    session_id = sessionrun.start({"prompts": [TASK]}, "--worktree")
    eventually((project.root / "waits").exists)
    view = sessionrun.until(
        session_id, lambda view: view["tasks"][0]["phase"] == "releasing" and view["tasks"][0]["pid"]
    )
    release = psutil.Process(view["tasks"][0]["pid"])
    done = sessionrun("cancel", session_id, "--timeout", "0")
    assert done.returncode == 0, done.stderr
    sessionrun.until(session_id, lambda view: not list((sessionrun.directory(session_id) / "requests").iterdir()))
    assert release.is_running()
    done = sessionrun("cancel", session_id, "--now")
    assert done.returncode == 0, done.stderr
    view = sessionrun.wait(session_id)
    task = view["tasks"][0]
    assert (view["status"], task["outcome"]) == ("cancelled", "succeeded")
    assert task["worktree_kept"] == "cancelled: on request"
    assert Path(task["worktree"], "made.txt").read_text() == "work\n"
    eventually(lambda: not release.is_running())

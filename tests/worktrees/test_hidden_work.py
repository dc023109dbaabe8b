"""Whatever a task does to its index and to git's settings: what lies in its worktree is committed, or it stays."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Command, slow
from test_workspaces import Project, project

from sessionrun.model.errors import SessionrunError
from sessionrun.worktrees.release import release

__all__ = ["project"]

WORK = "echo x1 > a.txt; echo n > n"
MONITOR = """
printf '#!/bin/sh\nprintf "t\\0"' > ../hook
chmod +x ../hook
git config core.fsmonitor $PWD/../hook
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
    "a branch that is another's name": "git symbolic-ref refs/heads/alias refs/heads/main-task-t; "
    "git symbolic-ref HEAD refs/heads/alias",
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
KEPT = {
    "an index that is none": "echo garbage > $(git rev-parse --git-path index)",
}


def files(path: Path) -> dict[str, bytes]:
    found = [one for one in path.rglob("*") if one.is_file() and one.name != ".git"]
    return {str(one.relative_to(path)): one.read_bytes() for one in found}


@pytest.mark.parametrize("name", [*list(TRICKS)[::3], *slow(*list(TRICKS)[1::3], *list(TRICKS)[2::3])])
def test_nothing_is_overlooked(project: Project, name: str) -> None:
    left = {}

    def work(path: Path) -> None:
        subprocess.run(["sh", "-c", f"{TRICKS[name]}\n{WORK}"], cwd=path, capture_output=True, check=True)
        left.update(files(path))

    place, path = project.cycle(work)
    assert (place.kept, place.rescue, place.branch) == (None, None, "main-task-t") and not path.exists()
    commit = project.run("--no-replace-objects", "rev-parse", "refs/heads/main-task-t")
    assert {"a.txt", "n"} <= set(left)
    for file, content in left.items():
        blob = ["git", "--no-replace-objects", "cat-file", "blob", f"{commit}:{file}"]
        assert subprocess.run(blob, cwd=project.top, capture_output=True).stdout == content, file


@pytest.mark.parametrize("name", KEPT)
def test_what_cannot_be_read_stays(project: Project, name: str) -> None:
    request, place = project.prepare()
    path = Path(place.worktree or "")
    subprocess.run(["sh", "-c", f"{KEPT[name]}\n{WORK}"], cwd=path, capture_output=True, check=True)
    left = files(path)
    with pytest.raises(SessionrunError) as caught:
        release(replace(request, place=place), project.folder())
    assert "\n" not in str(caught.value)
    assert files(path) == left and {"a.txt", "n"} <= set(left)


def test_objects_that_another_task_prunes_meanwhile_are_made_again(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``git gc --prune=now`` deletes the files of a commit that is just being made: nothing refers to them yet."""
    real, mark = shutil.which("git"), tmp_path / "pruned"
    wrapper = tmp_path / "bin" / "git"
    wrapper.parent.mkdir()
    wrapper.write_text(
        f'#!/bin/sh\ncase " $* " in *" write-tree "*) if mkdir {mark} 2>/dev/null; then '
        f'env -i PATH="$PATH" {real} -C "$GIT_WORK_TREE" prune --expire=now; fi;; esac\nexec {real} "$@"\n'
    )
    wrapper.chmod(0o755)

    def work(path: Path) -> None:
        subprocess.run(["sh", "-c", WORK], cwd=path, check=True)
        monkeypatch.setenv("PATH", str(wrapper.parent), prepend=os.pathsep)

    place, _ = project.cycle(work)
    assert mark.exists()
    assert (place.kept, place.worktree) == (None, None)
    assert project.show(str(place.commit), "n") == b"n\n"


def find_obeying() -> list[str]:
    """The words before those of a command that let root, too, obey the modes of files."""
    if os.geteuid() != 0:
        return []
    words = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    if shutil.which("setpriv") is None or subprocess.run([*words, "true"], capture_output=True).returncode != 0:
        pytest.skip("root reads all files, and setpriv cannot change that here")
    return words


CLOSED = """
echo e > e; mkdir d listed; echo z > d/z; echo l > listed/l; echo s > secret; echo changed > sub/b.txt
odd=$(printf 'o\\374'); echo o > "$odd"
chmod 000 d secret sub "$odd"; chmod 444 listed
"""
OPEN = "chmod 700 d listed secret sub o*"


def branches(project: Project) -> list[str]:
    return project.run("for-each-ref", "--format=%(refname)", "refs/heads").split()


def test_what_its_user_cannot_read_keeps_the_worktree(sessionrun: Command, project: Project) -> None:
    """Of a directory that it cannot open git only warns; and a file in it seems to be deleted."""
    plan = sessionrun.cwd / "plan.json"
    plan.write_text(json.dumps([{"id": "t", "prompt": CLOSED}]))
    words = ("-q", "--sync", "--worktree", "--agent", "shell", "--results-dir", str(sessionrun.results), str(plan))
    argv = [*find_obeying(), *sessionrun.argv, *words]
    names = sorted([*project.run("ls-files").split(), "e"])
    subprocess.run(argv, cwd=project.top, env=os.environ, check=True, capture_output=True)
    (task,) = sessionrun.load("status", "last")["tasks"]
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

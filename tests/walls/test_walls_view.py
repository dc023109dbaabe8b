"""What leaves the git directory of a walled task: PREPARE, what the task does to what it owns, and RELEASE."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from calls import needs_calls
from stages import make_program
from test_workspaces import Project
from test_workspaces_killed import Bench
from walled import Walled, make_walled, need_walls

from sessionrun.client.findings import Leftover
from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import Place
from sessionrun.store.session import WALLS_SUFFIX
from sessionrun.walls.argv import OWN_GIT
from sessionrun.worktrees.clean import Claimed, clean_claimed
from sessionrun.worktrees.release import park_work, release, settle
from sessionrun.worktrees.request import Claim, WorkspaceRequest

pytestmark = pytest.mark.slow


class WalledProject(Project):
    """A repository whose tasks have walls; what happens inside of a task is done by its git there."""

    @property
    def walls(self) -> Path:
        return self.root / f"job{WALLS_SUFFIX}"  # beside the folders of its jobs, as in a session

    @property
    def view(self) -> Path:
        return self.walls / OWN_GIT

    def begin(self, **changes: Any) -> tuple[WorkspaceRequest, Place, Path]:
        """PREPARE; the request of a RELEASE, the place and the worktree."""
        request, place = self.prepare(walls=str(self.walls), **changes)
        assert place.worktree is not None
        return replace(request, place=place), place, Path(place.worktree)

    def inside(self, worktree: Path, script: str) -> None:
        """Run a script with git as it is inside: in the task's own git directory."""
        environ = {
            **os.environ,
            "GIT_DIR": str(self.view),
            "GIT_WORK_TREE": str(worktree),
            **{f"GIT_{who}_{what}": "n" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
            "V": str(self.view),
        }
        subprocess.run(["sh", "-ec", script], cwd=worktree, env=environ, check=True, capture_output=True)

    def list_branches(self) -> dict[str, str]:
        listed = self.run("for-each-ref", "--format=%(refname:short) %(objectname)", "refs/heads")
        return dict(line.split(" ") for line in listed.splitlines())

    def outside(self) -> dict[str, bytes]:
        """All files of the repository but objects."""
        git = self.top / ".git"
        files = [path for path in git.rglob("*") if path.is_file() and "objects" not in path.parts]
        return {str(path): path.read_bytes() for path in files}


@pytest.fixture
def project(own_place: Path) -> Iterator[WalledProject]:
    need_walls()
    yield WalledProject(own_place)


COMMIT = "echo 1 > one; git add one; git commit -qm one"


@pytest.mark.parametrize("before", ["nothing", "its work was parked", "the worktree was deleted"])
def test_commits_come_out_and_the_view_goes_with_the_worktree(project: WalledProject, before: str) -> None:
    request, _, worktree = project.begin()
    project.inside(worktree, COMMIT)
    (worktree / "two").write_text("2")
    assert project.list_branches().keys() == {"main", "main-task-t"}
    parked = None
    if before == "its work was parked":
        parked = park_work(request, project.folder()).commit
    elif before == "the worktree was deleted":
        shutil.rmtree(worktree)
    place = release(request, project.folder())
    assert place.worktree is None and not project.view.exists()
    assert (place.remark is None) == ("deleted" not in before), "what was not committed there is on no branch"
    assert project.run("worktree", "list").count("\n") == 0
    assert place.commit == project.list_branches()["main-task-t"] and place.commit == (parked or place.commit)
    assert project.files(place.commit) >= ({"one"} if "deleted" in before else {"one", "two"})
    assert "one" in project.run("log", "--format=%s", place.commit).split()


@pytest.fixture
def bench(project: WalledProject, say: Callable[[str], None]) -> Bench:
    """Its jobs are killed, and begin again."""
    bench = Bench(project, say)
    bench.request = replace(bench.request, walls=str(project.walls))
    return bench


@needs_calls
def test_prepare_is_killed(project: WalledProject, bench: Bench) -> None:
    """The task can commit, and the commit comes out."""

    def examine(place: Place) -> None:
        project.inside(Path(place.worktree or ""), COMMIT)
        done = release(replace(bench.request, place=place), bench.make_folder("a1-5-release"))
        assert done.branch is not None and "one" in project.files(done.branch)

    bench.sweep("prepare", lambda: bench.request, examine)


@needs_calls
def test_release_is_killed(project: WalledProject, bench: Bench) -> None:
    """The commit came out once, and worktree and view are gone."""

    def begin() -> WorkspaceRequest:
        request = bench.prepare("true")
        assert request.place is not None
        project.inside(Path(request.place.worktree or ""), COMMIT)
        return request

    def examine(place: Place) -> None:
        assert not any(path.exists() for path in (Path(place.worktree or "/none"), project.view))
        assert project.run("log", "--format=%s", f"main..{place.branch}").split() == ["one"]

    bench.sweep("release", begin, examine)


def test_who_goes_on_in_a_kept_worktree_loses_nothing_to_a_later_clean(project: WalledProject) -> None:
    request, _, worktree = project.begin(keep="always")
    project.inside(worktree, COMMIT)
    assert release(request, project.folder()).kept == "worktrees are kept"
    project.run("commit", "-q", "--allow-empty", "-m", "mine", cwd=worktree)
    mine = project.run("rev-parse", "main-task-t").strip()
    place = release(replace(request, repository=project.repository("never")), project.folder())
    assert place.worktree is None and place.commit == mine


def test_a_branch_that_moved_outside_and_inside_is_left_and_said(project: WalledProject) -> None:
    request, _, worktree = project.begin()
    project.inside(worktree, COMMIT)
    project.run("commit", "-q", "--allow-empty", "-m", "mine", cwd=worktree)
    _keep(project, request, "refs/heads/main-task-t was moved from outside while the task ran")


def _keep(project: WalledProject, request: WorkspaceRequest, says: str) -> Place:
    """RELEASE of a task whose commits cannot come out: the worktree stays, and its files are on a branch apart."""
    assert request.place is not None and request.place.worktree is not None
    before, branches = project.outside(), project.list_branches()
    place = release(request, project.folder())
    assert place.kept is not None and place.kept.startswith(says) and "\n" not in place.kept, place.kept
    assert place.kept.endswith(f"; its commits stay in {project.view}")
    assert place.rescue == "main-task-t-rescue" and "one" in project.files(place.rescue)
    assert place.commit == project.list_branches()[place.rescue] and place.changed
    assert project.list_branches() == {**branches, place.rescue: place.commit}
    after = project.outside()
    assert {name: after[name] for name in before} == before, "nothing else has changed"
    packs = list((project.top / ".git" / "objects" / "pack").glob("*.idx"))
    assert len(packs) == 1, "nothing has come in but what lies in the worktree"
    assert Path(request.place.worktree, "one").exists() and project.view.is_dir()
    again = release(request, project.folder())
    assert again.kept is not None and again.kept.startswith(says), again.kept
    assert replace(again, kept=place.kept) == place, (
        "done again after a crash; which line git says first is chance"
    )
    return place


def _flip(view: Path) -> None:
    """A byte in each object of the task's own is another one."""
    for path in (view / "objects").glob("??/*"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0x55
        path.chmod(0o600)
        path.write_bytes(content)


COMMIT_TREE = 'git update-ref HEAD $(git commit-tree -m x -p HEAD $(printf "LINE\\n" | git mktree))'
"""A commit of a tree that no `git add` would make."""

CANNOT = "its commits cannot be read: "
GONE = "HEAD leads to a commit that is not there"
TREE = COMMIT_TREE.replace("LINE", "040000 tree $(git rev-parse HEAD^{tree})\\tNAME")
MODULES = "printf '[submodule \"NAME\"]\\npath = x\\nurl = URL\\n' > m; " + COMMIT_TREE.replace(
    "LINE", "100644 blob $(git hash-object -w m)\\t.gitmodules"
)
OWN_REF = "$V/refs/heads/main-task-t"

HOSTILE: dict[str, tuple[str, str]] = {
    "objects gone": ("rm -rf $V/objects/??", GONE),
    "objects a link": ("rm -rf $V/objects; ln -s / $V/objects", ""),
    "a ref of rubbish": (f"echo rubbish > {OWN_REF}", GONE),
    "a ref is a FIFO": (f"rm {OWN_REF}; mkfifo {OWN_REF}", "refs/heads/main-task-t is no regular file"),
    "a ref is a link": (f"ln -sf /etc/passwd {OWN_REF}", "refs/heads/main-task-t is no regular file"),
    "packed refs are a FIFO": ("rm -f $V/packed-refs; mkfifo $V/packed-refs", "packed-refs is no regular file"),
    "HEAD is a link": ("ln -sf /etc/passwd $GIT_DIR/HEAD", "HEAD is no regular file"),
    "submodules a link": ("ln -s / $V/modules", "modules is no regular file"),
    "nothing": ("rm -rf $V/*", ""),
    "books are rubbish": ("echo x > $GIT_DIR/HEAD; rm -rf $V/refs", ""),
    "a folder .GIT": (TREE.replace("NAME", ".GIT"), "error: object "),
    "a folder .git": (TREE.replace("NAME", ".git"), "error: object "),
    "modules that are elsewhere": (MODULES.replace("NAME", "../../x").replace("URL", "u"), "error: object "),
    "modules that are commands": (MODULES.replace("NAME", "x").replace("URL", "-u./payload"), "error: object "),
    "a blob is missing": (
        "echo 2 > two; git add two; git commit -qm two; rm two $V/objects/??/$(git rev-parse :two | cut -c3-)",
        "",
    ),
}


@pytest.mark.parametrize("name", [*HOSTILE, "a flipped byte"])
def test_a_view_that_cannot_be_read_is_refused_in_one_line(project: WalledProject, name: str) -> None:
    request, _, worktree = project.begin()
    project.inside(worktree, COMMIT)
    script, says = HOSTILE.get(name, ("true", ""))
    project.inside(worktree, script)
    if name == "a flipped byte":
        _flip(project.view)
    _keep(project, request, f"{CANNOT}{says}")


PLANTED: dict[str, str] = {
    "monitor": "git config core.fsmonitor $X; git config core.hooksPath $H; git config diff.external $X",
    "filter": "git config filter.e.clean $X; mkdir -p $V/info; echo '* filter=e' > $V/info/attributes",
    "settings": "echo '[' > $V/config",
    "settings are a FIFO": "rm $V/config; mkfifo $V/config",
    "settings are a link": "rm $V/config; ln -s /etc/passwd $V/config",
    "include": "mkfifo $V/pipe; git config include.path $V/pipe",
    "alternates": "echo /etc >> $V/objects/info/alternates; git config core.alternateRefsCommand $X",
    "hooks": "mkdir -p $V/hooks; for h in reference-transaction post-index-change post-checkout pre-commit "
    "post-commit; do cp $X $V/hooks/$h; done",
    "packs": "git config uploadpack.packObjectsHook $X; git config core.sshCommand $X",
    "links out": "ln -s /etc out; ln -s ../../../../etc/passwd up; git add -A; git commit -qm links",
    "worktree": "git config core.worktree /; git config core.bare true",
    "index": "rm $V/index; mkfifo $V/index",
    "a merge": "mkfifo $V/MERGE_HEAD",
    "an object": "echo 2 > two; git add two; rm two $V/objects/??/$(git rev-parse :two | cut -c3-)",
    "replace": "mkdir -p $V/refs/replace; echo $(git rev-parse HEAD) > $V/refs/replace/$(git rev-parse HEAD~)",
    "attributes": "ln -sf $X $V/user-attributes",
    "scratch": "mkdir $V/scratch",
    "fetch": 'git config extensions.partialClone e; git config remote.e.url "ext::sh $X"',
}


def test_nothing_that_a_task_plants_in_its_view_runs_outside_or_costs_its_work(project: WalledProject) -> None:
    program = make_program(project.root / "program", f"echo ran >> {project.root}/ran\ncat")
    text = program.read_text()
    for name, script in PLANTED.items():
        shutil.rmtree(project.walls, ignore_errors=True)
        request, _, worktree = project.begin(task=name.replace(" ", "-"))
        project.inside(worktree, f"{COMMIT}; X={program}; H={project.root}; {script}")
        (project.root / "ran").unlink(missing_ok=True)  # the task's own git may run it
        place = release(request, project.folder())
        assert program.read_text() == text, name  # nothing of a user's is written through a link
        assert place.kept is None and place.commit is not None, (name, place)
        assert "one" in project.files(place.commit), name
        assert not (project.root / "ran").exists(), name


FILTERS = {
    "a module": "python3 -m nb",
    "env": "env -u X python3 -m nb",
    "sh": "sh -c ./nb.sh",
    "make": "make -s nb",
    "npx": "npx --no-install nb",
}
"""Filters of a user that run what lies in the worktree."""


@pytest.mark.parametrize("name", FILTERS)
def test_a_program_that_is_planted_for_a_filter_never_runs_outside(project: WalledProject, name: str) -> None:
    """It does inside: at the checkout, where another task may have planted it, and when the work is committed."""
    command, ran = FILTERS[name], project.root / "ran"
    if shutil.which(command.split()[0]) is None:
        pytest.skip(f"no {command.split()[0]} here")
    script = f"#!/bin/sh\necho ran > {ran}\ntr a-z A-Z\n"
    module = f"import sys, pathlib\ntry: pathlib.Path({str(ran)!r}).touch()\nexcept OSError: pass\n"
    planted = {
        "nb.py": f"{module}sys.stdout.write(sys.stdin.read().upper())\n",
        "nb.sh": script,
        "node_modules/.bin/nb": script,
        "package.json": "{}",
        "Makefile": "nb:\n\t@./nb.sh\n",
        ".gitattributes": "*.nb filter=nb\n",
        "z.nb": "base\n",
    }
    for path, content in planted.items():
        (project.top / path).parent.mkdir(parents=True, exist_ok=True)
        (project.top / path).write_text(content)
        (project.top / path).chmod(0o755)
    project.run("add", "-Af")
    project.run("commit", "-qm", "planted")
    for kind in ("clean", "smudge"):
        project.run("config", f"filter.nb.{kind}", command)
    project.run("config", "filter.nb.required", "true")
    request, place, worktree = project.begin(keep="always")
    assert (worktree / "z.nb").read_text() == "BASE\n" and not ran.exists(), "at the checkout"
    (worktree / "b.nb").write_text("set up\n")
    place = settle(request, project.folder())
    assert place.setup_commit is not None and project.show(place.setup_commit, "b.nb") == b"SET UP\n"
    project.inside(worktree, "echo work > c.nb")
    request = replace(request, place=place)
    parked = park_work(request, project.folder())
    (worktree / "d.nb").write_text("end\n")
    released = release(request, project.folder())
    assert released.commit is not None and released.kept == "worktrees are kept", released
    assert project.show(parked.commit or "", "c.nb") == b"WORK\n"
    assert project.show(released.commit, "d.nb") == b"END\n"
    assert not ran.exists()
    assert project.run("rev-parse", "--path-format=absolute", "--git-common-dir", cwd=worktree) == str(
        project.top / ".git"
    )
    assert released.commit == project.run("rev-parse", "HEAD", cwd=worktree)


def test_a_filter_that_never_ends_costs_no_file(project: WalledProject) -> None:
    project.run("config", "filter.slow.clean", "sh slow")
    request, _, worktree = project.begin(limit_s=6.0)
    project.inside(worktree, COMMIT)
    (worktree / ".gitattributes").write_text("two filter=slow\n")
    (worktree / "slow").write_text("sleep 60\n")
    (worktree / "two").write_text("2")
    with pytest.raises(SessionrunError, match="not done after 3 s"):
        release(request, project.folder())
    assert {"one", "two"} <= set(os.listdir(worktree)) and project.view.is_dir()
    (worktree / "slow").write_text("cat\n")
    place = release(request, project.folder())
    assert place.kept is None and {"one", "two"} <= project.files("main-task-t")


def test_a_repository_inside_is_named_and_kept(project: WalledProject) -> None:
    request, _, worktree = project.begin()
    project.inside(
        worktree, f"{COMMIT}; unset GIT_DIR GIT_WORK_TREE; git init -q in; git -C in commit -q --allow-empty -m x"
    )
    place = release(request, project.folder())
    assert place.kept == "in/ is a repository of its own" and "one" in project.files(place.commit or "")


STAGED: dict[str, str] = {
    "a name that is not UTF-8": "echo 1 > $(printf 'caf\\351'); git add -A",
    "a branch of such a name": "git checkout -q -b $(printf 'caf\\351'); echo 1 > one; git add one",
    "a file for a directory": "git rm -rq sub; echo 1 > sub; git add sub",
    "a directory for a file": "git rm -q a.txt; mkdir a.txt; echo 1 > a.txt/one; git add a.txt",
    "a link for a directory": "mkdir new; echo 1 > new/x.log; git add -f new; mv new other; ln -s other new",
}


@pytest.mark.parametrize("name", STAGED)
def test_what_is_staged_and_not_committed_costs_no_commit(project: WalledProject, name: str) -> None:
    request, _, worktree = project.begin()
    project.inside(worktree, f"echo 2 > two; git add two; git commit -qm two; {STAGED[name]}")
    place = release(request, project.folder())
    assert place.kept is None or "HEAD is on" in place.kept, place.kept
    assert place.commit is not None
    assert "two" in project.run("log", "--format=%s", place.commit).split()


def _clean(project: WalledProject, request: WorkspaceRequest, *, dry_run: bool = False) -> list[Leftover]:
    """What `clean` says of the task of a session that was killed, and does."""
    place = request.place
    assert place is not None
    claim = Claim(place.branch or "", place.worktree or "", place.base_commit or "")
    claimed = Claimed.of(request, claim, project.walls.with_name("job-1"), worked=True)
    assert claimed.request.walls == str(project.walls)
    return list(clean_claimed(claimed, dry_run=dry_run))


def test_clean_keeps_what_cannot_come_out_says_so_and_tries_again(project: WalledProject) -> None:
    request, _, worktree = project.begin()
    project.inside(worktree, COMMIT)
    (worktree / "two").write_text("2")
    link = project.view / "refs" / "heads" / "link"
    link.symlink_to("/etc/passwd")
    before = project.outside()
    says = f"its commits cannot be read: refs/heads/link is no regular file; its commits stay in {project.view}"
    expected = [Leftover("worktree", str(worktree), False, says, "s1", str(project.top), "t")]
    assert _clean(project, request, dry_run=True)[0].removed and project.outside() == before, "at most"
    done = replace(expected[0], why=f"{says}; what lies in it is on main-task-t-rescue")
    assert _clean(project, request) == [done] == _clean(project, request)
    assert {"one", "two"} <= project.files("main-task-t-rescue")
    assert project.list_branches()["main-task-t"] == project.list_branches()["main"]
    link.unlink()
    project.inside(worktree, "git stash -qu; echo 3 > three")
    ends = _clean(project, request)
    said = "its work is on its branch; stayed inside of its walls: a stash"
    assert (ends[0].removed, ends[0].why) == (True, said)
    assert {finding.name for finding in ends if not finding.removed} == {"main-task-t", "main-task-t-rescue"}
    assert "three" in project.files("main-task-t") and not worktree.exists()
    assert project.run("log", "-1", "--format=%s", "main-task-t~") == "one"


def test_clean_brings_out_commits_of_a_worktree_that_is_gone(project: WalledProject) -> None:
    request, _, worktree = project.begin()
    project.inside(worktree, COMMIT)
    shutil.rmtree(worktree)
    link = project.view / "refs" / "heads" / "link"
    link.symlink_to("/etc/passwd")
    says = "its commits cannot be read: refs/heads/link is no regular file; git worktree prune gives them up"
    expected = [Leftover("worktree", str(worktree), False, says, "s1", str(project.top), "t")]
    assert _clean(project, request) == expected
    link.unlink()
    assert project.list_branches()["main-task-t"] == project.list_branches()["main"]
    gone, branch = _clean(project, request)
    assert (gone.removed, branch.removed, branch.name) == (True, False, "main-task-t")
    assert "one" in project.files("main-task-t")


# Large files, by a program that does what Git LFS does: it keeps files by their digest.

LFS = """\
#!/bin/sh -e
place() { echo "$1/lfs/objects/$(echo $2 | cut -c1-2)/$(echo $2 | cut -c3-4)"; }
common=$(git rev-parse --path-format=absolute --git-common-dir)
if [ "$1" = clean ]; then
    new=$(mktemp)
    name=$(tee "$new" | sha256sum | cut -c1-64)
    mkdir -p "$(place "$common" $name)"
    printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:%s\\nsize %d\\n' $name $(wc -c < "$new")
    mv "$new" "$(place "$common" $name)/$name"
else
    name=$(sed -n 's/^oid sha256://p')
    for top in "$common" $(sed 's|/objects$||' "$common/objects/info/alternates" 2>/dev/null); do
        cat "$(place "$top" $name)/$name" 2>/dev/null && exit
    done
    exit 1
fi
"""


@pytest.fixture
def site(own_place: Path) -> Iterator[Walled]:
    with make_walled(other=False) as made:
        made.write("bin/git-lfs", LFS).chmod(0o755)
        made.environ["PATH"] = f"{made.root}/bin:{made.environ['PATH']}"
        for name in ("clean", "smudge"):
            made.git("config", f"filter.lfs.{name}", f"git-lfs {name}")
        made.git("config", "filter.lfs.required", "true")
        made.sh("echo '*.bin filter=lfs' > .gitattributes; echo old > old.bin; git add -A; git commit -qm large")
        made.sh("echo new > old.bin; git commit -qam newer")
        yield made


@pytest.mark.parametrize("policy", ["project", "strict"])
def test_large_files_of_commits_come_out_and_those_of_the_repository_are_there(site: Walled, policy: str) -> None:
    script = (
        "set -e; cat old.bin; git checkout -q HEAD~ -- old.bin; cat old.bin; echo mine > my.bin; git add -A; "
        "git commit -qm mine; git show HEAD:my.bin | grep -q oid; echo later > later.bin; "
        f"! touch {site.top}/.git/lfs/objects/planted"
    )
    sandbox = {"policy": policy, "network": "none", "read": [str(site.root / "bin")]}
    # A git-lfs that is installed may have set a filter for all users, which comes before that of the stand-in.
    plan = [{"id": "t", "prompt": script, "sandbox": sandbox, "env": {"GIT_CONFIG_NOSYSTEM": "1"}}]
    task = site.run(plan)["t"]
    assert task["outcome"] == "succeeded" and task["worktree_kept"] is None, task
    assert site.printed(task).split() == ["new", "old"]
    for name, content in (("my", b"mine\n"), ("later", b"later\n")):
        assert hashlib.sha256(content).hexdigest() in site.git("show", f"main-task-t:{name}.bin")
    site.git("checkout", "-q", "main-task-t")
    assert (site.top / "my.bin").read_text() == "mine\n" and (site.top / "later.bin").read_text() == "later\n"

"""Submodules in a worktree: filled out of what the checkout has, and no work in one is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Command
from stages import commit_all, make_program
from test_workspaces import Project
from walled import need_walls

from sessionrun.git.git import Git
from sessionrun.git.private import open_fence
from sessionrun.git.rooms import open_clean_room
from sessionrun.git.submodules import fill_submodules, find_empty, list_borrowed, list_stores
from sessionrun.model.places import Seats
from sessionrun.worktrees.release import release
from sessionrun.worktrees.worktree import prepare

ALLOW = ("-c", "protocol.file.allow=always")


def add_submodule(project: Project, source: str, path: str, top: Path) -> None:
    project.run(*ALLOW, "submodule", "--quiet", "add", str(project.root / source), path, cwd=top)
    commit_all(top, path)


@pytest.fixture
def project(own_place: Path) -> Project:
    """A repository with a submodule that has one, too; the repositories that they came from are gone."""
    project = Project(own_place)
    for name in ("deep", "library"):
        project.shell(f"git init -q -b main {name}; echo {name} > {name}/{name}.txt", project.root)
        commit_all(project.root / name, "one")
    add_submodule(project, "deep", "in/deep", project.root / "library")
    add_submodule(project, "library", "my lib", project.top)
    project.run(*ALLOW, "submodule", "--quiet", "update", "--init", "--recursive")
    for name in ("deep", "library"):
        shutil.rmtree(project.root / name)
    return project


WORK: Mapping[str, tuple[str, str | None]] = {
    "nothing": ("true", None),
    "cleaned": ("git clean -fdxq; git submodule foreach -q git status", None),
    "a file": ("echo new > 'my lib/new'", "submodule my lib has changes of its own"),
    "a file deep inside": (
        "echo new > 'my lib/in/deep/deep.txt'",
        "submodule in/deep has changes of its own (in my lib)",
    ),
    "a commit": (
        "cd 'my lib'; echo new > new; git add new; git commit -qm new; cd ..; git commit -qam new",
        "submodule my lib has commits of its own",
    ),
    "a commit beside": (
        "cd 'my lib'; git switch -qc own; git commit -q --allow-empty -m new; git switch -q --detach HEAD~",
        "submodule my lib has commits of its own",
    ),
    "a clone in its place": (
        "git clone -q . ../clone; rm -rf 'my lib'; mv ../clone 'my lib'",
        "my lib/ is a repository of its own",
    ),
    "a file that git was told to overlook": (
        "cd 'my lib'; git update-index --assume-unchanged library.txt; echo new > library.txt",
        "submodule my lib has changes of its own",
    ),
    "a commit that only a tag has": (
        "cd 'my lib'; git commit -q --allow-empty -m new; git tag own; git switch -q --detach HEAD~",
        "submodule my lib has commits of its own",
    ),
    "a repository in the place of a file": (
        "rm a.txt; git init -q a.txt; cd a.txt; git commit -q --allow-empty -m own",
        "a.txt/ is a repository of its own",
    ),
    "files where it was": (
        "rm -rf 'my lib'; mkdir -p 'my lib/a'; echo new > 'my lib/a/new'",
        "my lib/ is the place of a submodule, and no commit can hold the files in it",
    ),
    "files where one inside of it was": (
        "rm -rf 'my lib'/in/deep/.git",
        "submodule my lib has changes of its own",
    ),
    "it is empty": ("rm -rf 'my lib'; mkdir -p 'my lib/a/b'", None),
    "it goes": ("git rm -qf 'my lib'", None),
}
"""What a task does, and why its worktree is kept."""


@pytest.mark.parametrize("what", WORK)
def test_a_filled_submodule_is_no_work_until_the_task_works_in_it(project: Project, what: str) -> None:
    script, kept = WORK[what]
    settings = (project.top / ".git/config").read_bytes()

    def work(path: Path) -> None:
        assert project.run("status", "--porcelain", cwd=path) == ""
        found = ((path / "my lib" / name).read_text() for name in ("library.txt", "in/deep/deep.txt"))
        assert [*found] == ["library\n", "deep\n"]
        project.shell(script, path)

    place, path = project.cycle(work)
    assert (place.kept, path.exists()) == (kept, kept is not None)
    assert (project.top / ".git/config").read_bytes() == settings
    assert project.run("fsck") == "" and project.run("status", "--porcelain") == ""


def test_nothing_of_the_borrowed_repository_counts_but_its_objects(project: Project) -> None:
    ran, module = project.root / "ran", project.top / ".git/modules/my lib"
    program = project.root / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    for key in ("core.fsmonitor", "filter.x.smudge", "filter.x.clean", "core.alternateRefsCommand"):
        project.run("config", "--file", str(module / "config"), key, str(program))
    (module / "info/attributes").write_text("* filter=x\n")
    shutil.copy(program, module / "hooks/post-checkout")
    _, path = project.begin_work()
    assert (path / "my lib/library.txt").read_text() == "library\n" and not ran.exists()


@pytest.mark.parametrize("name", ["../../../lib", "..", ".git", "my lib/.."])
def test_a_name_that_leads_elsewhere_fills_nothing(project: Project, name: str) -> None:
    """The list of submodules is a file of the work."""
    shutil.copytree(project.top / ".git/modules/my lib", project.root / "lib")
    (project.top / ".gitmodules").write_text(f'[submodule "{name}"]\n\tpath = my lib\n\turl = x\n')
    commit_all(project.top, "planted")
    before = sorted(os.listdir(project.root))
    _, path = project.begin_work()
    assert os.listdir(path / "my lib") == [] and find_empty(project.repository()) == []
    assert {*os.listdir(project.root)} - {*before} <= {"repo-worktrees", "jobs-1"}


def test_a_submodule_whose_commit_is_not_there_stays_empty(project: Project, sessionrun: Command) -> None:
    command = Command(project.top, sessionrun.results)
    words = ("--dry-run", "--worktree", "--agent", "shell", "-p", "true")
    sign = "submodules that the checkout lacks"
    assert sign not in command(*words).stderr
    shutil.rmtree(project.top / ".git/modules/my lib/objects")
    assert f"{sign} are empty: my lib; git submodule update --init, now or" in command(*words).stderr
    assert sign not in command(*words, "--setup", "git submodule update --init").stderr
    request, path = project.begin_work()
    assert os.listdir(path / "my lib") == []
    assert release(request, project.folder()).kept is None


def test_a_submodule_without_all_files_of_its_commit_stays_empty(project: Project) -> None:
    """As in a partial clone: the checkout of the task must not fail for it."""
    module = Git(project.top / ".git/modules/my lib")
    blob = module.line("rev-parse", "HEAD:library.txt")
    for pack in (module.directory / "objects/pack").glob("*.pack"):
        content = pack.read_bytes()
        for part in pack.parent.glob(f"{pack.stem}.*"):
            part.unlink()
        module("unpack-objects", "-q", stdin=content)
    (module.directory / "objects" / blob[:2] / blob[2:]).unlink()
    assert find_empty(project.repository()) == ["my lib"]
    request, path = project.begin_work()
    assert os.listdir(path / "my lib") == []
    assert release(request, project.folder()).kept is None


def test_a_submodule_outside_of_a_sparse_checkout_is_not_made(project: Project) -> None:
    (project.top / "seen").mkdir()
    (project.top / "seen/file").touch()
    project.run("mv", "my lib", "seen/lib")
    (project.top / "hidden").mkdir()
    project.run("mv", "seen/lib", "hidden/lib")
    commit_all(project.top, "moved")
    project.run("sparse-checkout", "set", "seen")
    for _ in range(2):  # the second time it is a seat that is taken again
        seats = Seats(str(project.root / "seats"))
        place, path = project.cycle(lambda path: None, seats=seats, seat=1)
        assert place.kept is None and not (path / "hidden").exists() and (path / "seen/file").exists()


def test_a_seat_deletes_nothing_behind_a_link_that_the_task_before_has_left(project: Project) -> None:
    """Git overlooks the link, for a rule of the task, and finds a directory in the place of the submodule."""
    victim = project.root / "outside/victim"
    victim.mkdir(parents=True)
    (victim / "file").touch()
    seats = Seats(str(project.root / "seats"))
    script = f"""
    ln -s {victim.parent} a; echo /a >> .gitignore
    git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),a/victim
    git add .gitignore; git commit -qm planted
    """
    place, _ = project.cycle(lambda path: project.shell(script, path), seats=seats, seat=1)
    assert place.kept is None
    _, again = project.begin_work("u", seats=seats, seat=1)
    assert (victim / "file").exists() and (again / "my lib/library.txt").exists()


def test_a_path_into_the_repository_is_none_of_a_submodule(project: Project) -> None:
    (project.top / ".gitmodules").write_text('[submodule "my lib"]\n\tpath = .git\n\turl = x\n')
    git = Git(project.top)
    blob, head = git.line("hash-object", "-w", ".gitmodules"), git.line("rev-parse", "HEAD:my lib")
    entries = f"160000 commit {head}\t.git\n100644 blob {blob}\t.gitmodules\n"
    tree = git("mktree", stdin=entries.encode()).decode().strip()
    git("update-ref", "HEAD", git.line("commit-tree", tree, "-m", "planted"))
    fill_submodules(git, [project.top / ".git"])
    assert git.commit_of("HEAD") is not None


def test_walls_show_no_folder_to_which_a_link_in_the_list_of_submodules_leads(project: Project) -> None:
    """What is shown last is covered by no mask, and a task without walls can write there."""
    secret, modules = project.root / "secret", project.top / ".git/modules"
    secret.mkdir()
    (modules / "planted").mkdir()
    (modules / "planted/HEAD").touch()
    (modules / "planted/objects").symlink_to(secret)
    with (modules / "my lib/objects/info/alternates").open("a") as stream:
        stream.write(f"{secret}\n")
    repository = project.repository()
    own = {str(modules / name / "objects") for name in ("my lib", "my lib/modules/in/deep")}
    assert {*list_stores(repository)} == own
    assert [*list_borrowed(repository)] == [str(secret)]


def test_a_linked_checkout_has_submodules_of_its_own(project: Project) -> None:
    project.run("worktree", "add", "-q", "../linked", "-b", "linked")
    books = project.top / ".git/worktrees/linked"
    os.rename(project.top / ".git/modules", books / "modules")
    assert find_empty(project.repository()) == ["my lib"]
    project.top = project.root / "linked"
    assert find_empty(project.repository()) == []
    assert (project.begin_work()[1] / "my lib/in/deep/deep.txt").read_text() == "deep\n"


def test_a_start_that_was_killed_while_it_filled_is_done_again(project: Project) -> None:
    request, folder = project.prepare()[0], project.root / "jobs-1/a1-1-prepare"
    path = project.root / "repo-worktrees/main-task-t"
    (path / "my lib/library.txt").unlink()
    (path / "my lib/.git/index").unlink()
    (path / "my lib/.git/index.lock").touch()
    place = prepare(request, folder)
    assert project.run("status", "--porcelain", cwd=path) == "" and (path / "my lib/library.txt").is_file()
    assert release(replace(request, place=place), project.folder()).kept is None


def test_a_kept_worktree_has_no_settings_of_a_walled_task(project: Project) -> None:
    """A person's git looks into submodules, and would run what they name."""
    need_walls()
    request, path = project.begin_work(walls=str(project.root / "walls"))
    git_dir, ran = path / "my lib/.git", project.root / "ran"
    program = make_program(path / "program", f"touch {ran}")
    for place in (git_dir, path / "my lib/in/deep/.git"):
        project.run("config", "--file", str(place / "config"), "core.fsmonitor", str(program))
        make_program(place / "hooks/post-checkout", f"touch {ran}")
    (git_dir / "elsewhere").mkdir()
    shutil.copy(git_dir / "config", git_dir / "elsewhere/config")
    (git_dir / "commondir").write_text("elsewhere\n")
    (path / "my lib/new").write_text("new\n")
    assert (release(request, project.folder()).kept or "").startswith("submodule my lib has ")
    assert project.run("status", "--porcelain", cwd=path) == 'M "my lib"\n?? program'
    assert not ran.exists()


def test_rooms_of_proofs_and_gates_have_them_too(project: Project) -> None:
    repository = project.repository()
    with (
        open_fence(repository, project.folder()) as fence,
        open_clean_room(fence, "s1/t", repository.base_commit, project.top / ".git/objects") as room,
    ):
        assert (room / "my lib/in/deep/deep.txt").read_text() == "deep\n"
        assert project.run("status", "--porcelain", cwd=room) == ""

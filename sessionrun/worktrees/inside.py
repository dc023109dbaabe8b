"""Repositories inside a worktree: submodules and clones, whose work no commit of the worktree can hold.

A submodule's own repository lies in the submodule, or in the worktree's administrative directory, and goes with
it; a clone that was added to the index looks unchanged to git whatever was committed in it.  Each has settings of
its own, which a task can write: our git reads them with the settings of the session instead.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sessionrun.git.git import Git, GitError
from sessionrun.git.private import furnish
from sessionrun.git.rooms import MARK, is_behind_link, list_modules
from sessionrun.store.files import is_folder
from sessionrun.walls.argv import OWN_PLACE
from sessionrun.worktrees import registration

if TYPE_CHECKING:
    from sessionrun.worktrees.site import Site


def find_repositories(site: Site, gitlinks: Sequence[str]) -> Iterator[str]:
    """A line for each repository inside the worktree whose work would be lost with the worktree.

    At the paths `gitlinks` the index holds a commit of another repository.
    """
    modules, top = site.git.admin / "modules", site.git.directory
    for name in gitlinks:
        if (top / name / ".git").is_dir() and _find_git_dir(top / name, modules) is None:
            yield f"{name}/ is a repository of its own"
        elif os.path.lexists(top / name / ".git"):
            if (problem := _find_change(site, site.git, name, modules)) is not None:
                yield problem
        elif _has_files(site, name):
            yield f"{name}/ is the place of a submodule, and no commit can hold the files in it"
    for module in list_modules(site.git.admin):
        if _has_own_commits(site, module):
            yield f"submodule {module.relative_to(modules)} has commits of its own"


def _find_change(site: Site, outer: Git, name: str, modules: Path) -> str | None:
    """A line if a submodule, or one inside of it, has another commit checked out, or changes; else None."""
    changed = f"submodule {name} has changes of its own"
    wanted = outer.line("ls-files", "--stage", "-z", "--", f":(literal){name}").split(" ")[1:2]
    git_dir = _find_git_dir(outer.directory / name, modules)
    if git_dir is None:
        return changed
    if not git_dir.is_relative_to(modules) and _has_own_commits(site, git_dir):
        return f"submodule {name} has commits of its own"
    try:
        with _open_repository(site, git_dir, outer.directory / name) as git:
            changes = git("status", "--porcelain", "-z", "--untracked-files=normal", "--ignore-submodules=all")
            if changes or [git.commit_of("HEAD")] != wanted:
                return changed
            inner = [entry.partition("\t") for entry in git.names("ls-files", "-v", "--stage", "-z")]
            hidden = [path for tag, _, path in inner if tag[0].islower() or tag[0] == "S"]
            if any(os.path.lexists(git.directory / path) for path in hidden):  # git overlooks changes in these
                return changed
            for path in (path for tag, _, path in inner if tag[2:].startswith("160000")):
                place = git.directory / path
                if os.path.lexists(place / ".git"):
                    if (problem := _find_change(site, git, path, modules)) is not None:
                        return f"{problem} (in {name})"
                elif os.path.lexists(place) and (not is_folder(place) or os.listdir(place)):
                    return changed
    except (GitError, OSError):
        return changed  # it cannot be read, so nothing shows that it is empty
    return None


def _has_files(site: Site, name: str) -> bool:
    """Whether files of the task lie in a submodule that stayed empty: git overlooks them.

    One that SETUP has filled is not looked at: it holds files that are older than the mark.
    """
    top, closed = site.git.directory, list[OSError]()
    if not is_folder(top / name) or is_behind_link(top, name):  # a link leads to what is not in the worktree
        return False
    begun_at, has_any = registration.read_begin(site.outer), False
    for folder, folders, files in os.walk(top / name, onerror=closed.append):
        links = [entry for entry in folders if os.path.islink(os.path.join(folder, entry))]
        for path in (Path(folder, entry) for entry in (*files, *links)):
            if not site.brought.has(str(path.relative_to(top)), path):
                has_any = True
                if path.lstat().st_ctime < begun_at:
                    return False
    return has_any or bool(closed)  # nothing shows that a closed directory is empty


def _find_git_dir(path: Path, modules: Path) -> Path | None:
    """The repository of the submodule at `path`, if we made it there, or git in the administrative directory."""
    if is_folder(path / ".git"):
        return path / ".git" if os.path.lexists(path / ".git" / MARK) else None
    named = registration.read_link(path)
    if named is None:
        return None
    if named.is_relative_to(OWN_PLACE):  # as a walled task names it
        named = modules.parent / named.relative_to(OWN_PLACE)
    git_dir = Path(os.path.realpath(named))
    return git_dir if git_dir.is_relative_to(os.path.realpath(modules)) and (git_dir / "HEAD").is_file() else None


@contextmanager
def _open_repository(site: Site, git_dir: Path, top: Path) -> Iterator[Git]:
    """Git in a repository inside a worktree, with the settings of the session."""
    folder = site.fence.common if site.own is None else site.folder
    with tempfile.TemporaryDirectory(prefix="inner-", dir=folder, ignore_cleanup_errors=True) as made:
        furnish(Path(made), git_dir, site.fence.settings)
        yield replace(site.git, directory=top, common=Path(made), git_dir=Path(made), index=None)


def _has_own_commits(site: Site, repository: Path) -> bool:
    """Whether the repository has a commit that its origin, as of the last fetch, lacks."""
    # tags of another repository may have been fetched, unless we made this one, which has none
    tips = ("--all",) if os.path.lexists(repository / MARK) else ("--branches", "--glob=refs/stash")
    words = ("rev-list", "--max-count=1", "HEAD", *tips, "--not", "--remotes", "--")
    try:
        with _open_repository(site, repository, repository) as git:
            return bool(git(*words))
    except (GitError, OSError):
        return True  # it cannot be read, so nothing shows that it has none

"""What a worktree held after a round: kept as a commit, taken back before the next round, or put back in the end.

A round's work is a commit of its own, with HEAD as its parent.  A ref of ours holds it until RELEASE, so that
nothing is lost and no branch shows it.  All can be done again after a crash: the same worktree gives the same
tree, and a worktree that is half set back is set back again.

What no commit can hold (repositories inside, huge files) is never touched; nor is what git ignores.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final, NoReturn

from sessionrun.git.private import open_fence
from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.kinds import DiffStat
from sessionrun.model.places import Place
from sessionrun.store.files import remove_empty, replace_file
from sessionrun.store.jobfiles import NOT_BEGUN, REQUEST, load_record
from sessionrun.worktrees.park import HUGE_BYTES, show_hidden, write_patch, write_worktree
from sessionrun.worktrees.registration import table_lock
from sessionrun.worktrees.request import WorkRequest, WorkspaceRequest
from sessionrun.worktrees.site import Site, open_site

REFS: Final = "refs/sessionrun/"
"""Below it are the refs of rounds: SESSION/TASK/aN-round-N, and aN-replaced for what the best round replaced."""

PATCH: Final = "round.patch"

DONE: Final = "reset-done"
"""In the folder of a round's first WORK job: the worktree was set back; what lies there now is this round's."""


@frozen
class Kept:
    """A round's work, as far as a commit can hold it: that, its tree, the size of its diff."""

    commit: str
    tree: str
    diff_stat: DiffStat


def work_base(place: Place) -> str:
    """The commit at which WORK began: from it the work counts, and to it a hard reset goes back."""
    assert place.work_base is not None
    return place.work_base


def keep_round(request: WorkspaceRequest, folder: Path) -> Kept:
    """Keep what lies in the worktree as the work of this round; its patch comes into the job's folder."""
    with open_site(request, folder) as site:
        return keep_work(site, request.round, folder / PATCH)


def show_changes(request: WorkspaceRequest, kept: Kept, folder: Path) -> str:
    """What a round had changed, as git says it of at most 50 files; '' for nothing."""
    lines = ("--stat=200", "--stat-graph-width=20", "--stat-count=50")  # long paths are whole
    words = ("diff-tree", "-r", *lines, "--no-renames", "--no-ext-diff")
    with open_fence(request.repository, folder, limit_s=request.git_limit_s) as fence:
        return fence.main()(*words, work_base(request.made), kept.tree).decode("utf-8", "replace")


def begin_work(folder: Path) -> NoReturn:
    request = load_record(folder / REQUEST, WorkRequest)
    try:
        take_back(request, folder)
    except (SessionrunError, OSError) as error:
        replace_file(folder / NOT_BEGUN, str(error).encode("utf-8", "replace"), durable=False)
        raise
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and an agent would inherit that
        signal.signal(number, signal.SIG_DFL)
    os.execvp(request.argv[0], request.argv)


def take_back(request: WorkRequest, folder: Path) -> None:
    """Set the worktree back to where WORK began, once in a round; keep what is taken back, if no CHECK did."""
    done = Path(request.first, DONE)
    if os.path.lexists(done):
        return
    workspace = request.workspace
    with open_site(workspace, folder) as site:
        if not is_kept(site, workspace.round):
            keep_work(site, workspace.round, Path(request.before, PATCH))
        base = site.place.taken_up or work_base(site.place)
        set_back(site, base, base)
    replace_file(done, b"", durable=True)


def keep_work(site: Site, name: str, patch: Path) -> Kept:
    """Write the diff of what lies in the worktree to `patch`, then make it a commit that the ref `name` holds."""
    git = site.git
    written = write_worktree(site)
    message = f"Round of task {site.request.task} ({name})\n"
    commit = git.commit_tree(written.tree, [written.head.commit], message)
    stat = write_patch(git, work_base(site.place), written.tree, patch)
    if site.own is not None:
        site.own.hold(commit)
    site.outer("update-ref", name_ref(site.request, name), commit)
    return Kept(commit, written.tree, stat)


def is_kept(site: Site, name: str) -> bool:
    return site.outer.commit_of(name_ref(site.request, name)) is not None


def set_back(site: Site, content: str, head: str) -> None:
    """Make the worktree what the commit `content` holds, on its branch, which is then at the commit `head`."""
    git, branch = site.git, f"refs/heads/{site.place.branch}"
    locks = [git.admin / "index.lock", git.admin / "HEAD.lock"]
    if site.own is None:  # a git directory of a task's own has no table, and a link in it may lead out of walls
        locks.append(table_lock(git.admin))
    for lock in locks:  # of a git that was killed: no process of the task runs any more
        lock.unlink(missing_ok=True)
    git("symbolic-ref", "HEAD", branch)
    show_hidden(git)
    git("reset", "--hard", "--quiet", content)
    _remove_new_files(site)
    for link, target in sorted(site.brought.links.items()):
        path = git.directory / link
        if not os.path.lexists(path):  # what the task put in its place stays if git ignores it
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(target)
    tip = git.commit_of(branch)
    if tip != head and not git.set_ref(branch, head, tip):
        raise SessionrunError(f"{site.place.branch} cannot be moved to {head}: another program holds it")


def put_back(site: Site, best: str) -> str | None:
    """Put the best round's work in the place of what came after it; or say why not, if that would lose something.

    What is replaced stays as a patch, and as a commit until the refs are dropped.
    """
    git = site.git
    if git.commit_of(best) != best:
        return None
    written = write_worktree(site)
    before = git.line("rev-parse", f"{best}^")
    if written.tree == git.line("rev-parse", f"{best}^{{tree}}"):
        if written.head.commit == best:  # a start of this job before came as far as that
            git.set_ref(f"refs/heads/{site.place.branch}", before, best)
        return None
    replaced = Path(site.request.replaced)
    if not is_kept(site, replaced.stem):
        if written.problems:
            return f"the best round's work is not put back: {'; '.join(written.problems[:5])}"
        keep_work(site, replaced.stem, replaced)
    set_back(site, best, before)
    return None


def name_ref(request: WorkspaceRequest, name: str = "") -> str:
    """The ref of a round, or how all those of a task begin."""
    return f"{REFS}{request.session_id}/{request.task}/{name}"


def _remove_new_files(site: Site) -> None:
    """Remove what git neither tracks nor ignores, and the directories that are empty then."""
    top = site.git.directory
    for name in site.git.names("ls-files", "-z", "--others", "--exclude-standard"):
        path = top / name
        if name.endswith("/") or site.brought.has(name, path) or not os.path.lexists(path):
            continue
        if not path.is_symlink() and path.stat().st_size > HUGE_BYTES:
            continue
        path.unlink()
        remove_empty(path.parent, top)

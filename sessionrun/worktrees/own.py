"""The git directory of a walled task's own: how it is made, how our git works in it, how work leaves it.

A walled task has a worktree as any other, which the user's git knows.  Inside of its walls another file lies over
the `.git` of that worktree and leads to a git directory that belongs to the task: it may write anything there.  Of
the repository it sees objects alone, which are borrowed.

So our git works in the task's git directory inside of walls as well, with the settings of the launch: a filter of
the user may run a program that the task has planted, at the checkout (the base may be another task's work) and
when the work is committed.  Outside no git reads, hashes or writes a file of the worktree.  These walls are the
narrowest that there are, whatever the task's are: no network, no home directory, nothing of the session.

Work leaves as one pack, which git inside writes to a file of ours.  A quarantine outside borrows the objects of
the repository; there git checks each object of the pack, and walks to see that all are there.  Then the pack is
moved in, then the branch.  (A `git fetch` needs a repository with refs of ours inside, and a server of it.)
"""

from __future__ import annotations

import os
import shlex
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.git.clone import list_alternates, list_tags, make_repository, take_large_files
from sessionrun.git.git import Git, GitError
from sessionrun.git.private import Fence, furnish, is_promise
from sessionrun.git.repository import read_author
from sessionrun.git.rooms import fill_submodules, find_places, list_borrowed, list_stores
from sessionrun.model.asked import Sandbox
from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.places import WORKSPACE_LIMIT_S, GitSettings, Place
from sessionrun.store.files import make_directories, replace_file
from sessionrun.store.jobfiles import load_record_if_any, load_usable, write_record
from sessionrun.store.trees import remove_tree
from sessionrun.walls.argv import GITFILE, OWN_GIT, OWN_PLACE, TMP_FOLDER, clear_ways
from sessionrun.walls.inside import Inside
from sessionrun.walls.programs import find_folders, make_walls
from sessionrun.worktrees.registration import bring_settings, find_lost_admins, need_admin, trash_path
from sessionrun.worktrees.request import WorkspaceRequest

HOME: Final = "home.json"
"""In the task's folder of walls: a `Home`."""

QUARANTINE: Final = "sessionrun-in-"
"""In the administrative directory of a worktree: how the name of a quarantine begins."""

_MOVED: Final = "{} was moved from outside while the task ran"
_OPENED: Final = ("HEAD", "packed-refs", "shallow", "refs", "logs", "objects", "objects/info", "modules")
_MANY: Final = ("objects", "modules")
"""What of a git directory git, or we, open by its name; an index is copied first.  In these there are too many."""


class CannotLeave(SessionrunError):
    """Work of a walled task cannot come out of its git directory; that and the worktree stay as they are."""


@frozen
class Home:
    """What is outside of a task's walls: what stays inside, in one line (`left`), and a commit.

    Its branch was at `commit`, inside and outside, when the git directory was made or work left it last.
    """

    commit: str
    left: str = ""


@frozen
class Own:
    """A task's git directory: `git` works in it, `outer` in the books of its worktree outside, never on files."""

    fence: Fence
    request: WorkspaceRequest
    git: Git
    outer: Git
    folder: Path

    @property
    def name(self) -> str:
        return f"refs/heads/{self.request.made.branch}"

    @property
    def refs(self) -> Git:
        """Git for the refs there, without its HEAD: a lock that the task has left on that does not matter."""
        return replace(self.git, git_dir=self.git.common)

    @property
    def scratch(self) -> Path:
        """Where our git has files of ours inside: a private index."""
        assert self.git.common is not None
        return self.git.common / "scratch"

    def follow(self) -> None:
        """A person went on in the worktree outside, and the task did not inside: so it is there as well."""
        tip, home = self.outer.commit_of(self.name), load_record_if_any(self.folder / HOME, Home)
        if tip is None or home is None or tip == home.commit or self.git.commit_of(self.name) != home.commit:
            return
        self.refs("update-ref", self.name, tip, home.commit)
        self.git("read-tree", "HEAD")
        write_record(self.folder / HOME, replace(home, commit=tip))

    def publish(self, *commits: str) -> None:
        """Let the repository have these commits, and the task's branch be where it is inside.

        Outside it only moves if the task has moved it inside since the last time; done again this changes nothing.

        Raises:
            CannotLeave: they cannot be read or checked, or somebody outside has moved the branch.
        """
        own, tip = self.git.commit_of(self.name), self.outer.commit_of(self.name)
        home = load_record_if_any(self.folder / HOME, Home)
        moves = own is not None and own != tip and (home is None or own != home.commit)
        if moves and home is not None and tip not in (None, home.commit):
            raise CannotLeave(_MOVED.format(self.name))
        self.hold(*commits, *((own,) if moves and own else ()))
        if moves and own is not None and not self.outer.set_ref(self.name, own, tip):
            raise CannotLeave(_MOVED.format(self.name))
        write_record(self.folder / HOME, Home(own or tip or commits[0], self._word_left(commits[-1])))

    def hold(self, *commits: str) -> None:
        """Let the repository have these commits, whole and checked, or raise `CannotLeave`; no ref moves."""
        wanted = [commit for commit in dict.fromkeys(commits) if self.outer.commit_of(commit) is None]
        common = Path(self.fence.repository.common_dir)
        if wanted:
            try:
                self._fetch(wanted, common)
            except GitError as error:
                faults = [line for line in error.stderr.split("\n") if line.startswith("error: object ")]
                text = "".join(sign if sign.isprintable() else "?" for sign in [*faults, str(error)][0])
                raise CannotLeave(f"its commits cannot be read: {text}") from None
        take_large_files(self.folder / OWN_GIT, common)

    def _fetch(self, wanted: Sequence[str], common: Path) -> None:
        place = self.request.made
        named = (place.base_commit, place.setup_commit, place.taken_up, self.outer.commit_of(self.name))
        known = [commit for commit in dict.fromkeys(named) if commit is not None]
        words = "".join(f"{word}\n" for word in (*wanted, *(f"^{commit}" for commit in known)))
        with _open_quarantine(self.fence, self.outer, common) as quarantine:
            with open(quarantine.directory / "pack", "w+b") as pack:
                limits = ("--revs", "--thin", "--delta-base-offset")  # what is known is not in it
                self.git("pack-objects", "-q", *limits, "--stdout", stdin=words.encode(), stdout=pack.fileno())
                pack.seek(0)
                quarantine("index-pack", "--stdin", "--fix-thin", "--strict", stdin=pack.fileno())
            quarantine("rev-list", "--objects", "--quiet", *wanted, "--not", *known, "--")
            # a pack without its index, which comes last, is nothing to git: a kill leaves what `git gc` removes
            packs = sorted(
                (quarantine.directory / "objects" / "pack").glob("pack-*"), key=lambda path: path.suffix == ".idx"
            )
            for path in packs:
                os.rename(path, common / "objects" / "pack" / path.name)

    def _word_left(self, commit: str) -> str:
        """What of the task's stays inside, in one line; '' for nothing."""
        words = ("refs/heads", "refs/tags", "refs/stash")
        names = [name for name in self.git.list_refs("--no-merged", commit, *words) if name != self.name]
        parts = ["a stash"] if "refs/stash" in names else []
        for one, many, prefix in (("branch", "branches", "refs/heads/"), ("tag", "tags", "refs/tags/")):
            some = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
            parts += [f"{one if len(some) == 1 else many} {', '.join(some[:5])}"] if some else []
        text = f"stayed inside of its walls: {'; '.join(parts)}" if parts else ""
        return os.fsencode(text).decode("utf-8", "replace")


# --- making and opening one ---


def _make(fence: Fence, request: WorkspaceRequest, path: Path, outer: Git, commit: str) -> Own:
    """Make a task's git directory anew, on its branch at a commit, without an index."""
    walls = Path(request.walls or "")
    make_directories(walls / TMP_FOLDER, 0o700)
    common, own, draft = Path(fence.repository.common_dir), walls / OWN_GIT, walls / f".{OWN_GIT}.new"
    settings = _settings_inside(fence)
    remove_tree(draft)
    make_directories(draft / "info", 0o700)
    (draft / "info" / "exclude").write_text(fence.repository.excludes, encoding="utf-8")
    (draft / "info" / "attributes").write_text(settings.shared_attributes, encoding="utf-8")
    (draft / "user-attributes").write_text(settings.user_attributes, encoding="utf-8")
    bring_settings(draft, fence.settings)
    attributes = ("core.attributesFile", f"{OWN_PLACE}/user-attributes")
    unsigned = (("commit.gpgsign", "false"), ("tag.gpgsign", "false"))  # the keys are not inside
    make_repository(
        draft,
        f"ref: refs/heads/{request.made.branch}",
        (*settings.config, *unsigned, attributes, *read_author(Git(Path(fence.repository.top))).items()),
        of=common,
        refs=os.fsencode(f"{commit} refs/heads/{request.made.branch}\n") + list_tags(fence.main(), commit),
    )
    replace_file(walls / GITFILE, f"gitdir: {OWN_PLACE}\n".encode(), durable=False)
    remove_tree(own)
    write_record(walls / HOME, Home(commit))
    os.rename(draft, own)
    return open_as_is(fence, request, path, outer)


def check_out(fence: Fence, request: WorkspaceRequest, path: Path, before: str | None = None) -> Git:
    """Make a task's git directory, and let git in it write the files; the books outside follow.

    Args:
        before: the commit whose files lie there; None: there are none.
    """
    outer = fence.inside(path, need_admin(fence.repository, path))
    git = _make(fence, request, path, outer, outer.line("rev-parse", "HEAD^{commit}")).git
    if before is not None:
        git.settle_index(before)
    git("read-tree", "--reset", "-u", "HEAD")
    fill_submodules(git, find_places(fence.repository))
    outer("read-tree", "HEAD")
    return git


def open_own(fence: Fence, request: WorkspaceRequest, path: Path, outer: Git) -> Own:
    """The git directory of a walled task; a new one if it has none: an earlier attempt may have left the worktree.

    Raises:
        CannotLeave: it cannot be read.
    """
    own = Path(request.walls or "", OWN_GIT)
    if not own.is_dir():
        return _begin(fence, request, path, outer)
    _check_files(own)
    found = open_as_is(fence, request, path, outer)
    head = found.git.attempt("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if head.returncode != 0:  # it may name a branch that is not there; a branch that is broken is there
        name = os.fsdecode(found.git.attempt("symbolic-ref", "-q", "HEAD").stdout).strip()
        listed = found.git.attempt("for-each-ref", "--format=%(refname)", name) if name else None
        if listed is None or (listed.returncode, listed.stdout, listed.stderr) != (0, b"", b""):
            raise CannotLeave("its commits cannot be read: HEAD leads to a commit that is not there")
    found.follow()
    return found


def open_apart(fence: Fence, request: WorkspaceRequest, path: Path, outer: Git) -> Own:
    """Another git directory at the tip of the task's branch: its own cannot be read, or is not there any more."""
    folder = tempfile.mkdtemp(prefix="apart-", dir=fence.common)
    return _begin(fence, replace(request, walls=folder), path, outer)


def _begin(fence: Fence, request: WorkspaceRequest, path: Path, outer: Git) -> Own:
    tip = outer.commit_of(f"refs/heads/{request.made.branch}") or outer.line("rev-parse", "HEAD^{commit}")
    found = _make(fence, request, path, outer, tip)
    found.git("read-tree", "HEAD")
    return found


def open_as_is(fence: Fence, request: WorkspaceRequest, path: Path | None, outer: Git) -> Own:
    """Git in the git directory of a task, inside of walls; without a `path` it has no worktree."""
    walls = Path(request.walls or "")
    own, common = walls / OWN_GIT, Path(tempfile.mkdtemp(prefix="own-", dir=fence.common))
    settings, scratch = _settings_inside(fence), common / "scratch"
    scratch.mkdir()
    furnish(common, own, replace(settings, config=(*settings.config, ("core.logAllRefUpdates", "false"))))
    (common / "HEAD").write_bytes(b"ref: refs/heads/none\n")
    (common / "info" / "exclude").write_text(fence.repository.excludes, encoding="utf-8")
    stores = filter(os.path.isdir, list_alternates(Path(fence.repository.common_dir)))
    shown = (*stores, *list_borrowed(fence.repository), *_find_programs(settings), str(common))
    built = replace(
        make_walls(Sandbox("strict", "none"), "", shown),
        common_dir=fence.repository.common_dir,
        own=str(walls),
        worktree=None if path is None else str(path),
        # ours has the paths that it has outside
        binds=tuple((str(folder), str(folder)) for folder in (own, scratch)),
        ro_binds=tuple((store, store) for store in list_stores(fence.repository)),
    )
    clear_ways(built)
    limit_s = (request.limit_s or WORKSPACE_LIMIT_S) / 2  # so that what cannot come out can still be parked
    git = Git(path or own, common=common, git_dir=own, limit_s=limit_s, walls=Inside(built, common).run)
    return Own(fence, request, git, outer, walls)


def _settings_inside(fence: Fence) -> GitSettings:
    """The settings of the launch without what names other repositories, and log-ins to them."""
    config = [
        pair
        for pair in fence.settings.config
        if pair[0].startswith(("core.", "filter.", "merge.", "index.", "checkout.", "lfs."))
        or pair[0] == "extensions.objectformat"
        or is_promise(pair[0])
    ]
    config = [pair for pair in config if pair[0] != "core.repositoryformatversion"]
    return replace(fence.settings, config=(("core.repositoryformatversion", "1"), *config))


def _find_programs(settings: GitSettings) -> Iterator[str]:
    """The folders of the programs behind filters; a task can write none of them."""
    import shutil  # it loads five compressors

    for name, command in settings.config:
        if name.startswith("filter.") and name.endswith((".clean", ".smudge", ".process")) and command:
            with suppress(ValueError):
                program = shutil.which(next(iter(shlex.split(command)), ""))
                yield from find_folders(program) if program is not None else ()


def _check_files(own: Path) -> None:
    """Refuse what git would read, and wait for or follow: anything in the place of a file of its own."""
    for top in (own / name for name in _OPENED if os.path.lexists(own / name)):
        inner = (Path(root, name) for root, folders, files in os.walk(top) for name in (*folders, *files))
        for path in (top, *(inner if top.name not in _MANY else ())):
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise CannotLeave(f"its commits cannot be read: {path.relative_to(own)} is no regular file")


@contextmanager
def _open_quarantine(fence: Fence, outer: Git, common: Path) -> Iterator[Git]:
    """Git in a repository that borrows all objects, and has nothing else of the task's."""
    for left in outer.admin.glob(f"{QUARANTINE}*"):  # of an earlier start that was killed
        remove_tree(left)
    kept = ("core.sharedrepository", "extensions.objectformat")
    settings = [pair for pair in fence.settings.config if pair[0] in kept]
    with tempfile.TemporaryDirectory(prefix=QUARANTINE, dir=outer.admin, ignore_cleanup_errors=True) as made:
        make_repository(Path(made), "ref: refs/heads/none", (("core.bare", "true"), *settings), of=common)
        (common / "objects" / "pack").mkdir(exist_ok=True)
        yield Git(Path(made), common=Path(made), git_dir=Path(made), limit_s=outer.limit_s)


# --- leaving it ---


def publish_gone(fence: Fence, request: WorkspaceRequest, path: Path, folder: Path) -> None:
    """Let the commits out of a task whose worktree is gone from `path`, by its books, if these are there.

    Args:
        folder: a directory of ours that stands for the worktree.
    """
    own = Path(request.walls or "", OWN_GIT)
    # an earlier start renames the worktree once all has come out; a kill may have left a part of the books
    is_removed = trash_path(path, request.owner).exists()
    for admin in find_lost_admins(request.repository, path, request.owner):
        if not own.is_dir() or (is_removed and not (admin / "HEAD").exists()):
            continue
        _check_files(own)
        outer = fence.inside(folder, admin)
        found = open_as_is(fence, request, None, outer)
        if (head := found.git.commit_of("HEAD")) is not None:
            found.publish(head)
            if head != outer.commit_of("HEAD"):  # then it is rescued, as a HEAD that no branch has
                outer("update-ref", "--no-deref", "HEAD", head)


def read_left(walls: Path) -> str:
    """In one line what a task has inside that did not come out; '' for nothing."""
    home = load_usable(walls / HOME, Home)
    return home.left if home is not None else ""


def leave_walls(request: WorkspaceRequest, released: Place) -> Place:
    """Git directory and /tmp of a walled task go with its worktree; a remark names what did not come out.

    What cannot be deleted stays, and goes with the session.
    """
    walls = Path(request.walls or "")
    left = read_left(walls)
    for path in (walls / OWN_GIT, *walls.glob(f"{TMP_FOLDER}*")) if released.worktree is None else ():
        with suppress(OSError):
            remove_tree(path)
    return replace(released, remark="; ".join(part for part in (released.remark, left) if part) or None)

"""Git's list of worktrees: when we may change it, whose a worktree is, how it is named, added and removed.

A branch or a directory is ours only if we created it (making it fails if it exists), and a worktree only if its
administrative directory bears our mark.  Names come back: a branch that was merged and deleted is free for the
next session, so a name alone proves nothing.

``git worktree add`` writes several files.  Until our mark stands beside them, the worktree is locked, and the
reason says whose it is: that is the first thing git writes.  So whatever a killed git left is found by it.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Final
from zlib import crc32

from sessionrun.git.git import READER_LIMIT_S, Git, GitError
from sessionrun.model.errors import JobFileError, SessionrunError
from sessionrun.model.places import GitSettings, Repository
from sessionrun.store.files import is_folder, make_directory, read_regular, replace_file
from sessionrun.store.jobfiles import CLAIM, write_record
from sessionrun.store.locks import hold_lock
from sessionrun.store.trees import remove_entry, remove_tree
from sessionrun.worktrees.request import RESCUE_SUFFIX, Claim, WorkspaceRequest, load_claim

LOCK_NAME: Final = "sessionrun.lock"

STALE_LOCK_S: Final = 10.0
"""Git holds the lock of a ref for moments.  A lock of this age (seconds) is from a crash."""

MARK: Final = "sessionrun"
"""File in a worktree's administrative directory: its owner and, on a second line, its branch."""

LOCKED: Final = "locked"
"""File in which git keeps the reason why a worktree is locked."""

_HALF_MADE: Final = "sessionrun makes it for "
"""What the reason begins with while git adds a worktree of ours; then its owner."""

TABLE: Final = "tables.list"
"""Where git keeps all refs, and HEAD, in tables: their list in ``reftable`` (gitrepository-layout(5))."""

_OF_ONE_CHECKOUT: Final = re.compile(rb"(?im)^\s*(bare|worktree)\b")
"""`core.bare` and `core.worktree` are about the checkout that they stand in, and are not copied."""


def register_lock(repository: Repository) -> AbstractContextManager[None]:
    """Let one process at a time add, remove or rename worktrees of a repository."""
    return hold_lock(Path(repository.common_dir) / LOCK_NAME)


NAME_TRIES: Final = 8


def claim_first(claims: Iterable[Claim], folder: Path, make: Callable[[Claim], object]) -> Claim:
    """Make the first of these claims whose names turn out to be free, after it is written to the job's folder."""
    for number, claim in enumerate(claims, 1):
        write_record(folder / CLAIM, claim)
        try:
            make(claim)
            return claim
        except FileExistsError as error:
            if number == NAME_TRIES:
                raise SessionrunError(f"no name is free for {claim.worktree}: {error}") from error
    raise AssertionError("names never end")


def branch_stem(repository: Repository, task: str, wanted: str | None) -> str:
    """The name of a task's branch, if it is free."""
    return (wanted or "{base}-task-" + task).replace("{base}", repository.base_branch)


def free_branches(stem: str, taken: Collection[str]) -> Iterator[tuple[str, str]]:
    """Branches for a task that do not exist yet, and what is added to the stem: a used name gets -2, -3, ..."""
    for number in itertools.count(1):
        suffix = "" if number == 1 else f"-{number}"
        branch = stem + suffix
        if branch not in taken and f"{branch}{RESCUE_SUFFIX}" not in taken:
            yield branch, suffix


def free_names(
    repository: Repository, stem: str, taken: Collection[str], directory: str | None = None
) -> Iterator[tuple[str, str]]:
    """The same with directories, which are named like the branch where `directory` says no other name."""
    for branch, suffix in free_branches(stem, taken):
        path = os.path.join(repository.worktree_dir, (directory or stem).replace("/", "-") + suffix)
        if not os.path.lexists(path):
            yield branch, path


def register(git: Git, settings: GitSettings, request: WorkspaceRequest, claim: Claim) -> Path:
    """Make the claim's branch, directory and worktree, without files; under the lock.  An error leaves nothing.

    Raises:
        FileExistsError: another directory or branch has the name; that is unchanged.
    """
    make_directory(Path(claim.worktree))
    try:
        return _add(git, settings, request, claim)
    except _NameTaken as error:  # the branch is not ours
        Path(claim.worktree).rmdir()
        raise FileExistsError(*error.args) from None
    except (SessionrunError, OSError):
        take_back(git, request, claim)
        raise


def _add(git: Git, settings: GitSettings, request: WorkspaceRequest, claim: Claim) -> Path:
    common, path = Path(request.repository.common_dir), Path(claim.worktree)
    if not (books := common / "worktrees").is_dir():  # git makes it as well, but not behind the link of a `fence`
        books.mkdir()
        books.chmod(common.stat().st_mode & 0o7777)  # group and others write there as they do in the repository
    # it reads the HEADs of all worktrees, and others must not wait for the lock if one of these is a FIFO
    brief = replace(git, limit_s=min(READER_LIMIT_S, git.limit_s or READER_LIMIT_S))
    words = ("worktree", "add", "-q", "--no-checkout", "--lock", "--reason", f"{_HALF_MADE}{request.owner}")
    branch = ("-b", claim.branch, str(path), claim.taken_up or claim.base_commit)
    done = brief.attempt(*words, *((str(path), claim.branch) if _goes_on(git, claim) else branch))
    if done.returncode != 0:
        error = done.stderr.decode("utf-8", "replace")
        _refuse_taken(claim.branch, error)
        if "is a missing but" in error:  # git lists another worktree there, whose directory is gone
            raise FileExistsError(error)
        raise GitError(words, done.returncode, error)
    admin = common / "worktrees" / os.path.basename(os.fsdecode(read_regular(path / ".git").rstrip(b"\n")))
    # git before 2.48 writes the path of the private common directory, which soon goes
    (path / ".git").write_bytes(b"gitdir: " + os.fsencode(admin) + b"\n")
    (admin / "gitdir").write_bytes(os.fsencode(path / ".git") + b"\n")
    bring_settings(admin, settings)
    write_mark(admin, request.owner, claim.branch)
    (admin / LOCKED).unlink()
    return admin


def bring_settings(admin: Path, settings: GitSettings) -> None:
    """Copy what says which files a sparse checkout has: git does so for agents from 2.36 on."""
    for name in ("config.worktree", "info/sparse-checkout"):
        content = _read(Path(settings.git_dir) / name)
        if content and not _OF_ONE_CHECKOUT.search(content):
            (admin / name).parent.mkdir(exist_ok=True)
            (admin / name).write_bytes(content)


def write_mark(admin: Path, *lines: str) -> None:
    replace_file(admin / MARK, "".join(f"{line}\n" for line in lines).encode(), durable=False, mode=0o644)


def mark_begin(git: Git) -> None:
    """Let the mark of the worktree say that WORK begins now: what lies there is older."""
    with suppress(FileNotFoundError):  # a task without walls may have deleted it
        os.utime(git.admin / MARK, follow_symlinks=False)


def read_begin(git: Git) -> float:
    """When WORK began; PREPARE, if there was no SETUP; 0 if nothing tells."""
    try:
        return (git.admin / MARK).lstat().st_mtime
    except FileNotFoundError:
        return 0.0


def take_back(git: Git, request: WorkspaceRequest, claim: Claim) -> None:
    """Undo the registration of a worktree in which no job worked; the branch goes only if it has not moved."""
    trash = unregister(request.repository, Path(claim.worktree), request.owner)
    drop_branch(git, request.repository, claim)
    with suppress(OSError):  # a seat may hold what another user made: it lies at its trash path until `clean`
        remove_tree(trash)


def drop_branch(git: Git, repository: Repository, claim: Claim) -> None:
    """Delete a claim's branch if it has not moved; one that holds the work of an earlier attempt stays."""
    if claim.taken_up is not None:
        return
    lock = find_branch_lock(repository.common_dir, claim.branch)
    with suppress(OSError):
        # a git of ours was about to make the branch, or to delete it again: it is empty, or has (a part of) the
        # commit's name in it
        if claim.base_commit.encode().startswith(read_regular(lock, 4096).strip()):
            lock.unlink()
    git.attempt("update-ref", "-d", f"refs/heads/{claim.branch}", claim.base_commit)


def find_branch_lock(common_dir: str, branch: str) -> Path:
    """Where the lock of a branch is, if there is one; refs in a table have one lock together."""
    return Path(common_dir, "refs", "heads", f"{branch}.lock")


def unregister(repository: Repository, path: Path, owner: str) -> Path:
    """Rename a worktree to its trash path and remove it from git's books, under the lock; return that path."""
    trash = trash_path(path, owner)
    admin = find_admin(repository, path) if path.exists() else None
    if path.exists():
        remove_tree(trash)
        os.rename(path, trash)
    # one without a mark is of a person's worktree whose disk is away
    marked = [admin for admin in find_lost_admins(repository, path) if load_owner(admin)]
    lost = {*marked, *_find_half_made(repository, owner)}
    for folder in lost | ({admin} if admin is not None else set()):
        _remove_admin(folder)
    drop_empty_books(Path(repository.common_dir))
    return trash


def trash_path(path: Path, owner: str) -> Path:
    """Where a worktree lies while it is being deleted: a name that only its owner has."""
    return path.with_name(f".trash-{owner.partition('/')[0]}-{crc32(os.fsencode(path.name)):08x}")


def find_admin(repository: Repository, path: Path) -> Path | None:
    """The administrative directory of the worktree at `path`, if the worktree belongs to this repository."""
    link = read_link(path)
    inside = link is not None and link.parent == Path(repository.common_dir) / "worktrees"
    return link if link is not None and inside and link.is_dir() else None


def read_link(path: Path) -> Path | None:
    """The git directory that the `.git` of a worktree or a submodule leads to, if it is a file that does."""
    try:
        link = read_regular(path / ".git", 1 << 16)
    except OSError:
        return None
    named = os.path.normpath(path / os.fsdecode(link[8:].rstrip(b"\n")))
    return Path(named) if link.startswith(b"gitdir: ") else None


def need_admin(repository: Repository, path: Path) -> Path:
    """The same of a worktree that was there just now; it is an error if it was removed meanwhile."""
    admin = find_admin(repository, path)
    if admin is None:
        raise SessionrunError(f"{path} was removed while it was made")
    return admin


def find_lost_admins(repository: Repository, path: Path, owner: str | None = None) -> list[Path]:
    """Administrative directories of worktrees that were at `path`; with an `owner` those that bear its mark."""
    found = [admin for top, admin in list_worktrees(repository.common_dir) if top == path]
    return found if owner is None else [admin for admin in found if load_owner(admin) == owner]


def _find_half_made(repository: Repository, owner: str) -> Iterator[Path]:
    """What is left of worktrees in whose making a git of this owner was killed; under the lock.

    The reason is the first file that git writes.  Without the whole of it nothing says whose the directory is: a
    person's ``git worktree add`` may just begin there, and only what has been so for a while is from a killed git.
    """
    mine, long_ago = f"{_HALF_MADE}{owner}".encode(), time.time() - STALE_LOCK_S
    for admin in _admins(repository.common_dir):
        reason = _read(admin / LOCKED).rstrip(b"\n")
        cut_off = {*os.listdir(admin)} <= {LOCKED} and mine.startswith(reason)
        if (reason == mine and not (admin / MARK).exists()) or (cut_off and admin.stat().st_mtime < long_ago):
            yield admin


def read_mark(admin: Path) -> list[str]:
    """The lines of the mark; none without a mark."""
    return os.fsdecode(_read(admin / MARK)).split("\n")[:-1]


def load_owner(admin: Path) -> str | None:
    """Whose worktree it is, or None without a mark."""
    return next(iter(read_mark(admin)), None)


def load_branch(admin: Path) -> str:
    """The branch that a marked worktree was made for; '' without a mark."""
    return next(iter(read_mark(admin)[1:]), "")


def list_worktrees(common_dir: str) -> list[tuple[Path, Path]]:
    """The worktrees in git's books, without the main one: top and administrative directory."""
    found = [(_target(admin), admin) for admin in _admins(common_dir)]
    return [(top, admin) for top, admin in found if top is not None]


def read_heads(repository: Repository, but: Path | None) -> set[str]:
    """Branches that worktrees, except the one at `but`, have checked out; also those that git does not list."""
    admins = [admin for admin in _admins(repository.common_dir) if but is None or _target(admin) != but]
    return {read_head(admin).removeprefix("ref: refs/heads/") for admin in (Path(repository.common_dir), *admins)}


def find_checkout(repository: Repository, branch: str, owner: str) -> Path | None:
    """Where a branch is checked out, in a directory that exists and is not a worktree of this owner."""
    common = Path(repository.common_dir)
    for top, admin in ((common.parent, common), *list_worktrees(repository.common_dir)):
        if top.is_dir() and load_owner(admin) != owner and read_head(admin) == f"ref: refs/heads/{branch}":
            return top
    return None


def read_head(admin: Path) -> str:
    """What HEAD says of an administrative directory, ``ref: NAME`` or a commit; '' if it cannot be read."""
    if find_table(admin) is None:
        return os.fsdecode(_read(admin / "HEAD")).strip()
    git = Git(admin)  # only git can read the table
    try:
        name = git.attempt("symbolic-ref", "-q", "HEAD").stdout
        return f"ref: {os.fsdecode(name).strip()}" if name else git.commit_of("HEAD") or ""
    except GitError:
        if admin.is_dir():
            raise
        return ""  # it was removed meanwhile


def find_table(git_dir: Path) -> Path | None:
    """The list of a git directory's tables of refs; None: each ref is a file, and HEAD, too."""
    path = git_dir / "reftable" / TABLE
    return path if path.exists() else None


def table_lock(git_dir: Path) -> Path:
    """Where the lock of a git directory's tables of refs is, if there is one."""
    return git_dir / "reftable" / f"{TABLE}.lock"


def create_branch(git: Git, claim: Claim) -> None:
    """A new branch at the base commit; if an earlier attempt left one, that, or a new one where it ended.

    Raises:
        FileExistsError: the name is taken, or a lock that a crash left behind is in its way.
    """
    nothing, begin = "0" * len(claim.base_commit), claim.taken_up or claim.base_commit
    if _goes_on(git, claim):
        return
    done = git.attempt("update-ref", "--no-deref", f"refs/heads/{claim.branch}", begin, nothing)
    if done.returncode != 0:
        error = done.stderr.decode("utf-8", "replace")
        _refuse_taken(claim.branch, error)
        raise GitError(("update-ref",), done.returncode, error)


def _goes_on(git: Git, claim: Claim) -> bool:
    """Whether an earlier attempt left the branch, which is taken up."""
    return claim.taken_up is not None and git.commit_of(f"refs/heads/{claim.branch}") is not None


class _NameTaken(FileExistsError):
    """The name of a branch that is to be made is taken, or a lock that a crash left is in its way."""


def _refuse_taken(branch: str, error: str) -> None:
    name = f"refs/heads/{branch}"
    signs = (f"{name}.lock'", f"{name}/", f"{name}': ref", f"'{branch}' already exists")
    if any(sign in error for sign in signs):
        raise _NameTaken(error)


def _read(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError:
        return b""


def _admins(common_dir: str) -> list[Path]:
    try:
        return list(Path(common_dir, "worktrees").iterdir())
    except FileNotFoundError:
        return []


def _target(admin: Path) -> Path | None:
    """The worktree that an administrative directory belongs to."""
    name = os.fsdecode(_read(admin / "gitdir").rstrip(b"\n"))
    return Path(os.path.normpath(admin / name)).parent if name else None


def _remove_admin(admin: Path) -> None:
    """Delete an administrative directory; what says whose it is goes last, so that it is known after a crash."""
    last = (MARK, "gitdir", LOCKED)
    for entry in admin.iterdir():
        if entry.name not in last:
            remove_entry(entry)
    for name in last:
        (admin / name).unlink(missing_ok=True)
    admin.rmdir()


def drop_empty_books(common_dir: Path) -> None:
    """Remove the directory of all worktrees' books if it has no entry, as git does; under the lock."""
    with suppress(OSError):  # it has entries, or is not there
        (common_dir / "worktrees").rmdir()


def find_claims(folder: Path) -> Iterator[tuple[Path, Claim | JobFileError]]:
    """The folders of a task's jobs by attempt, each with its claim, or why that cannot be read."""
    jobs = [(job.name[1:].partition("-")[0], job) for job in sorted(folder.glob("a*-prepare*"))]
    ours = [(int(attempt), job) for attempt, job in jobs if attempt.isdecimal()]
    for _, job in sorted(ours, key=itemgetter(0)):
        try:
            claim: Claim | JobFileError | None = load_claim(job)
        except JobFileError as error:
            claim = error
        if claim is not None:
            yield job, claim


def prepare_jobs(folder: Path, branch: str | None = None) -> list[tuple[Path, Claim]]:
    """The claims of a job's attempt, or of a branch, the oldest first; raises `JobFileError` for a bad one."""
    jobs = sorted(folder.parent.glob(f"{folder.name.partition('-')[0]}-*-prepare*"))
    claims = ((job, load_claim(job)) for job in jobs)
    return [(job, claim) for job, claim in claims if claim is not None and branch in (None, claim.branch)]


def take_back_unused(main: Git, request: WorkspaceRequest, folder: Path, used: str | None) -> None:
    """Take back what other PREPARE jobs of this attempt began, but for the worktree that is `used`."""
    for job, claim in prepare_jobs(folder):
        if job == folder or claim.worktree == used or claim.reused:
            continue
        with register_lock(request.repository):
            drop_unused(main, request, claim)


def drop_unused(main: Git, request: WorkspaceRequest, claim: Claim) -> None:
    """Take back what a claim names and no task worked in; a seat that was not taken yet stays, under the lock."""
    repository, path = request.repository, Path(claim.worktree)
    admin = find_admin(repository, path) if claim.seat is not None else None
    of_another = admin is not None and load_branch(admin) not in ("", claim.branch)  # "": it was half made
    if is_untouched(request, path) and not of_another:
        take_back(main, request, claim)
    elif claim.seat is not None:
        wanted = {load_branch(admin) for admin in _admins(repository.common_dir)}  # a mark comes before its HEAD
        if claim.branch not in wanted | read_heads(repository, None):
            drop_branch(main, repository, claim)


def is_untouched(request: WorkspaceRequest, path: Path) -> bool:
    """Whether a worktree in which no job worked may be taken away: it is ours, or has no owner; under the lock.

    A worktree without a mark is either half made, and empty, or another session's.
    """
    if not path.exists():
        return True
    admin = find_admin(request.repository, path)
    owner = load_owner(admin) if admin else None
    if owner is not None:
        return owner == request.owner
    if not path.is_dir() or is_folder(path / ".git"):
        return False
    return {entry.name for entry in path.iterdir()} <= {".git"}

"""What of a large repository a node fetches by itself: from the remote that its user's repository has, too.

What is small travels with an order (see `replica`); what is not would fill the memory of all on its way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.places import Repository
from sessionrun.model.upstreams import is_path
from sessionrun.store.files import expand_path
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.transport import open_room

RECEIVED: Final = "refs/sessionrun/received/"
"""In a replica: what the work of sessions begins with."""

_DEFAULT: Final = "origin"


@frozen
class Remote:
    """Where a node finds commits: by `commits` for each the name of a branch there that has it."""

    url: str
    commits: Mapping[str, str]


def is_larger(git: Git, limit: int, commits: Sequence[str], known: Iterable[str]) -> bool:
    """Whether the objects of commits, but for those of commits that are known, take more than `limit` bytes.

    Only where the repository has so much is that counted: it takes long.
    """
    counts = dict(line.split(": ") for line in git.line("count-objects", "-v").splitlines())
    if (int(counts["size"]) + int(counts["size-pack"])) * 1024 <= limit:
        return False
    return int(git.line("rev-list", "--disk-usage", "--objects", *commits, "--not", *known)) > limit


def find_remote(git: Git, repository: Repository, commits: Sequence[str]) -> Remote | None:
    """The remote that has most of these commits' history, by what was fetched from it last; None: there is none.

    The URL has no password: nodes have credentials of their own.
    """
    name, url = _find_name(git, repository)
    there = {commit: _find_branch(git, name, commit) for commit in _find_shared(git, name, commits)}
    return Remote(_clean(url, repository.top), there) if there and url else None


def _find_name(git: Git, repository: Repository) -> tuple[str, str]:
    """The name and the URL of a repository's remote; a mirror is of one."""
    if repository.upstream is not None:
        return _DEFAULT, repository.upstream
    names = git.line("remote").splitlines()
    asked = git.attempt("config", "--get", f"branch.{repository.base_branch}.remote").stdout.decode().strip()
    name = next((name for name in (asked, _DEFAULT, *names) if name in names), None)
    return (_DEFAULT, "") if name is None else (name, git.line("remote", "get-url", name))


def _find_shared(git: Git, remote: str, commits: Sequence[str]) -> Iterator[str]:
    """The last commits of a history that the remote has."""
    for commit in commits:
        lines = git.line("rev-list", "--boundary", commit, "--not", f"--remotes={remote}").splitlines()
        if not lines:
            yield commit
        yield from (line[1:] for line in lines if line.startswith("-"))


def _find_branch(git: Git, remote: str, commit: str) -> str:
    """The name of a branch there that has the commit; HEAD is another name for one of them."""
    prefix = f"refs/remotes/{remote}/"
    words = ("for-each-ref", "--count=2", "--format=%(refname)", f"--contains={commit}", prefix)
    names = [name.removeprefix(prefix) for name in git.line(*words).splitlines()]
    return next((name for name in names if name != "HEAD"), "")


def _clean(url: str, top: str) -> str:
    """A URL without a password, or the absolute path of a repository."""
    url = url.removeprefix("file://")
    if is_path(url):
        return expand_path(top, url)
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def fetch_missing(git: Git, replica: Path, remote: Remote, limit_s: float | None) -> None:
    """Fetch what of a remote's commits a replica lacks.  A server may refuse to send a commit by its name.

    Raises:
        SessionrunError: it cannot be fetched, or the remote does not have it any more.
    """
    missing = [commit for commit in remote.commits if git.commit_of(commit) is None]
    if not missing:
        return
    with open_room(replica / ".git", remote.url, limit_s=limit_s) as room:
        try:
            room.fetch(*(f"+{commit}:{RECEIVED}{commit}" for commit in missing))
        except SessionrunError:
            branches = {remote.commits[commit] for commit in missing}
            if "" in branches:
                raise
            room.fetch(*(f"+refs/heads/{branch}:{RECEIVED}{branch}" for branch in sorted(branches)))
    gone = [commit for commit in missing if git.commit_of(commit) is None]
    if gone:
        raise SessionrunError(f"{remote.url} does not have {gone[0]} any more: push it there again")

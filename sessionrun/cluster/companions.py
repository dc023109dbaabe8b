"""What goes to a node beside a task's commits: ignored files that `.worktreeinclude` names, and where links lead.

Of a large repository a node fetches by itself what the remote has that its user's repository has, too.

The files travel as an archive in the folder of the task's PREPARE.  On the node they are kept beside the replica,
one directory for each task, until its worktree is gone: RELEASE has to know what of the worktree is no work.

What is small travels with an order (see `cluster.replica`); what is not would fill the memory of all on its way.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from sessionrun.git.clone import open_room
from sessionrun.git.git import Git
from sessionrun.git.private import open_fence
from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.places import Repository, is_path
from sessionrun.store.files import expand_path, make_directories
from sessionrun.store.trees import remove_tree
from sessionrun.worktrees.site import included_files, place_link

ARCHIVE: Final = "included.tar"
"""File in the folder of a PREPARE on a node."""

MAX_BYTES: Final = 16 * 1024 * 1024
"""Most that the files may have together: they go to a node with each task."""


def list_included(repository: Repository) -> list[str]:
    """The files that `.worktreeinclude` names.  SessionrunError: too big."""
    top = Path(repository.top)
    with open_fence(repository, limit_s=None) as fence:
        names = included_files(fence.main())
    size = sum((top / name).lstat().st_size for name in names)
    if size > MAX_BYTES:
        raise SessionrunError(
            f".worktreeinclude names files of {size} bytes: more than {MAX_BYTES} do not travel to a node"
        )
    return names


def pack_included(repository: Repository) -> bytes | None:
    """An archive of these files; None: there are none."""
    names = list_included(repository)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in names:
            archive.add(Path(repository.top, name), arcname=name, recursive=False)
    return packed.getvalue() if names else None


def unpack_included(archive: Path, folder: Path) -> None:
    """Put the files into a directory, in the place of earlier ones.  SessionrunError: the archive is damaged."""
    remove_tree(folder)
    make_directories(folder, 0o700)
    try:
        with tarfile.open(archive) as packed:
            # as it is: Python from 3.14 on would refuse links that lead out, and a checkout may have such
            packed.extraction_filter = lambda member, folder: member
            for member in packed:
                if os.path.isabs(member.name) or ".." in Path(member.name).parts:
                    raise SessionrunError(f"{member.name!r:.140} is not a path below the worktree")
                if member.isfile() or member.issym():
                    make_directories((folder / member.name).parent, 0o700)
                    packed.extract(member, folder, set_attrs=not member.issym())
    except (tarfile.TarError, ValueError) as error:
        raise SessionrunError(f"{archive.name} is damaged: {error}") from None


def place_links(top: str, links: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Links as a node's request has them, and where those lead that stand inside of the checkout `top`.

    A link that leads out is an absolute path there; ``~/`` stays, for it is the home directory of the node.
    """
    placed, inside = [], {}
    for link in links:
        name, target, leads_out = place_link(top, link)
        away = link if link[:1] == "~" else target
        placed.append(away if leads_out else name)
        if not leads_out:
            inside[name] = target
    return placed, inside


def make_links(top: Path, links: Sequence[str], inside: Mapping[str, str]) -> None:
    """See that the node has what the links lead to; those inside of the checkout lead on from the replica.

    SessionrunError: it lacks something.
    """
    for link in links:
        target = inside.get(link) or os.path.expanduser(link)
        if not os.path.exists(target):
            raise SessionrunError(f"links: there is no {target} on this node ({os.uname().nodename})")
    for name, target in inside.items():
        path = top / name
        if path.is_symlink() and os.readlink(path) != target:
            path.unlink()
        if not path.is_symlink():
            make_directories(path.parent)
            path.symlink_to(target)


RECEIVED: Final = "refs/sessionrun/received/"
"""In a replica: what the work of sessions begins with."""


@frozen
class Remote:
    """Where a node finds commits: their names, and the URL of a repository that has them."""

    url: str
    commits: tuple[str, ...]


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
    name, url = "origin", repository.upstream  # a mirror is of one
    if url is None:
        names = git.line("remote").splitlines()
        asked = git.attempt("config", "--get", f"branch.{repository.base_branch}.remote").stdout.decode().strip()
        name = next((each for each in (asked, name, *names) if each in names), "")
        url = git.line("remote", "get-url", name) if name else ""
    if not url:
        return None
    there = dict[str, None]()
    for commit in commits:
        lines = git.line("rev-list", "--boundary", commit, "--not", f"--remotes={name}").splitlines()
        # where the remote lacks a part, the last commits of the history that it has
        there |= dict.fromkeys([line[1:] for line in lines if line.startswith("-")] if lines else [commit])
    url = url.removeprefix("file://")
    if is_path(url):
        url = expand_path(repository.top, url)
    else:
        url = re.sub(r"(?<=://)[^/?#]*:[^/?#]*@", "", url)
        url = re.sub(r"(?i)^(https?://)[^/?#]*@", r"\1", url)  # what stands there alone may be a token
    return Remote(url, tuple(there)) if there else None


def fetch_missing(git: Git, replica: Path, remote: Remote, limit_s: float | None) -> None:
    """Fetch what of a remote's commits a replica lacks.  SessionrunError: they cannot be had there."""
    missing = [commit for commit in remote.commits if git.commit_of(commit) is None]
    if missing:
        with open_room(replica / ".git", remote.url, limit_s=limit_s) as room:
            room.fetch(*(f"+{commit}:{RECEIVED}{commit}" for commit in missing))

"""What goes to a node beside a task's commits: ignored files that `.worktreeinclude` names, and where links lead.

The files travel as an archive in the folder of the task's PREPARE.  On the node they are kept beside the replica,
one directory for each task, until its worktree is gone: RELEASE has to know what of the worktree is no work.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import Repository
from sessionrun.store.files import expand_path, make_directories
from sessionrun.store.trees import remove_tree
from sessionrun.workspaces.git import Git
from sessionrun.workspaces.ignoring import ignore_words, included_files
from sessionrun.workspaces.links import find_name, leads_out

ARCHIVE: Final = "included.tar"
"""File in the folder of a PREPARE on a node."""

MAX_BYTES: Final = 16 * 1024 * 1024
"""Most that the files may have together: they go to a node with each task."""


def list_included(repository: Repository, folder: Path) -> list[str]:
    """The files that `.worktreeinclude` names; `folder` is where git's rules may lie.

    Raises:
        SessionrunError: they are too big to travel.
        OSError: one cannot be read.
    """
    top = Path(repository.top)
    names = included_files(Git(top, limit_s=None), top, ignore_words(repository, folder))
    size = sum((top / name).lstat().st_size for name in names)
    if size > MAX_BYTES:
        raise SessionrunError(
            f".worktreeinclude names files of {size} bytes: more than {MAX_BYTES} do not travel to a node"
        )
    return names


def pack_included(repository: Repository, folder: Path) -> bytes | None:
    """An archive of these files; None: there are none.

    Raises:
        SessionrunError, OSError: as `list_included`.
    """
    names = list_included(repository, folder)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in names:
            archive.add(Path(repository.top, name), arcname=name, recursive=False)
    return packed.getvalue() if names else None


def unpack_included(archive: Path, folder: Path) -> None:
    """Put the files into a directory, in the place of those of an earlier start.

    Raises:
        SessionrunError: the archive is damaged.
        OSError: they cannot be written.
    """
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
        if not leads_out(top, link):
            placed.append(find_name(top, link))
            inside[placed[-1]] = expand_path(top, link)
        else:
            placed.append(link if link[:1] == "~" else expand_path(top, link))
    return placed, inside


def make_links(top: Path, links: Sequence[str], inside: Mapping[str, str]) -> None:
    """See that the node has what the links lead to; those inside of the checkout lead on from the replica.

    Raises:
        SessionrunError: it lacks something.
        OSError: a link cannot be made.
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

"""What a worktree, or a clean room, gets beside its commit: ignored files of the user's checkout, and links.

A link to a path inside of the repository stands in the worktree where that path stands in the checkout.  One to a
path outside, which only the user's own plan can name, stands at the top of the worktree under its last name.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final

from sessionrun.git.git import Git
from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import Repository
from sessionrun.store.files import expand_path, replace_file
from sessionrun.worktrees.request import HIDDEN, WorkspaceRequest

INCLUDE_FILE: Final = ".worktreeinclude"


def included_files(git: Git) -> list[str]:
    """Ignored files of the checkout where git works that `.worktreeinclude` (as gitignore(5)) asks for."""
    if not (git.directory / INCLUDE_FILE).is_file():
        return []
    wanted = git.names("ls-files", "-z", "--others", "--ignored", f"--exclude-from={INCLUDE_FILE}")
    ignored = set(git.names("ls-files", "-z", "--others", "--ignored", "--exclude-standard"))
    return [name for name in wanted if name in ignored and not name.endswith("/")]


def find_missing(repository: Repository, folders: Collection[str]) -> set[str]:
    """Those directories, relative to the top, that a worktree will lack, unless links bring them."""
    git = Git(Path(repository.top))
    missing = set()
    for folder in folders:
        if folder == os.curdir:
            continue
        entry = git("--literal-pathspecs", "ls-tree", "--full-tree", "-z", repository.base_commit, folder)
        if not entry.startswith((b"040000 ", b"160000 ")):
            missing.add(folder)
    if missing:
        brought = included_files(git)
        missing -= {folder for folder in missing if any(name.startswith(f"{folder}/") for name in brought)}
    return missing


def kept_path(top: Path, owner: str) -> Path:
    """Where a node keeps the included files of a task, beside the replica `top`."""
    return top.parent / "included" / sha256(os.fsencode(owner)).hexdigest()[:16]


def find_included(git: Git, request: WorkspaceRequest) -> tuple[Path, list[str]]:
    """The directory that has the included files, and their names: the checkout, or on a node what was sent."""
    top = Path(request.repository.top)
    if request.upstream is not None:  # a mirror has no files
        return top, []
    kept = kept_path(top, request.owner)
    if not kept.is_dir():
        return top, included_files(git)
    found = [Path(place, name) for place, _, names in os.walk(kept) for name in names]
    return kept, sorted(str(path.relative_to(kept)) for path in found)


def bring_files(git: Git, request: WorkspaceRequest, path: Path, *, in_room: bool = False) -> None:
    """Copy what `.worktreeinclude` names and link what the task asks for, out of the user's checkout.

    Args:
        git: in the user's checkout.
        path: the worktree or, with `in_room`, a clean room: there files of the work stay where a link would be.
    """
    top = Path(request.repository.top)
    origins, included = find_included(git, request)
    for name in included:
        if not os.path.lexists(path / name) and _is_inside(path / name, path):
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(origins / name, path / name, follow_symlinks=False)
    for link in request.links:
        name, origin = find_name(str(top), link), Path(expand_path(str(top), link))
        if not in_room and (problem := describe_problem(str(top), request.links, link)) is not None:
            raise SessionrunError(f"links: {problem}")
        target = path / name
        if target.is_symlink() and target.readlink() == origin:
            continue  # an earlier start of this job did that
        gives_way = request.gives_way or (request.upstream is not None and request.upstream.history is not None)
        if gives_way and os.path.lexists(target):
            continue  # its links are those that are usual, as far as there is room for them
        if in_room and (os.path.lexists(target) or not _is_inside(target, path)):
            continue
        if os.path.lexists(target):
            raise SessionrunError(f"links: {link} is tracked by git, so the worktree has its own")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(origin)


def _is_inside(target: Path, top: Path) -> bool:
    """Whether no link, and no file, of the work stands in the way to the target."""
    parent = target.parent
    while parent != top:
        if parent.is_symlink() or (os.path.lexists(parent) and not parent.is_dir()):
            return False
        parent = parent.parent
    return True


def find_name(top: str, link: str) -> str:
    """Where the link stands, from the top of the worktree."""
    target = expand_path(top, link)
    return os.path.basename(target) if leads_out(top, link) else os.path.relpath(target, top)


def leads_out(top: str, link: str) -> bool:
    """Whether it leads out of the checkout, by its words alone."""
    return not expand_path(top, link).startswith(top.rstrip("/") + "/")


def describe_problem(top: str, links: Iterable[str], link: str) -> str | None:
    """Why a worktree of the checkout `top`, which is to have all of `links`, cannot have this link, or None."""
    name, target = find_name(top, link), expand_path(top, link)
    if not name or name.partition("/")[0] in (".", "..", ".git") or top == target or top.startswith(target + "/"):
        return f"{link} is not a path that a worktree could have a link to"
    if not os.path.lexists(target):
        return f"{link}: there is none in {top}" if not leads_out(top, link) else f"{link}: there is no {target}"
    twin = next((other for other in links if other != link and find_name(top, other) == name), None)
    return f"{link} and {twin} would both be {name} in the worktree" if twin is not None else None


def write_hidden(repository: Repository, links: Iterable[str], folder: Path) -> None:
    """Leave rules that ignore what git ignores anyway, and the links that lead out; nothing where none does."""
    top = repository.top
    out = [find_name(top, link) for link in links if leads_out(top, link)]
    if out:
        lines = [
            repository.excludes,
            *("/" + "".join(f"\\{char}" if char in "\\*?[ " else char for char in name) for name in out),
        ]
        replace_file(folder / HIDDEN, ("\n".join(lines) + "\n").encode(), durable=False)


def find_links(request: WorkspaceRequest) -> dict[str, str]:
    """The links of a worktree: where each stands, and where it leads."""
    top = request.repository.top
    return {find_name(top, link): expand_path(top, link) for link in request.links}

"""Links that a worktree gets: where each stands in it, and where it leads; and links on the way to a file.

A path inside of the repository stands in the worktree where it stands in the checkout.  A path outside, which only
the user's own plan can name, stands at the top of the worktree under its last name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from sessionrun.model.places import Repository
from sessionrun.store.files import expand_path, replace_file

HIDDEN: Final = "hidden-links"
"""In the folder of a PREPARE: rules by which the git of the task's jobs overlooks links that lead out."""


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


def is_behind_link(top: Path, name: str, known: dict[str, bool] | None = None) -> bool:
    """Whether a directory on the way to a file is a symbolic link: git sees nothing there.

    `known` remembers the directories of a list of names.
    """
    folder = os.path.dirname(name)
    if not folder:
        return False
    known = {} if known is None else known
    if folder not in known:
        known[folder] = (top / folder).is_symlink() or is_behind_link(top, folder, known)
    return known[folder]

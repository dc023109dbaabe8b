"""Which commit of a task is to land: that of its work, or the tip of the branch that went on from there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from sessionrun.landing.records import Entry
from sessionrun.model.places import Repository
from sessionrun.workspaces.fence import open_fence
from sessionrun.workspaces.git import Git


def follow_branches(
    repository: Repository,
    entries: Iterable[Entry],
    branches: Mapping[str, str | None],
    folder: Path | None = None,
) -> tuple[Entry, ...]:
    """The entries, each with the tip of its branch where that went on from the work: a conflict is mended there.

    A branch that a person deleted or moved elsewhere is no consent to land what the task left: it is `astray`.

    Args:
        repository: where the branches are.
        entries: with the commit that holds the work as their tip.
        branches: by task, the name of its branch; without one the commit itself lands.
        folder: where a temporary directory may be made; None: among the system's.

    Raises:
        SessionrunError, OSError: git failed.
    """
    with open_fence(repository, folder) as fence:
        git = fence.main()
        listed = git.line("for-each-ref", "--format=%(objectname) %(refname:lstrip=2)", "refs/heads")
        tips = {name: tip for tip, _, name in (line.partition(" ") for line in listed.split("\n"))}
        return tuple(_follow(git, entry, branches.get(entry.task), tips) for entry in entries)


def _follow(git: Git, entry: Entry, branch: str | None, tips: Mapping[str, str]) -> Entry:
    tip = tips.get(branch or "", entry.tip if not branch else None)
    if tip == entry.tip:
        return entry
    if tip is None:
        restore = f"git branch {branch} {entry.tip[:12]}"
        return replace(entry, astray=f"its branch {branch} was deleted; if that was a mistake: {restore}")
    if git.attempt("merge-base", "--is-ancestor", entry.tip, tip).returncode == 0:
        return replace(entry, tip=tip)
    what = f"its branch {branch} does not hold what the task left, {entry.tip[:12]} (was it amended or rebased?)"
    mends = f"git merge {branch} lands it; git branch -f {branch} {entry.tip[:12]} puts it back"
    return replace(entry, astray=f"{what}: {mends}")

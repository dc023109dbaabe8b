"""Makes the trees of files that a proof compares: the work, what it began with, each with the other's tests.

Which files, and which parts of files, are tests or test set-up is in `testing`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final, Literal, NamedTuple, TypeAlias

from sessionrun.checks.requests import ProveRequest
from sessionrun.checks.testing import (
    SET_UP,
    TEST_FILES,
    compile_patterns,
    find_parts,
    find_set_up,
    list_files,
    runs_doctests,
)
from sessionrun.git.git import Git, GitError
from sessionrun.git.merging import apply_to_tree, commit_repeatably
from sessionrun.model.errors import SessionrunError
from sessionrun.model.places import Place

State: TypeAlias = Literal["result", "old_tests", "kept_tests", "base", "new_tests"]

TITLES: Final[dict[State, str]] = {
    "result": "on the base and the work",
    "old_tests": "on the work, with the tests and test set-up of the base",
    "kept_tests": "the same, with the test files that the task added",
    "base": "on the base, without the work",
    "new_tests": "on the base, with the tests and test set-up of the work",
}
"""The states whose trees are compared.

The base is without what setup left; where the task has added no test file, `kept_tests` is `old_tests`.
"""


class _File(NamedTuple):
    mode: str
    blob: str


_Files = Mapping[str, _File]
"""The files of a tree, by path."""


class NotApplicable(SessionrunError):
    """The work cannot be put on the base without what setup left."""


def cross(git: Git, place: Place, request: ProveRequest, folder: Path) -> tuple[dict[State, str], tuple[str, ...]]:
    """Make the commit of each state, and find the files of test set-up that the work changes.

    `git` is on trial, so all that is made lies in its directory of objects.

    Args:
        place: with the base and the commit of the work.
        request: which files are tests, what is run, and what of test set-up is left to the task.
        folder: where a private index may lie.

    Raises:
        NotApplicable: the work does not go on the base alone.
    """
    index = git.with_index(folder / "cross-index")
    base, result = _list_sides(git, place, folder)
    tests, set_up = _find_tests(request.prove.test_files, {*base, *result})

    def read(name: str) -> str:
        return _read(git, base[name])

    commands, added = request.check.commands, result.keys() - base.keys()
    more = find_set_up(commands, request.directory, base, added, read)
    own = compile_patterns(request.prove.own) if request.prove.own else None
    of_tests = {name for name in tests | set_up | more if own is None or not own.match(name)}
    set_up = (set_up | more) & of_tests
    exchange = partial(_exchange, git, of_tests=of_tests, own=own, doctests=runs_doctests(commands, base, read))
    old = exchange(result, base)
    kept = {**old, **{name: result[name] for name in of_tests - set_up - base.keys()}}
    new = exchange(base, result)
    changed = {name for name in {*old, *result} if old.get(name) != result.get(name)}
    trees: dict[State, _Files] = {
        "result": result,
        "old_tests": old,
        "kept_tests": kept,
        "base": base,
        "new_tests": new,
    }
    commits = {state: _commit(index, files, str(place.base_commit)) for state, files in trees.items()}
    return commits, tuple(sorted(changed - (of_tests - set_up)))


def take_source(git: Git, place: Place, test_files: Sequence[str], folder: Path) -> str:
    """Make a commit of the work's source, with the tests and the test set-up of the base; see `cross`."""
    index = git.with_index(folder / "cross-index")
    base, result = _list_sides(git, place, folder)
    of_tests = set().union(*_find_tests(test_files, {*base, *result}))
    return _commit(index, _exchange(git, result, base, of_tests), str(place.base_commit))


def _list_sides(git: Git, place: Place, folder: Path) -> tuple[_Files, _Files]:
    assert place.base_commit is not None and place.commit is not None
    return _list_files(git, place.base_commit), _list_files(git, _find_result(git, place, folder))


def _find_tests(test_files: Sequence[str], names: Collection[str]) -> tuple[set[str], set[str]]:
    kinds = map(compile_patterns, (test_files or TEST_FILES, SET_UP))
    tests, set_up = ({name for name in names if kind.match(name)} for kind in kinds)
    return tests, set_up


def add_tests(git: Git, commit: str, base: str, patch: bytes, folder: Path) -> str:
    """Make a commit of these files and a patch that brings tests; what the patch changes is first as in the base.

    Raises:
        NotApplicable: the patch does not apply to the base.
    """
    index = git.with_index(folder / "cross-index")
    if not patch.strip():
        return commit
    # git knows the files of a patch without "diff --git", too, but of a rename the new name alone
    counted = os.fsdecode(index.attempt("apply", "--numstat", "-z", "-", stdin=patch).stdout).split("\0")
    touched = {*list_files(patch), *(line.rpartition("\t")[2] for line in counted)}
    files = _exchange(git, _list_files(git, commit), _list_files(git, base), touched)
    try:
        tree = apply_to_tree(git, _commit(index, files, base), patch, folder / "cross-index")
    except GitError as error:
        raise NotApplicable(f"the test patch does not apply to the base: {error}") from error
    return _commit_tree(git, tree, base)


def _find_result(git: Git, place: Place, folder: Path) -> str:
    """The tree of the base and the work: without what setup left between the two."""
    if place.setup_commit is None:
        return str(place.commit)
    words = ("diff-tree", "-p", "--binary", "--full-index", "--no-renames")
    patch = git(*words, place.setup_commit, str(place.commit))
    try:
        return apply_to_tree(git, str(place.base_commit), patch, folder / "cross-index")
    except GitError as error:
        raise NotApplicable(f"the work does not apply without what setup left: {error}") from error


def _list_files(git: Git, tree: str) -> dict[str, _File]:
    files = {}
    for entry in git.names("ls-tree", "-r", "-z", "--full-tree", tree):
        about, _, name = entry.partition("\t")
        mode, _, blob = about.split(" ")
        files[name] = _File(mode, blob)
    return files


def _exchange(
    git: Git,
    files: _Files,
    other: _Files,
    of_tests: Iterable[str],
    own: re.Pattern[str] | None = None,
    *,
    doctests: bool = False,
) -> dict[str, _File]:
    """The files, but tests and test set-up as `other` has them; those that match `own` keep their parts."""
    mixed = dict(files)
    for name in of_tests:
        mixed.pop(name, None)
        if name in other:
            mixed[name] = other[name]
    for name in list(mixed):
        if mixed[name] == other.get(name) or (own and own.match(name)):
            continue
        exchange = find_parts(name, doctests=doctests)
        if exchange is not None:
            mixed[name] = _exchange_parts(git, exchange, mixed[name], other.get(name))
    # a file of the one may be a directory of the other: what is in the way of a test goes
    blocked = {name for name in mixed if any(str(folder) in mixed for folder in PurePosixPath(name).parents)}
    return {name: file for name, file in mixed.items() if name not in blocked}


def _exchange_parts(git: Git, exchange: Callable[[str, str], str], file: _File, other: _File | None) -> _File:
    """The file with the other's parts of test set-up in the place of its own."""
    if not file.mode.startswith("100") or (other is not None and not other.mode.startswith("100")):
        return file
    text = _read(git, file)
    mixed = exchange(text, "" if other is None else _read(git, other))
    if mixed == text:
        return file
    content = mixed.encode("utf-8", "surrogateescape")
    return file._replace(blob=git("hash-object", "-w", "--stdin", stdin=content).decode().strip())


def _read(git: Git, file: _File) -> str:
    """The text of a file; links and submodules have none."""
    if not file.mode.startswith("100"):
        return ""
    return git("cat-file", "blob", file.blob).decode("utf-8", "surrogateescape")


def _commit(index: Git, files: _Files, base: str) -> str:
    """A commit of these files above the base; equal files give the same commit."""
    assert index.index is not None
    index.index.unlink(missing_ok=True)
    lines = "".join(f"{file.mode} {file.blob}\t{name}\0" for name, file in files.items())
    index("update-index", "-z", "--index-info", stdin=os.fsencode(lines))
    tree = index.line("write-tree")
    index.index.unlink(missing_ok=True)
    return _commit_tree(index, tree, base)


def _commit_tree(git: Git, tree: str, base: str) -> str:
    if tree == git.line("rev-parse", f"{base}^{{tree}}"):
        return base
    return commit_repeatably(git, tree, [base], "What is proved\n", moment=0)

"""The repository a session works on: found and checked once, at the launch."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from sessionrun.git.git import MINIMUM, Git, GitError, version
from sessionrun.git.private import is_promise, read_settings
from sessionrun.model.errors import InputError
from sessionrun.model.places import GitSettings, KeepPolicy, Repository
from sessionrun.store.files import make_directories, open_regular, read_regular
from sessionrun.store.index import find_cache_folder


def hide_name(common_dir: Path, name: str) -> None:
    """Let git overlook a file in the top of every worktree, if `info/exclude` can be written."""
    path = common_dir / "info" / "exclude"
    rule = f"/{name}".encode()
    with suppress(OSError):
        make_directories(path.parent)
        present = read_regular(path) if os.path.lexists(path) else b""
        if rule in present.split(b"\n"):
            return
        line = (b"" if not present or present.endswith(b"\n") else b"\n") + rule + b"\n"
        with os.fdopen(open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), "wb") as stream:
            stream.write(line)


def read_author(git: Git, *words: str) -> dict[str, str]:
    """The settings of a repository by which the commits of its user's git name their author."""
    rows = git.attempt("config", *words, "-z", "--get-regexp", r"^user\.(name|email)$").stdout.split(b"\0")
    return {key: value for key, _, value in (row.decode(errors="replace").partition("\n") for row in rows if row)}


_PLACES: Final = ("--path-format=absolute", "--git-common-dir", "--absolute-git-dir", "--show-toplevel")
"""What git is asked for: the last fails where there is no checkout."""


def find_repository(
    cwd: Path, *, base: str | None, worktree_dir: Path | None, keep: KeepPolicy
) -> tuple[Repository, list[str]]:
    """The repository around `cwd`, and remarks for the user.

    Args:
        base: branch, tag or commit to begin at; None = what is checked out.
        worktree_dir: where worktrees go; None = beside the repository.
        keep: which worktrees stay after their task.
    """
    check_version(cwd)
    git, wanted = Git(cwd), base or "HEAD"
    words = (*_PLACES, f"{wanted}^{{commit}}", "--symbolic-full-name", wanted)
    lines = _ask(git, words) if not wanted.startswith("-") else None
    if lines is None:
        top, *_ = locate(git)
        problem = (
            f"--base {base}: no such commit" if base else "its branch has no commit yet: commit something first"
        )
        raise InputError(f"{top}: {problem}")
    (top, common, git_dir), commit, names = _check_places(git, lines[:3]), lines[3], lines[4:]
    folder, remark = _choose_folder(top, common, worktree_dir)
    named = re.match(r"refs/(?:heads/|tags/|remotes/[^/]+/)(.+)", names[-1] if names else "")
    name = named[1] if named else commit[:12]  # with it the names of task branches begin
    excludes, settings = read_settings(top, common, git_dir)
    _check_complete(Git(top), settings, commit)
    remarks = [*([remark] if remark else []), *_check_filters(Git(top), settings)]
    return Repository(str(top), str(common), name, commit, str(folder), keep, excludes, settings), remarks


def check_version(cwd: Path) -> None:
    try:
        git_version = version(cwd)
    except GitError as error:
        raise InputError(f"worktrees need git: {error}") from error
    if git_version < MINIMUM:
        wanted, here = (".".join(map(str, numbers)) for numbers in (MINIMUM, git_version))
        raise InputError(f"worktrees need git {wanted} or newer; this is {here}")


def _check_complete(git: Git, settings: GitSettings, commit: str) -> None:
    """Refuse a partial clone that lacks files of the commit: our git does not fetch them."""
    if not any(is_promise(name) for name, _ in settings.config):
        return
    listed = git("rev-list", "--objects", "--no-object-names", "--missing=print", f"{commit}^{{tree}}")
    missing = sum(line.startswith(b"?") for line in listed.split(b"\n"))
    if missing:
        lacks = f"a partial clone without {missing} of the files of {commit[:12]}"
        hint = f"git -C {git.directory} archive {commit[:12]} > /dev/null"
        raise InputError(f"{git.directory} is {lacks}: fetch them ({hint})")


def _check_filters(git: Git, settings: GitSettings) -> Iterator[str]:
    """A remark on each filter that files have, and whose program is not there; one that git needs is refused."""
    lacking: dict[str, str] = {}
    for name, command in settings.config:
        found = re.fullmatch(r"filter\.(.+)\.(?:process|smudge|clean)", name)
        if found and command and (program := _find_lacking(git.directory, command)) is not None:
            lacking[found[1]] = program
    if not lacking:
        return
    fields = git.names("check-attr", "-z", "--cached", "--stdin", "filter", stdin=git("ls-files", "-z"))
    files = dict(zip(fields[2::3], fields[0::3], strict=True))
    for driver, program in lacking.items():
        if driver not in files:
            continue
        problem = f"{files[driver]} has the filter {driver!r}, and its program {program!r} is not found"
        if dict(settings.config).get(f"filter.{driver}.required", "false") in (None, "true", "yes", "on", "1"):
            raise InputError(f"{git.directory}: {problem}: install it, or put it on PATH")
        yield problem


def _find_lacking(top: Path, command: str) -> str | None:
    """The program of a filter's command if it is not there; what only a shell can read may be anything."""
    try:
        program = shlex.split(command)[0]
    except (ValueError, IndexError):
        return None
    place = top / program if "/" in program else program
    is_there = program in ("cd", "eval", "exec", "export", "if", "set", "umask", "while") or shutil.which(place)
    return None if is_there or re.search(r"[^\w./+-]", program) else program


def locate(git: Git) -> tuple[Path, Path, Path]:
    """Top of the checkout, common git directory and its own one, absolute; refused if there is no checkout."""
    lines = _ask(git, _PLACES)
    if lines is not None:
        return _check_places(git, lines)
    check_version(git.directory)
    reason = git.attempt("rev-parse", "--git-dir").stderr.decode("utf-8", "replace")
    if "dubious ownership" in reason:
        hint = f"git config --global --add safe.directory {git.directory}"
        raise InputError(f"{git.directory} belongs to another user, so git refuses it; if you trust it: {hint}")
    if reason:
        raise InputError(f"{git.directory} is in no git repository; worktrees need one (git init)")
    raise InputError(f"{git.directory} is a bare repository or inside .git; start in a checkout of it")


def _ask(git: Git, words: Sequence[str]) -> list[str] | None:
    """The lines that rev-parse prints; None if it fails."""
    try:
        done = git.attempt("rev-parse", *words)
    except GitError:
        return None
    return os.fsdecode(done.stdout).split("\n")[:-1] if done.returncode == 0 else None


def _check_places(git: Git, lines: Sequence[str]) -> tuple[Path, Path, Path]:
    if not all(line.startswith("/") for line in lines):  # a path has a line break
        raise InputError(f"{str(git.directory)!r}: worktrees need a path of printable characters")
    common, git_dir, top = lines
    common = os.path.realpath(common)
    for path in (top, common):
        check_path(path)
    return Path(top), Path(common), Path(git_dir)


def check_path(path: str) -> None:
    """Refuse a path that git's lists of worktrees or our files cannot hold."""
    if "\n" in path or not path.isprintable():
        raise InputError(f"{path!r}: worktrees need a path of printable characters")


def _choose_folder(top: Path, common: Path, wanted: Path | None) -> tuple[Path, str | None]:
    """Where worktrees go: beside the repository if we may write there, else in the user's cache."""
    if wanted is not None:
        folder = wanted.resolve()
        check_path(str(folder))
        if folder.is_relative_to(top.resolve()) or folder.is_relative_to(common.resolve()):
            raise InputError(f"--worktree-dir {wanted} lies inside the repository; choose a place outside")
        return folder, None
    home = common.parent if common.name == ".git" else top
    beside = home.parent / f"{home.name}-worktrees"
    if os.access(beside if beside.exists() else home.parent, os.W_OK):
        return beside.resolve(), None
    folder = find_cache_folder() / "worktrees" / home.name
    return folder, f"worktrees go to {folder}: {home.parent} cannot be written"

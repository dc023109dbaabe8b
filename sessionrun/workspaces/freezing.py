"""How git treats files, read once at the launch: settings, filter drivers and attributes.

All worktrees of a repository share its settings, and whatever a task writes there would decide what the files of
other tasks become when they are parked, and which programs run for that.  So the settings go into the spec, and
our git reads no others (see `fence`).  What a ``.gitattributes`` file says is work, like a ``.gitignore``: each
worktree has its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sessionrun.model.errors import InputError
from sessionrun.model.places import GitSettings
from sessionrun.store.files import read_regular
from sessionrun.workspaces.git import Git

SYSTEM_ATTRIBUTES: Final = Path("/etc/gitattributes")

_CORE: Final = frozenset(
    f"core.{name}"
    for name in (
        # what a file's content becomes
        "autocrlf",
        "eol",
        "safecrlf",
        "checkroundtripencoding",
        "bigfilethreshold",
        # what counts as a change, and what a file system can hold
        "filemode",
        "symlinks",
        "ignorecase",
        "precomposeunicode",
        "protecthfs",
        "protectntfs",
        "longpaths",
        "sparsecheckout",
        "sparsecheckoutcone",
        # how the repository is kept
        "repositoryformatversion",
        "sharedrepository",
        "logallrefupdates",
        "compression",
        "loosecompression",
        "fsync",
        "fsyncmethod",
        "fsyncobjectfiles",
        "filesreflocktimeout",
        "packedrefstimeout",
    )
)
"""The settings of `core` that matter to us; the others name programs and files, or concern people."""

_SECTIONS: Final = ("extensions.", "filter.", "merge.", "index.", "checkout.", "lfs.")
"""Whole sections that matter: the format of the repository, filters, merge drivers, and the speed of a
checkout.
"""

_FOR_FILTERS: Final = ("remote.", "branch.", "url.", "http.", "credential.")
"""What the program behind a filter asks git for (Git LFS: where its server is); only where there is a filter."""

_NOT_OURS: Final = frozenset(("extensions.worktreeconfig",))
"""The setting by which a worktree has settings of its own; these are already among those of the launch."""


def read_settings(top: Path, common_dir: Path) -> GitSettings:
    """Read the settings that apply in the checkout `top` now.

    Raises:
        InputError: a filter's setting is not UTF-8, so the spec cannot hold it.
        GitError: git cannot read its settings.
    """
    git = Git(top)
    settings = list(_list_config(git))
    has_filter = any(name.startswith("filter.") for name, _ in settings)
    wanted = tuple(pair for pair in settings if _matters(pair[0], has_filter=has_filter))
    user = _find_attributes(top, settings)
    texts = [_read_text(path) for path in (SYSTEM_ATTRIBUTES, user)]
    git_dir = git.line("rev-parse", "--path-format=absolute", "--git-dir")
    shared = _read_text(common_dir / "info" / "attributes")
    return GitSettings(wanted, "\n".join(texts), shared, os.path.realpath(git_dir))


def read_user_settings(folder: Path) -> GitSettings:
    """The user's and the system's settings, for repositories that have none of their own: mirrors.

    Args:
        folder: any directory, in which git is run.

    Raises:
        InputError, GitError: as `read_settings`.
    """
    found = list(_list_config(Git(folder), but=("command", "local", "worktree")))
    has_filter = any(name.startswith("filter.") for name, _ in found)
    wanted = tuple(
        pair for pair in found if _matters(pair[0], has_filter=has_filter) and not _is_of_repository(pair[0])
    )
    texts = [_read_text(path) for path in (SYSTEM_ATTRIBUTES, _find_attributes(folder, found))]
    return GitSettings(wanted, "\n".join(texts), "", "")


def _is_of_repository(name: str) -> bool:
    """Whether it describes the repository that it stands in: nothing that a user says of all repositories."""
    of_format = name.startswith(("extensions.", "core.sparsecheckout")) or name == "core.repositoryformatversion"
    return of_format or is_promise(name)


def is_promise(name: str) -> bool:
    """Whether a setting of this name says that objects may be missing, because a remote has them."""
    return name == "extensions.partialclone" or (name.startswith("remote.") and name.endswith(".promisor"))


def _list_config(git: Git, but: tuple[str, ...] = ("command",)) -> Iterator[tuple[str, str | None]]:
    """All settings in force, in order, without some scopes: "command" is what we give git ourselves."""
    fields = git("config", "--list", "-z", "--show-scope").split(b"\0")
    for scope, entry in zip(fields[::2], fields[1::2], strict=False):
        if scope.decode() in but:
            continue
        yield from _parse_config(entry)


def _parse_config(output: bytes) -> Iterator[tuple[str, str | None]]:
    """The settings that ``git config --list -z`` printed; one that is not UTF-8 is left out, or refused."""
    for entry in output.split(b"\0"):
        name, equals, value = entry.partition(b"\n")
        if not name:
            continue
        try:
            yield name.decode(), value.decode() if equals else None
        except UnicodeDecodeError:
            if name.startswith(b"filter."):
                shown = name.decode("utf-8", "backslashreplace")
                raise InputError(f"git setting {shown} is not UTF-8: worktrees need it in UTF-8") from None


def _matters(name: str, *, has_filter: bool) -> bool:
    section = name.split(".", 1)[0] + "."
    if name in _NOT_OURS:
        return False
    known = name in _CORE or section in _SECTIONS or is_promise(name)
    return known or (has_filter and section in _FOR_FILTERS)


def _find_attributes(top: Path, config: list[tuple[str, str | None]]) -> Path:
    """The user's own attribute file."""
    named = [value for name, value in config if name == "core.attributesfile" and value]
    if named:
        return top / os.path.expanduser(named[-1])
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(home, "git", "attributes")


def _read_text(path: Path) -> str:
    """A file's text, '' if there is no file; bytes that are not UTF-8 match no path of ours anyway."""
    try:
        real = path.resolve()
        return read_regular(real).decode("utf-8", "replace")
    except (OSError, RuntimeError):
        return ""

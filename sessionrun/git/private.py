"""A private common directory for our git: the repository's objects and refs, with the settings of the launch.

How git treats files is read once, at the launch: settings, filter drivers, attributes, and what it ignores.

Git takes what all worktrees share from its common directory: objects, refs, and also settings, attributes, ignore
rules and hooks, which any task can write.  ``GIT_COMMON_DIR`` names another such directory.  Ours holds links to
the objects, refs and books of worktrees of the real one, but a ``config`` and an ``info`` of its own.  It takes
0.4 ms to make, and goes when the command is done.

All worktrees of a repository share its settings, and whatever a task writes there would decide what the files of
other tasks become when they are parked, and which programs run for that.  So the settings go into the spec, and
our git reads no others (see above).  So it is with the rules of ``info/exclude`` and of the user's file: by them
a task could make git overlook new files, its own and those of others, which would then go with their worktrees.
What a ``.gitattributes`` file says is work, like a ``.gitignore``: each worktree has its own.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.git.git import READER_LIMIT_S, Git
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.places import GitSettings, Repository
from sessionrun.store.files import read_regular

_OWN: Final = frozenset(("config", "config.worktree", "info", "hooks", "HEAD", "gc.pid"))
"""Entries that a private common directory has of its own, or lacks."""

_ALWAYS: Final = ("objects", "refs", "packed-refs", "worktrees")
"""Entries that are linked even if they do not exist yet: git makes them behind the link."""


@frozen
class Fence:
    """A private common directory at `common`, for the git commands of one repository."""

    repository: Repository
    settings: GitSettings
    common: Path
    limit_s: float | None

    def main(self) -> Git:
        """Git in the user's checkout, which it does not change."""
        real = Path(self.settings.git_dir)
        git_dir = self.common if real == Path(os.path.realpath(self.repository.common_dir)) else real
        return Git(Path(self.repository.top), common=self.common, git_dir=git_dir, limit_s=self.limit_s)

    def inside(self, top: Path, git_dir: Path) -> Git:
        """Git in the worktree at `top` with the administrative directory `git_dir`."""
        return Git(top, common=self.common, git_dir=git_dir, limit_s=self.limit_s)


@contextmanager
def open_fence(
    repository: Repository, folder: Path | None = None, *, limit_s: float | None = READER_LIMIT_S
) -> Iterator[Fence]:
    """Make the private common directory of a repository, for as long as it is needed.

    Args:
        folder: where the directory is made; None: among the system's temporary files.
        limit_s: how long each git command may take (seconds); None: as long as it needs.
    """
    common_dir = Path(repository.common_dir)
    settings = repository.settings
    if settings is None:
        raise SessionrunError(f"the settings of git for {repository.top} are missing: spec.json is damaged")
    parent = None if folder is None else folder.absolute()
    with tempfile.TemporaryDirectory(prefix=".git-", dir=parent, ignore_cleanup_errors=True) as made:
        common = Path(made)
        furnish(common, common_dir, settings)
        (common / "info" / "exclude").write_text(repository.excludes, encoding="utf-8")
        yield Fence(repository, settings, common, limit_s)


def furnish(common: Path, real: Path, settings: GitSettings) -> None:
    """Make a directory a private common directory for the one at `real`; what is in it already is its own."""
    if any(key.startswith("filter.lfs.") for key, _ in settings.config):
        (real / "lfs").mkdir(exist_ok=True)  # made there, what Git LFS puts into it stays
    (common / "HEAD").write_bytes(_read_head(real))
    (common / "info").mkdir()
    (common / "info" / "attributes").write_text(settings.shared_attributes, encoding="utf-8")
    attributes = common / "user-attributes"
    attributes.write_text(settings.user_attributes, encoding="utf-8")
    own = (("core.bare", "false"), ("core.attributesFile", str(attributes)), ("core.excludesFile", os.devnull))
    (common / "config").write_text(word_settings((*settings.config, *own)), encoding="utf-8")
    # links come last: `real` may be a task's, and what we write must not go through a link of its
    names = {name for name in os.listdir(real) if name not in _OWN and not name.endswith(".lock")}
    for name in names.union(_ALWAYS).difference(os.listdir(common)):
        os.symlink(real / name, common / name)


def _read_head(real: Path) -> bytes:
    """The branch that is checked out in the repository; a HEAD that git did not write counts as no commit."""
    try:
        head = os.fsdecode(read_regular(real / "HEAD", 4096)).strip()
    except OSError:
        head = ""
    is_usable = head.startswith("ref: refs/") or len(head) in (40, 64)
    return os.fsencode(head if is_usable else "ref: refs/heads/none") + b"\n"


def word_settings(settings: Iterable[tuple[str, str | None]]) -> str:
    """Settings in the words of a config file (git-config(1), CONFIGURATION FILE)."""
    lines = []
    for name, value in settings:
        section, _, rest = name.partition(".")
        subsection, _, key = rest.rpartition(".")
        lines.append(f'[{section} "{_escape(subsection)}"]' if subsection else f"[{section}]")
        if value is None:
            lines.append(f"\t{key}")
        else:
            text = _escape(value).replace("\n", "\\n").replace("\t", "\\t").replace("\b", "\\b")
            lines.append(f'\t{key} = "{text}"')
    return "".join(f"{line}\n" for line in lines)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


SYSTEM_ATTRIBUTES: Final = Path("/etc/gitattributes")

_CORE: Final = frozenset(
    f"core.{name}"
    for names in (
        # what a file's content becomes
        "autocrlf eol safecrlf checkroundtripencoding bigfilethreshold",
        # what counts as a change, and what a file system can hold
        "filemode symlinks ignorecase precomposeunicode protecthfs protectntfs longpaths",
        "sparsecheckout sparsecheckoutcone",
        # how the repository is kept
        "repositoryformatversion sharedrepository logallrefupdates compression loosecompression",
        "fsync fsyncmethod fsyncobjectfiles filesreflocktimeout packedrefstimeout",
    )
    for name in names.split()
)
"""The settings of `core` that matter to us; the others name programs and files, or concern people."""

_SECTIONS: Final = ("extensions.", "filter.", "merge.", "index.", "checkout.", "lfs.")
"""Whole sections that matter: the format of the repository, filters, merge drivers, and the speed of a
checkout.
"""

_FOR_FILTERS: Final = ("remote.", "branch.", "url.", "http.", "credential.")
"""What the program behind a filter asks git for (Git LFS: where its server is); only where there is a filter."""


def read_settings(top: Path, common_dir: Path, git_dir: Path) -> tuple[str, GitSettings]:
    """What applies in the checkout `top` now: rules of what to ignore, and settings.

    The rules are without those of the files ``.gitignore``.  The last rule that matches decides, and git
    asks ``info/exclude`` before the user's file.

    Raises:
        InputError: a filter's setting is not UTF-8, so the spec cannot hold it.
    """
    rules, settings = _read_users(top, list(_list_config(Git(top))))
    shared = _read_text(common_dir / "info" / "attributes")
    settings = replace(settings, shared_attributes=shared, git_dir=os.path.realpath(git_dir))
    return "\n".join((rules, _read_rules(common_dir / "info" / "exclude"))), settings


def read_user_settings(folder: Path) -> tuple[str, GitSettings]:
    """The same of the user and the system alone, for mirrors; git runs in any `folder`."""
    found = []
    for name, value in _list_config(Git(folder), but=("command", "local", "worktree")):
        # what describes the repository that it stands in is nothing that a user says of all repositories
        of_format = (
            name.startswith(("extensions.", "core.sparsecheckout")) or name == "core.repositoryformatversion"
        )
        if not (of_format or is_promise(name)):
            found.append((name, value))
    return _read_users(folder, found)


def _read_users(top: Path, found: list[tuple[str, str | None]]) -> tuple[str, GitSettings]:
    """The rules of the user's own file, and those of the settings that matter, with the user's attributes."""
    has_filter = any(name.startswith("filter.") for name, _ in found)
    wanted = tuple(pair for pair in found if _matters(pair[0], has_filter=has_filter))
    files = [SYSTEM_ATTRIBUTES, _find_users_file(top, found, "attributes")]
    rules = _read_rules(_find_users_file(top, found, "excludes"))
    return rules, GitSettings(wanted, "\n".join(map(_read_text, files)), "", "")


def is_promise(name: str) -> bool:
    """Whether a setting of this name says that objects may be missing, because a remote has them."""
    return name == "extensions.partialclone" or (name.startswith("remote.") and name.endswith(".promisor"))


def _list_config(git: Git, but: tuple[str, ...] = ("command",)) -> Iterator[tuple[str, str | None]]:
    """All settings in force, in order, without some scopes: "command" is what we give git ourselves.

    One that is not UTF-8 is left out, or refused.
    """
    fields = git("config", "--list", "-z", "--show-scope").split(b"\0")
    for scope, entry in zip(fields[::2], fields[1::2], strict=False):
        if scope.decode() in but:
            continue
        name, equals, value = entry.partition(b"\n")
        try:
            yield name.decode(), value.decode() if equals else None
        except UnicodeDecodeError:
            if name.startswith(b"filter."):
                shown = name.decode("utf-8", "backslashreplace")
                raise InputError(f"git setting {shown} is not UTF-8: worktrees need it in UTF-8") from None


def _matters(name: str, *, has_filter: bool) -> bool:
    section = name.split(".", 1)[0] + "."
    if name == "extensions.worktreeconfig":
        return False  # by it a worktree has settings of its own; these are already among those of the launch
    known = name in _CORE or section in _SECTIONS or is_promise(name)
    return known or (has_filter and section in _FOR_FILTERS)


def _find_users_file(top: Path, config: list[tuple[str, str | None]], kind: str) -> Path:
    """The user's own file of attributes, or of rules of what to ignore ("excludes")."""
    named = [value for name, value in config if name == f"core.{kind}file"]
    if named:  # an empty name stands for no file
        return top / os.path.expanduser(named[-1]) if named[-1] else Path(os.devnull)
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(home, "git", "ignore" if kind == "excludes" else kind)


def _read_rules(path: Path) -> str:
    """The rules in a file, none if it cannot be read; bytes that are not UTF-8 never make git ignore more."""
    lines = _read_text(path).removeprefix("\ufeff").split("\n")
    return "\n".join(line.replace("\ufffd", "*") if line.startswith("!") else line for line in lines)


def _read_text(path: Path) -> str:
    """A file's text, '' if there is no file; bytes that are not UTF-8 match no path of ours anyway."""
    try:
        real = path.resolve()
        return read_regular(real).decode("utf-8", "replace")
    except (OSError, RuntimeError):
        return ""

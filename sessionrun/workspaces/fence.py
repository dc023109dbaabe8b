"""A private common directory for our git: the repository's objects and refs, with the settings of the launch.

Git takes what all worktrees share from its common directory: objects, refs, and also settings, attributes, ignore
rules and hooks, which any task can write.  ``GIT_COMMON_DIR`` names another such directory.  Ours holds links to
the objects, refs and books of worktrees of the real one, but a ``config`` and an ``info`` of its own.  It takes
0.4 ms to make, and goes when the command is done.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.places import GitSettings, Repository
from sessionrun.store.files import read_regular
from sessionrun.workspaces.git import READER_LIMIT_S, Git

_OWN: Final = frozenset(("config", "config.worktree", "info", "hooks", "HEAD", "gc.pid"))
"""Entries that a private common directory has of its own, or lacks."""

_ALWAYS: Final = ("objects", "refs", "packed-refs", "worktrees")
"""Entries that are linked even if they do not exist yet: git makes them behind the link."""

_STORES: Final = {"filter.lfs.": "lfs"}
"""Directories for files of the programs behind filters; they are made in the repository, so they stay."""


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
        repository: whose objects, refs and worktrees git shall see.
        folder: where the directory is made; None: among the system's temporary files.
        limit_s: how long each git command may take (seconds); None: as long as it needs.

    Raises:
        OSError: the directory cannot be made, or the repository is gone.
        SessionrunError: the repository has not the settings that it got at the launch.
    """
    common_dir = Path(repository.common_dir)
    settings = repository.settings
    if settings is None:
        raise SessionrunError(f"the settings of git for {repository.top} are missing: spec.json is damaged")
    parent = None if folder is None else folder.absolute()
    with tempfile.TemporaryDirectory(prefix=".git-", dir=parent, ignore_cleanup_errors=True) as made:
        common = Path(made)
        furnish(common, common_dir, settings)
        yield Fence(repository, settings, common, limit_s)


def furnish(common: Path, real: Path, settings: GitSettings) -> None:
    """Make an empty directory a private common directory for the one at `real`.

    Raises:
        OSError: the directory cannot be written, or `real` cannot be read.
    """
    for prefix, name in _STORES.items():
        if any(key.startswith(prefix) for key, _ in settings.config):
            (real / name).mkdir(exist_ok=True)
    names = {name for name in os.listdir(real) if name not in _OWN and not name.endswith(".lock")}
    for name in (*names, *(name for name in _ALWAYS if name not in names)):
        os.symlink(real / name, common / name)
    (common / "HEAD").write_bytes(_read_head(real))
    (common / "info").mkdir()
    (common / "info" / "attributes").write_text(settings.shared_attributes, encoding="utf-8")
    attributes = common / "user-attributes"
    attributes.write_text(settings.user_attributes, encoding="utf-8")
    own = (("core.bare", "false"), ("core.attributesFile", str(attributes)), ("core.excludesFile", os.devnull))
    (common / "config").write_text(word_settings((*settings.config, *own)), encoding="utf-8")


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
    return "".join(_word_setting(*pair) for pair in settings)


def _word_setting(name: str, value: str | None) -> str:
    section, _, rest = name.partition(".")
    subsection, _, key = rest.rpartition(".")
    head = f'[{section} "{_escape(subsection)}"]' if subsection else f"[{section}]"
    if value is None:
        return f"{head}\n\t{key}\n"
    text = _escape(value).replace("\n", "\\n").replace("\t", "\\t").replace("\b", "\\b")
    return f'{head}\n\t{key} = "{text}"\n'


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')

"""Tells which of a repository's shared settings changed while a task ran, between its PREPARE and its RELEASE.

Our own git does not read them (see `fence`), but the user's does.  Which task changed them is not known: tasks run
beside each other, and beside the user.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import orjson

from sessionrun.model.places import Repository
from sessionrun.store.files import read_regular, replace_file
from sessionrun.workspaces.freezing import compare, fingerprint
from sessionrun.workspaces.git import CANNOT_RUN, Git, GitError
from sessionrun.workspaces.request import CHANGED, Changed

SETTINGS: Final = "git-settings.json"
"""File in the folder of a PREPARE job: a digest for each setting, as it was then."""

_LIMIT_BYTES: Final = 4 << 20
_MOST_NAMED: Final = 100


def note_settings(repository: Repository, folder: Path, git: Git) -> None:
    """Note the settings before the task begins; what cannot be read is not compared later.

    Raises:
        OSError: the folder cannot be written.
    """
    path = folder / SETTINGS
    if path.exists():
        return  # an earlier start of this job noted them
    try:
        replace_file(path, orjson.dumps(fingerprint(Path(repository.common_dir), git)), durable=False)
    except GitError:
        pass


def tell_changed(repository: Repository, folder: Path, git: Git) -> tuple[str, ...]:
    """Do `find_changed`, and note the result in `folder` in case the RELEASE fails afterwards."""
    changed = find_changed(repository, folder, git)
    if changed:
        try:
            replace_file(folder / CHANGED, orjson.dumps(Changed(changed)), durable=False)
        except OSError:
            pass  # saving the work matters more
    return changed


def find_changed(repository: Repository, folder: Path, git: Git) -> tuple[str, ...]:
    """The names of the settings that changed since the PREPARE of the attempt whose RELEASE has `folder`.

    It is empty also if nothing was noted then, or if git cannot be run now.
    """
    attempt = folder.name.partition("-")[0]
    notes = [_load(job / SETTINGS) for job in sorted(folder.parent.glob(f"{attempt}-*-prepare*"))]
    before = next((note for note in notes if note is not None), None)
    if before is None:
        return ()
    try:
        changed = compare(before, fingerprint(Path(repository.common_dir), git))
    except GitError as error:
        return () if error.code == CANNOT_RUN else ("config",)
    except OSError:
        return ("config",)  # it can no longer be read
    more = len(changed) - _MOST_NAMED
    return (*changed[:_MOST_NAMED], f"and {more} more") if more > 0 else changed


def _load(path: Path) -> dict[str, str] | None:
    try:
        record: Any = orjson.loads(read_regular(path, _LIMIT_BYTES))
    except (OSError, ValueError):
        return None
    sound = isinstance(record, dict) and all(isinstance(value, str) for value in record.values())
    return record if sound else None

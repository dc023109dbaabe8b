"""Where the files of exports are: settled at launch, links followed; see `outside`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from sessionrun.model.spec import Export
from sessionrun.store import locks
from sessionrun.store.files import find_beside, remove_left

_PATHS: Final = ("results_file", "outputs_dir", "runs_dir", "path")
"""The settings of an export that say where its files are."""


def settle_exports(exports: Sequence[Export]) -> tuple[Export, ...]:
    """The exports with the places of their files, links followed: a launch does this once, and it stays so."""
    return tuple(_settle(export) for export in exports)


def _settle(export: Export) -> Export:
    if export.places:
        return export
    named = {key: export.settings.get(key) for key in _PATHS}
    places = {key: os.path.realpath(path) for key, path in named.items() if isinstance(path, str)}
    return replace(export, places=places)


def list_places(export: Export) -> list[str]:
    """Where all files of an export are."""
    return list(_settle(export).places.values())


def find_place(export: Export, key: str) -> str:
    """Where a file of an export is; before its launch has settled that, where it would be."""
    return _settle(export).places[key]


def find_left(exports: Iterable[Export]) -> list[Path]:
    """What writers that died have left beside the files of exports, and beside the files in their directories."""
    left: dict[Path, None] = {}
    for place in (Path(place) for export in exports for place in list_places(export)):
        left |= {place.parent / name: None for name in find_beside(place.parent, (place.name,))}
        if place.is_dir():
            left |= {place / name: None for name in find_beside(place, os.listdir(place))}
    return list(left)


def sweep_left(exports: Iterable[Export]) -> None:
    """Remove what writers that died have left there, and their locks."""
    exports = list(exports)
    for path in find_left(exports):
        with suppress(OSError):
            remove_left(path)
    for place in (Path(place) for export in exports for place in list_places(export)):
        for beside in (place, *(place / name for name in (os.listdir(place) if place.is_dir() else ()))):
            locks.remove_free(beside.with_name(f".{beside.name}.lock"))

"""Where the files of views are: settled at launch, links followed; see `outside`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sessionrun.model.spec import View

_PATHS: Final = ("results_file", "outputs_dir", "path")
"""The settings of a view that say where its files are."""


def settle_views(views: Sequence[View]) -> tuple[View, ...]:
    """The views with the places of their files, links followed: a launch does this once, and it stays so."""
    return tuple(_settle(view) for view in views)


def _settle(view: View) -> View:
    if "places" in view.settings:
        return view
    places = {key: os.path.realpath(view.settings[key]) for key in _PATHS if key in view.settings}
    return replace(view, settings={**view.settings, "places": places})


def find_place(view: View, key: str) -> str:
    """Where a file of a view is; before its launch has settled that, where it would be."""
    place: str = _settle(view).settings["places"][key]
    return place

"""What sessions recorded still folds to the same status.json."""

from __future__ import annotations

import orjson
import pytest

from house.journals import KEPT, RECIPES, fold


def test_each_recipe_is_kept() -> None:
    assert {path.name for path in KEPT.iterdir()} == set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recorded_journal_folds_to_the_same_status(name: str) -> None:
    assert fold(KEPT / name) == orjson.loads((KEPT / name / "folded.json").read_bytes())

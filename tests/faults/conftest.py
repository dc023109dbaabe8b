"""What the tests of this package share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from warm import Warm

from .place import Place, make_place


@pytest.fixture(autouse=True, scope="session")
def warm_places(warm: Warm) -> None:
    """Our commands need no new interpreter in the tests."""
    if not sys.platform.startswith("linux"):
        pytest.skip("looks for processes in /proc")
    Place.warm = warm


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A place of the test's own; what was started there is ended with it."""
    with make_place(tmp_path) as made:
        yield made

"""The budget of the whole: no room, nor all of them, nor tests and pages grow beyond what they may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from house.budget import (
    PACKAGE_BUDGET,
    PAGES_LINES,
    ROOMS,
    TESTS_LINES,
    Size,
    add_up,
    count_lines,
    find_pages,
    find_tests,
    measure_rooms,
)


@pytest.mark.check
def test_each_room_keeps_its_budget() -> None:
    sizes = measure_rooms()
    assert set(sizes) == set(ROOMS)
    over = {name: (size, ROOMS[name]) for name, size in sizes.items() if is_over(size, ROOMS[name])}
    assert not over, "(modules, lines, lines of code), and what the room may have"


@pytest.mark.check
def test_the_whole_keeps_its_budget() -> None:
    assert not is_over(add_up(measure_rooms().values()), PACKAGE_BUDGET)
    assert count_lines(find_tests()) <= TESTS_LINES
    assert count_lines(find_pages()) <= PAGES_LINES


def is_over(size: Size, budget: Size) -> bool:
    return any(count > most for count, most in zip(size, budget, strict=True))


def test_what_counts_as_code(tmp_path: Path) -> None:
    from house.budget import measure

    module = tmp_path / "module.py"
    lines = ('"""Text."""', "", "import os", "", "# why", "x = (", "    1,", "", "    2,", ")", "", "", "def f():")
    module.write_text("\n".join((*lines, '    """Text."""', "    return 3", "")))
    assert measure([module]) == Size(1, 15, 6)

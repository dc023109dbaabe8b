"""The table of the house: each business, and what it adds to the core.

Plain names of modules, so that reading the table imports nothing.  A core room knows no business: at seven places,
the seams, it reads this table and imports what the rows name when it is used.  Which modules may read it stands in
`tests/house/test_rooms.py`.  A business that is taken out of the table, with its folder, leaves a program that does
everything else.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Business(NamedTuple):
    """What a business adds; names of modules stand below `sessionrun`.

    Attributes:
        name: of the business, and of its room.
        rules: the module with its `RULES` for the engine (see `engine.rules`), called in the order of this table.
        asked: the key of the spec that is set in a session which has the business; others do without its rules.
    """

    name: str
    rules: str = ""
    asked: str = ""


HOUSE: Final[tuple[Business, ...]] = (
    Business("walls"),
    Business("worktrees"),
    Business("checks"),
    Business("landing", rules="landing.rules", asked="landing"),
    Business("queue"),
    Business("cluster", rules="cluster.rules", asked="cluster"),
)

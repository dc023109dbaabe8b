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
        findings: the module whose `FINDINGS` say what `doctor`, `clean` and `explain` find of it.
        views: what a reader adds to the tasks that it shows: a folder in the directory of a session which has
            something to add, and the function that adds it.
        outputs: the module whose `OUTPUTS` are the shapes of what its verbs print as JSON.
    """

    name: str
    findings: str = ""
    views: tuple[str, str] | None = None
    outputs: str = ""


HOUSE: Final[tuple[Business, ...]] = (
    Business("walls", findings="walls.findings"),
    Business("worktrees", findings="workspaces.findings", outputs="workspaces.outputs"),
    Business("checks"),
    Business(
        "landing",
        findings="landing.findings",
        views=("landing", "client.reading.landed:add_landings"),
        outputs="landing.outputs",
    ),
    Business("queue", findings="queue.findings", outputs="queue.outputs"),
    Business("cluster", findings="cluster.findings", outputs="cluster.outputs"),
)

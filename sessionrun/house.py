"""The table of the house: each business, and what it adds to the core.

Plain names of modules, so that reading the table imports nothing.  A core room knows no business: at the seams it
reads this table and imports what the rows name, when it is used.  Which modules may read it stands in
`tests/house/test_rooms.py`.  A business that is taken out of the table, with its folder, leaves a program that
does everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple


class Business(NamedTuple):
    """What a business adds; names of modules stand below `sessionrun`, of functions as ``MODULE:FUNCTION``.

    Attributes:
        name: of the business, and of its room.
        rules: the module with its `RULES` for the engine (see `engine.rules`), called in the order of this table.
        asked: the key of the spec that is set in a session which has the business; others do without its rules.
        partners: the function that opens what stands beside the supervisor of a session; `runtime.main` reads it,
            row by row: each gets what those before it have opened, see `runtime.partners`.
        exports: by the kind of an export the function that opens it, as an `ExportFile`; read by
            `runtime.exports.writer`.
        trial: the function that gets a spec and raises InputError if its session cannot be started again on this
            machine; `runtime.launch` reads it.
        findings: the module whose `FINDINGS` say what `doctor`, `clean` and `explain` find of it.
        views: what a reader adds to the tasks that it shows: a folder in the directory of a session which has
            something to add, and the function that adds it.
        outputs: the module whose `OUTPUTS` are the shapes of what its verbs print as JSON.
    """

    name: str
    rules: str = ""
    asked: str = ""
    partners: str = ""
    exports: Mapping[str, str] = {}
    trial: str = ""
    findings: str = ""
    views: tuple[str, str] | None = None
    outputs: str = ""


HOUSE: Final[tuple[Business, ...]] = (
    Business(
        "walls", partners="runtime.disk:open_partners", trial="walls.trial:check_spec", findings="walls.findings"
    ),
    Business("worktrees", findings="workspaces.findings", outputs="workspaces.outputs"),
    Business("checks", exports={"swebench-results": "runtime.exports.swebench_results:open_results"}),
    Business(
        "landing",
        rules="landing.rules",
        asked="landing",
        findings="landing.findings",
        views=("landing", "client.reading.landed:add_landings"),
        outputs="landing.outputs",
    ),
    Business(
        "queue",
        partners="runtime.feeding.partners:open_partners",
        findings="queue.findings",
        outputs="queue.outputs",
    ),
    Business(
        "cluster",
        rules="cluster.rules",
        asked="cluster",
        partners="runtime.clusters:open_partners",
        findings="cluster.findings",
        outputs="cluster.outputs",
    ),
)


def load(name: str) -> Any:
    """What a row names as ``MODULE:FUNCTION``: its module is imported now."""
    module, _, function = name.partition(":")
    return getattr(import_module(f"sessionrun.{module}"), function)

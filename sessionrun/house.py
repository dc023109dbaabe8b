"""The table of the house: each business, and what it adds to the core.

Plain names of modules, so that reading the table imports nothing.  A core room knows no business: at the seams it
reads this table and imports what the rows name, when it is used.  Which modules may read it stands in
`tests/house/test_rooms.py`.  A business that is taken out of the table, with its folder, leaves a program that does
everything else.
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
    """

    name: str
    rules: str = ""
    asked: str = ""
    partners: str = ""
    exports: Mapping[str, str] = {}
    trial: str = ""


HOUSE: Final[tuple[Business, ...]] = (
    Business("walls", partners="runtime.disk:open_partners", trial="walls.trial:check_spec"),
    Business("worktrees"),
    Business("checks", exports={"swebench-results": "runtime.exports.swebench_results:open_results"}),
    Business("landing", rules="landing.rules", asked="landing"),
    Business("queue", partners="runtime.feeding.partners:open_partners"),
    Business("cluster", rules="cluster.rules", asked="cluster", partners="runtime.clusters:open_partners"),
)


def load(name: str) -> Any:
    """What a row names as ``MODULE:FUNCTION``: its module is imported now."""
    module, _, function = name.partition(":")
    return getattr(import_module(f"sessionrun.{module}"), function)

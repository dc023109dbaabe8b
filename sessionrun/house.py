"""The table of the house: each business, and what it adds to the core.

Plain names of modules, so that reading the table imports nothing.  A core room knows no business: at seven places,
the seams, it reads this table and imports what the rows name when it is used.  Which modules may read it stands in
`tests/house/test_rooms.py`.  A business that is taken out of the table, with its folder, leaves a program that does
everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple


class Business(NamedTuple):
    """What a business adds; names of modules stand below `sessionrun`.

    Attributes:
        name: of the business, and of its room.
        partners: "module:function" that opens what stands beside the supervisor of a session; `runtime.main` reads
            it, row by row: each function gets what those before it have opened, see `runtime.partners`.
        exports: "module:function" by the kind of an export that it opens, as an `ExportFile`; read by
            `runtime.exports.writer`.
        trial: "module:function" that gets a spec and raises InputError if its session cannot be started again on
            this machine; `runtime.launch` reads it.
    """

    name: str
    partners: str = ""
    exports: Mapping[str, str] = {}
    trial: str = ""


HOUSE: Final[tuple[Business, ...]] = (
    Business("walls", partners="runtime.disk:open_partners", trial="walls.trial:check_spec"),
    Business("worktrees"),
    Business("checks", exports={"swebench-results": "runtime.exports.swebench_results:open_results"}),
    Business("landing"),
    Business("queue", partners="runtime.feeding.partners:open_partners"),
    Business("cluster", partners="runtime.clusters:open_partners"),
)


def load(name: str) -> Any:
    """What a row names as "module:function": its module is imported now."""
    module, _, function = name.partition(":")
    return getattr(import_module(f"sessionrun.{module}"), function)

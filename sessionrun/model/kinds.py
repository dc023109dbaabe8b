"""What a value is beyond its type, said where its field stands: `store.codec` refuses any other.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, TypeAlias

from sessionrun.model.keys import describe_id_problem
from sessionrun.model.units import END_OF_TIME, MAX_DURATION_S, is_time

MAX_MONEY: Final = 10**9
"""US dollars; more is a slip of the pen."""

TaskId: TypeAlias = Annotated[str, lambda text: describe_id_problem(text) is None]
FileName: TypeAlias = Annotated[str, lambda text: not {"/", "\0"} & set(text) and text not in ("", ".", "..")]
"""Of a file within one directory."""

PathText: TypeAlias = Annotated[str, lambda text: "\0" not in text]
"""A text that the system takes as a path, or as a word of a command line."""

Time: TypeAlias = Annotated[str, is_time]
Moment: TypeAlias = Annotated[float, lambda at: 0 <= at < END_OF_TIME]
"""A time in seconds since the epoch."""

Seconds: TypeAlias = Annotated[float, lambda seconds: 0 <= seconds <= MAX_DURATION_S]
"""A time span that clocks and timers can count; a field with the ending `_s` has it by itself."""

Money: TypeAlias = Annotated[float, lambda dollars: 0 <= dollars <= MAX_MONEY]
"""US dollars that can be added up; a field with the ending `_usd` has it by itself."""

Count: TypeAlias = Annotated[int, lambda number: number >= 0]
Amount: TypeAlias = Annotated[int, lambda number: number >= 1]
DiffStat: TypeAlias = Annotated[
    Mapping[str, Count], lambda counts: {"files", "insertions", "deletions"} <= counts.keys()
]

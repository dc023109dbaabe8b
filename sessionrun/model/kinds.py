"""What a value is beyond its type, said where its field stands: `store.codec` refuses any other.  Pure."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias, TypedDict

from sessionrun.model.keys import GOOD_ID
from sessionrun.model.units import MAX_DURATION_S
from sessionrun.model.words import END_OF_TIME

try:
    from msgspec import Meta
except ImportError:  # what runs around a job at Slurm has no library, and reads no record
    from types import SimpleNamespace as Meta  # type: ignore[assignment]

MAX_MONEY: Final = 10**9
"""US dollars; more is a slip of the pen."""

TaskId: TypeAlias = Annotated[str, Meta(pattern=GOOD_ID)]
FileName: TypeAlias = Annotated[str, Meta(pattern=r"\A(?!\.{1,2}\Z)[^/\0]+\Z")]
"""Of a file within one directory."""

PathText: TypeAlias = Annotated[str, Meta(pattern=r"\A[^\0]*\Z")]
"""A text that the system takes as a path, or as a word of a command line."""

Time: TypeAlias = Annotated[str, Meta(description="see `words.is_time`")]
Moment: TypeAlias = Annotated[float, Meta(ge=0, lt=END_OF_TIME)]
"""A time in seconds since the epoch."""

Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=MAX_DURATION_S)]
"""A time span that clocks and timers can count."""

Money: TypeAlias = Annotated[float, Meta(ge=0, le=MAX_MONEY)]
"""US dollars that can be added up."""

Count: TypeAlias = Annotated[int, Meta(ge=0)]
Amount: TypeAlias = Annotated[int, Meta(ge=1)]


class DiffStat(TypedDict):
    """How much changed; lines of binary files do not count, and a renamed file counts once."""

    files: Count
    insertions: Count
    deletions: Count

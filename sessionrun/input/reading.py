"""One input while it is read: where a value stands, how a problem with it is told, which keys were not known.

Must not know any dialect or file format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from sessionrun.input.fields import NOTE, Field, read_fields, render_path, suggest
from sessionrun.input.kinds import Misfit, Path
from sessionrun.model.errors import InputError

_MAX_WARNINGS: Final = 20


class Spot(NamedTuple):
    """A value's place: the path to it, inside the given line where the input goes line by line."""

    path: Path = ()
    line: int | None = None

    def under(self, path: Path) -> Spot:
        """The place of what lies below, by its path from here."""
        return Spot(self.path + path, self.line)

    def text(self) -> str:
        """The place for people."""
        line = f"line {self.line}" if self.line is not None else ""
        return ": ".join(filter(None, (line, render_path(self.path))))


class Reading:
    """Reads records of one input, named `name` in messages, and collects unknown keys on the way."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._unknown: dict[Path, list[Spot]] = {}
        self._hints: dict[Path, str] = {}

    def read(
        self,
        spot: Spot,
        record: Mapping[str, Any],
        table: Mapping[str, Field],
        elsewhere: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Convert the fields of one record by a literal table.

        `elsewhere` says of keys that another record has where they belong.

        Raises:
            InputError: the first value that does not fit.
        """
        unknown: list[Path] = []
        try:
            values = read_fields(record, table, unknown)
        except Misfit as misfit:
            raise self.error(spot, misfit) from None
        for path in unknown:
            if path not in self._unknown and len(self._hints) < _MAX_WARNINGS:
                self._hints[path] = _hint(path, table, elsewhere or {})
            self._unknown.setdefault(path, []).append(spot.under(path))
        return values

    def error(self, spot: Spot, misfit: Misfit) -> InputError:
        """The error that tells a misfit and its place in one line."""
        place = spot.under(misfit.path).text()
        return InputError(": ".join(filter(None, (self._name, place, misfit.problem))))

    def refuse_unknown(self) -> None:
        """Refuse unknown keys, in a format where each of them is a mistake.

        Raises:
            InputError: the first of them, with the key that may be meant.
        """
        for path, hint in self._hints.items():
            mend = f'correct it, leave it out, or begin it with "{NOTE}" to keep it as a note'
            others = len(self._unknown) - 1
            more = f" ({others} other unknown key{'s' * (others != 1)})" if others else ""
            raise InputError(f"{self._tell_unknown(path)}{hint}: {mend}{more}")

    def warnings(self) -> Iterator[str]:
        """One line for each unknown key, however many records have it, and not too many lines."""
        for path, hint in self._hints.items():
            yield f"{self._tell_unknown(path)}, ignored{hint}"
        if len(self._unknown) > len(self._hints):
            yield f"{self._name}: {len(self._unknown) - len(self._hints)} more unknown keys, ignored"

    def _tell_unknown(self, path: Path) -> str:
        spots = self._unknown[path]
        more = f" and {len(spots) - 1} more like it" if len(spots) > 1 else ""
        return f"{self._name}: unknown key {spots[0].text()}{more}"


def _hint(path: Path, table: Mapping[str, Field], elsewhere: Mapping[str, str]) -> str:
    if len(path) > 1:
        return suggest(str(path[-1]), table[str(path[0])].inner)
    key = str(path[0])
    hint = "" if key in elsewhere else suggest(key, [*table, *elsewhere])
    place = next((place for other, place in elsewhere.items() if other == key or f'"{other}"' in hint), None)
    if place is None or any(f'"{known}"' in hint for known in table):
        return hint
    return f"{hint[:-1]} {place})" if hint else f" ({place})"

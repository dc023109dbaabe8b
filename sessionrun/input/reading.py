"""Records of foreign input while they are read: their fields, where a value stands, how a problem is told.

A table says which fields a record may have; keys that it does not know are collected.  Must not know any table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple, cast

from sessionrun.house import describe_lack
from sessionrun.input.kinds import Kind, Misfit, Path, T, as_record, reference
from sessionrun.input.text import plain, quote
from sessionrun.model.errors import InputError, suggest

NOTE: Final = "x-"
"""How keys begin that are the user's own notes: they mean nothing, in any record."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class Field(NamedTuple):
    """`name` is the model's name for it; several spellings may share one.  A kind or a function reads it."""

    name: str
    convert: Any

    @property
    def inner(self) -> Mapping[str, Field]:
        """The fields of its value, where that may be an object of its own."""
        return getattr(self.convert, "table", {})


def table(**kinds: Callable[[Any], Any]) -> dict[str, Field]:
    """Fields by their names in the model; one of seconds, NAME_s, may be written NAME, too."""
    fields = {name: Field(name, kind) for name, kind in kinds.items()}
    return {key: field for name, field in fields.items() for key in dict.fromkeys((name.removesuffix("_s"), name))}


def record(
    name: str,
    make: Callable[..., T],
    known: Mapping[str, Field],
    word: Kind[Any] | None = None,
    *,
    begin: str = "",
    needs: bool = False,
) -> Kind[T]:
    """An object of these fields, or what stands for one: a `word`, or the value of the field `begin` alone.

    `name` is that of its schema; with `needs` the object must have that field, which is one of a few words.
    """
    if begin:
        word = known[begin].convert.then(lambda value: make(**{begin: value}))

    def read(value: Any) -> T:
        if word is not None and not isinstance(value, Mapping):
            return cast(T, word(value))
        values, _ = read_fields(as_record(value), known)  # `Field.inner` shows the keys that are not known
        if needs and begin not in values:
            raise Misfit(f'needs "{begin}": {" or ".join(known[begin].convert.schema["enum"])}')
        return make(**values)

    words = [] if word is None else word.schema.get("anyOf", [word.schema])
    return Kind(read, {"anyOf": [*words, reference(name)]} if words else reference(name), name, known)


def of_business(business: str, kind: Kind[T]) -> Kind[T]:
    """The kind; where the business was taken out, one that refuses all but False, which asks for nothing."""
    lack = describe_lack(business)

    def refuse(value: Any) -> T:
        if value is not False:
            raise Misfit(lack)
        return kind(value)

    return Kind(refuse, {"const": False}) if lack else kind


def read_fields(record: Mapping[str, Any], table: Mapping[str, Field]) -> tuple[dict[str, Any], list[Path]]:
    """Convert the fields of one object; null counts as not written.

    Also the paths of keys that the table does not know, here and one level down; notes are passed over.

    Raises:
        Misfit: the first value that does not fit, or two spellings of one field.
    """
    values: dict[str, Any] = {}
    unknown: list[Path] = []
    for key, value in record.items():
        field = table.get(key)
        if field is None:
            if not key.startswith(NOTE):
                unknown.append((key,))
        elif value is not None:
            if field.name in values:
                twin = next(other for other in record if other in table and table[other].name == field.name)
                raise Misfit(f"{twin} and {key} mean the same; keep one")
            try:
                values[field.name] = field.convert(value)
            except Misfit as misfit:
                raise misfit.within(key) from None
            if type(value) is dict and (known := field.inner):
                unknown += [(key, inner) for inner in value if inner not in known and not inner.startswith(NOTE)]
    if "rounds" in table and "check" in table:
        # the rounds and the proof that are asked for in the check are those of the task, or of the defaults
        check = record["check"] if isinstance(record.get("check"), Mapping) else {}
        rounds, asked = check.get("rounds"), check.get("prove")
        if rounds is not None and (beside := values.setdefault("rounds", rounds)) != rounds:
            raise Misfit(f'is {rounds}, but "rounds" beside the check is {beside}; keep one', "check", "rounds")
        if asked is not None:
            prove = table["check"].inner["prove"].convert(asked)
            if values.setdefault("prove", prove) != prove:
                raise Misfit('and "prove" beside the check do not say the same; keep one', "check", "prove")
    return values, unknown


def read_known(record: Mapping[str, Any], table: Mapping[str, Field]) -> dict[str, Any]:
    """The same where no other key may stand; Misfit for one that does."""
    values, unknown = read_fields(record, table)
    if unknown:
        raise Misfit(f"unknown key{suggest(str(unknown[0][-1]), table)}", *unknown[0])
    return values


# --- one input ---

_MAX_WARNINGS: Final = 20
"""So many unknown keys are told: to guess which one is meant is slow."""


class Spot(NamedTuple):
    """A value's place: the path to it, inside the given line where the input goes line by line."""

    path: Path = ()
    line: int | None = None

    def under(self, path: Path) -> Spot:
        """The place of what lies below, by its path from here."""
        return Spot(self.path + path, self.line)

    def text(self) -> str:
        """The place as people spell it: ``line 3: prompts[2].env["a b"]``."""
        line, path = f"line {self.line}" if self.line is not None else "", ""
        for step in self.path:
            if isinstance(step, int):
                path += f"[{step}]"
            elif _NAME.fullmatch(step) and len(step) <= 60:
                path += f".{step}" if path else step
            else:
                path += f"[{quote(step)}]"
        return ": ".join(filter(None, (line, path)))


class Reading:
    """Reads records of one input, named `name` in messages, and collects unknown keys on the way."""

    def __init__(self, name: str) -> None:
        self._name = plain(name)
        self._unknown: dict[Path, tuple[Spot, Mapping[str, Field], Mapping[str, str]]] = {}

    def read(
        self,
        spot: Spot,
        record: Any,
        table: Mapping[str, Field],
        elsewhere: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Convert the fields of one record by a literal table.

        `elsewhere` says of keys that another record has where they belong.

        Raises:
            InputError: it is no object, or the first value that does not fit.
        """
        try:
            values, unknown = read_fields(as_record(record), table)
        except Misfit as misfit:
            raise self.error(spot, misfit) from None
        for path in unknown:
            self._unknown.setdefault(path, (spot.under(path), table, elsewhere or {}))
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
        for where, hint in self._tell_unknown():
            mend = f'correct it, leave it out, or begin it with "{NOTE}" to keep it as a note'
            raise InputError(f"{where}{hint}: {mend}")

    def warnings(self) -> Iterator[str]:
        """One line for each unknown key, however many records have it, and not too many lines."""
        for where, hint in islice(self._tell_unknown(), _MAX_WARNINGS):
            yield f"{where}, ignored{hint}"
        if len(self._unknown) > _MAX_WARNINGS:
            yield f"{self._name}: {len(self._unknown) - _MAX_WARNINGS} more unknown keys, ignored"

    def _tell_unknown(self) -> Iterator[tuple[str, str]]:
        """Where each unknown key stands for the first time, and which key may be meant."""
        for path, (spot, table, elsewhere) in self._unknown.items():
            yield f"{self._name}: unknown key {spot.text()}", _hint(path, table, elsewhere)


def _hint(path: Path, table: Mapping[str, Field], elsewhere: Mapping[str, str]) -> str:
    if len(path) > 1:
        return suggest(str(path[-1]), table[str(path[0])].inner)
    key = str(path[0])
    hint = "" if key in elsewhere else suggest(key, [*table, *elsewhere])
    place = next((place for other, place in elsewhere.items() if other == key or f'"{other}"' in hint), None)
    if place is None or any(f'"{known}"' in hint for known in table):
        return hint
    return f"{hint[:-1]} {place})" if hint else f" ({place})"

"""`@frozen` and `@changeable`: records as ``dataclass`` makes them, for a tenth of the time at import.

`dataclass` compiles up to six functions for each class when its module is imported; a command uses few of the
hundred classes.  Here classes share what they can, and `__init__` is compiled when the first record of a class is
made.  `dataclasses.fields`, `dataclasses.replace` and `orjson` take the records for dataclasses.

This module must not know any record.
"""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        """Mean something to type checkers alone."""
        return lambda decorator: decorator


_Class = TypeVar("_Class", bound=type)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: _Class) -> _Class:
    """Make a class of frozen records: its annotated names are the fields, in their order."""
    made: Any = dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    made.__init__, made.__repr__ = _compile_and_init, _repr
    made.__eq__, made.__hash__ = _eq, _hash
    made.__setattr__ = made.__delattr__ = _refuse
    made.__getstate__, made.__setstate__ = _values, _restore
    return made  # type: ignore[no-any-return]


@dataclass_transform(field_specifiers=(field,))
def changeable(cls: _Class) -> _Class:
    """Make a class of records that may change, as ``@dataclass(slots=True)`` does."""
    made: Any = dataclass(init=False, repr=False, slots=True)(cls)
    made.__init__, made.__repr__ = _compile_and_init, _repr
    return made  # type: ignore[no-any-return]


def _compile_and_init(self: Any, *args: Any, **kwargs: Any) -> None:
    """Stand for `__init__` until the first record of a class is made."""
    cls: Any = type(self)
    store = "self.{0} = {1}" if cls.__setattr__ is object.__setattr__ else "_set(self, {0!r}, {1})"
    known: dict[str, Any] = {"_set": object.__setattr__, "_missing": MISSING}
    parameters, lines = ["self"], []
    for member in fields(cls):
        name = value = member.name
        if member.default is not MISSING:
            known[f"_default_{name}"] = member.default
            name += f"=_default_{name}"
        elif member.default_factory is not MISSING:
            known[f"_make_{name}"] = member.default_factory
            value = f"_make_{name}() if {name} is _missing else {name}"
            name += "=_missing"
        parameters.append(name)
        lines.append(f" {store.format(member.name, value)}\n")
    exec(f"def __init__({', '.join(parameters)}):\n{''.join(lines) or ' pass'}", known)
    cls.__init__ = known["__init__"]
    cls.__init__.__qualname__ = f"{cls.__qualname__}.__init__"  # what the message of a wrong call begins with
    cls.__init__(self, *args, **kwargs)


def _values(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, name) for name in self.__match_args__])


def _restore(self: Any, state: tuple[Any, ...]) -> None:
    for name, value in zip(self.__match_args__, state, strict=True):
        object.__setattr__(self, name, value)


def _repr(self: Any) -> str:
    shown = ", ".join([f"{name}={getattr(self, name)!r}" for name in self.__match_args__])
    return f"{type(self).__qualname__}({shown})"


def _eq(self: Any, other: object) -> Any:
    return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _refuse(self: Any, name: str, *value: object) -> None:
    raise FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")

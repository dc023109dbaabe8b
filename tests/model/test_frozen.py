"""`frozen` makes what ``dataclass(frozen=True, slots=True)`` makes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from typing import Any

import orjson
import pytest

from sessionrun.model.frozen import changeable, frozen


def define() -> Any:
    """A class with all kinds of fields, and a property, before it is made one of records."""

    class Point:
        x: int
        y: int = 2
        names: tuple[str, ...] = ()
        more: Mapping[str, int] = field(default_factory=dict)

        @property
        def total(self) -> int:
            return self.x + self.y

    Point.__qualname__ = "Point"  # so it can be pickled
    return Point


Point, Model = frozen(define()), dataclass(frozen=True, slots=True)(define())


ARGUMENTS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((1, 3), {}),
    ((1, 3, ("a",), {"b": 1}), {}),
    ((), {"names": ("a",), "x": 1}),
    ((), {}),
    ((1, 2, (), {}, 5), {}),
    ((1,), {"x": 1}),
    ((1,), {"z": 1}),
]


@pytest.mark.parametrize(("args", "kwargs"), ARGUMENTS)
def test_a_record_is_made_from_the_same_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    def make(cls: Any) -> tuple[str, bytes]:
        try:
            record = cls(*args, **kwargs)
        except TypeError as error:
            return str(error).partition(".")[2], b""
        return repr(record).partition("(")[2], orjson.dumps(record)

    assert make(Point) == make(Model)
    assert make(Point) == make(Model)  # the first call compiles `__init__`, the second uses it


def test_records_compare_by_class_and_values() -> None:
    assert Point(1) == Point(1, 2)
    assert Point(1) != Point(2)
    assert Point(1) != Model(1)
    assert Point(1).more == {} and Point(1).more is not Point(1).more
    assert hash(Point(1, more=frozenset())) == hash(Model(1, more=frozenset()))
    with pytest.raises(TypeError):
        hash(Point(1))  # a dict has no hash


def test_a_record_cannot_be_changed() -> None:
    point = Point(1)
    for name in ("x", "z"):
        with pytest.raises(FrozenInstanceError):
            setattr(point, name, 2)
    with pytest.raises(FrozenInstanceError):
        del point.x
    assert not hasattr(point, "__dict__")
    assert point.total == 3


def test_the_library_takes_a_record_for_a_dataclass() -> None:
    assert [one.name for one in fields(Point)] == [one.name for one in fields(Model)]
    assert replace(Point(1), y=5) == Point(1, 5)
    assert copy.deepcopy(Point(1)) == Point(1)
    assert pickle.loads(pickle.dumps(Point(1))) == Point(1)
    match Point(1, 7):
        case Point(x, y):
            assert (x, y) == (1, 7)


@changeable
class Counter:
    """A record that may change."""

    name: str
    count: int = 0
    seen: list[int] = field(default_factory=list)
    index: list[int] = field(default_factory=list, compare=False)


def test_a_record_may_change_and_is_compared_by_what_counts() -> None:
    one, other = Counter("a"), Counter("a", index=[1])
    assert one == other
    one.count += 1
    one.seen.append(1)
    assert (one.count, one.seen, other.seen) == (1, [1], [])
    assert one != other
    assert repr(other) == "Counter(name='a', count=0, seen=[], index=[1])"
    assert not hasattr(one, "__dict__")
    with pytest.raises(TypeError):
        hash(one)

"""Makes HTML and SVG of names and values.  All text is escaped here; only what is made here counts as markup.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Final

_NOT_SHOWN: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]"
)
"""Control characters, and those that turn the direction of what follows."""

EMPTY: Final = ("br", "meta", "rect", "line", "col")
"""Elements without an end, or that may end at once."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Part = str | Iterable["Part"] | None


def tag(element: str, *parts: Part, **attributes: object) -> Markup:
    """An element with attributes and parts; a `_` at the end of a name is dropped, others become `-`."""
    names = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items())
    given = "".join(f' {name}="{text(str(value))}"' for name, value in names if value is not None)
    if element in EMPTY and not parts:
        return Markup(f"<{element}{given}/>")
    return Markup(f"<{element}{given}>{join(parts)}</{element}>")


def table(heads: Iterable[Part], rows: Iterable[Iterable[Part]]) -> Markup:
    """A table with a line of heads over its columns."""
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in heads)))
    return tag("table", head, tag("tbody", *(tag("tr", *(tag("td", cell) for cell in row)) for row in rows)))


def facts(rows: Iterable[tuple[str, Part]]) -> Markup:
    """A table of names and what stands behind each."""
    named = (tag("tr", tag("th", name, scope="row"), tag("td", part)) for name, part in rows)
    return tag("table", tag("tbody", *named))


def drawing(label: str, width: float, height: float, parts: Iterable[Part]) -> Markup:
    """An SVG image that says what it shows."""
    size = {"viewBox": f"0 0 {width} {height}", "width": width}
    return tag("svg", tag("title", label), join(parts), role="img", aria_label=label, **size)


def join(parts: Iterable[Part]) -> Markup:
    """Parts behind each other; text among them is escaped."""
    return Markup("".join(_spell(part) for part in parts))


def text(value: str) -> Markup:
    """Text as HTML shows it: nothing in it is markup, and characters that are not seen are written out."""
    return Markup(escape(_NOT_SHOWN.sub(lambda found: f"\\u{ord(found[0]):04x}", value), quote=True))


def _spell(part: Part) -> str:
    if part is None:
        return ""
    if isinstance(part, Markup):
        return part
    return text(part) if isinstance(part, str) else join(part)

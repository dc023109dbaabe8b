"""Makes HTML and SVG of names and values.  All text is escaped here; only what is made here counts as markup.

Pure.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from functools import cache
from html import escape
from importlib.resources import files
from typing import Final

_NOT_SHOWN: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]"
)
"""Control characters, and those that turn the direction of what follows."""

EMPTY: Final = ("br", "meta", "rect", "line", "col")
"""Elements without an end, or that may end at once."""

ENDED_BY_NEXT: Final = ("td", "th", "tr")
"""Elements whose end need not be written: of thousands of rows it would be a sixth of the page."""


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
    end = "" if element in ENDED_BY_NEXT else f"</{element}>"
    return Markup(f"<{element}{given}>{join(parts)}{end}")


NUMBERS: Final = frozenset(("#", "Tries", "Time", "Changed", "Cost"))
"""Heads of columns whose cells stand to the right."""


def make_head(heads: Iterable[Part]) -> Markup:
    return tag("thead", tag("tr", *(tag("th", name, scope="col") for name in heads)))


def table(heads: Iterable[Part], rows: Iterable[Part], **attributes: object) -> Markup:
    """A table with a line of heads over its columns, and rows as they are."""
    return tag("table", make_head(heads), tag("tbody", *rows), **attributes)


def cells(parts: Iterable[Part], head: Markup | None = None, **attributes: object) -> Markup:
    """A row of plain cells, perhaps behind a head."""
    return tag("tr", head, *(tag("td", part) for part in parts), **attributes)


def picture(*parts: Part, **attributes: object) -> Markup:
    """A drawing that says nothing that is not said beside it."""
    return tag("svg", *parts, **attributes, aria_hidden="true")


def tell_command(words: str, **attributes: object) -> Markup:
    """What does the same as a page or a button."""
    return tag("p", "The same on a command line: ", tag("code", f"sessionrun {words}"), **attributes)


def section(name: str, heading: str, *parts: Part, note: str = "") -> Markup | None:
    """A block of a page with its heading; None if it has nothing to say."""
    if not any(parts):
        return None
    small = tag("small", note) if note else None
    return tag("section", tag("h2", heading, small), *parts, id=name)


@cache
def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def policy(*, served: bool = False) -> str:
    """What a page may do: show itself, with the looks and the script that are ours by their digests.

    A page that is `served` may also send its forms there, and ask there for news.
    """
    rules = {
        "default-src": "'none'",
        "style-src": _digest(_read("page.css")),
        "script-src": _digest(_read("page.js")) + (" 'self'" if served else ""),
        "connect-src": "'self'" if served else "'none'",
        "form-action": "'self'" if served else "'none'",
        "base-uri": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def document(title: str, body: Part, *, served: bool = False) -> str:
    """A whole page.  A served one says whence it comes: with no referrer a form has no origin, either."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy(served=served)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        None if served else tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", Markup(_read("page.css"))),
    )
    skip = tag("a", "To the content", href="#content", class_="skip")
    script = tag("script", Markup(_read("page.js")))
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', skip, body, script), lang='en')}\n"


def join(parts: Iterable[Part]) -> Markup:
    """Parts behind each other; text among them is escaped."""
    pieces: list[str] = []
    for part in parts:
        if isinstance(part, str):
            pieces.append(part if isinstance(part, Markup) else text(part))
        elif part is not None:
            pieces.append(join(part))
    return Markup("".join(pieces))


def text(value: str) -> Markup:
    """Text as HTML shows it: nothing in it is markup, and characters that are not seen are written out."""
    return Markup(escape(_NOT_SHOWN.sub(lambda found: f"\\u{ord(found[0]):04x}", value), quote=True))

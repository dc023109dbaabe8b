"""Counts the package, the tests and the pages, room by room, against what each may have.

`python -m tests.house.budget` prints the table.  A step that makes a room
smaller lowers the room's row to its result.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import sessionrun

PACKAGE: Final = Path(sessionrun.__file__).parent
TOP: Final = PACKAGE.parent


class Size(NamedTuple):
    """How much there is.  `code` are the lines that are no blank, comment, docstring or import."""

    modules: int
    lines: int
    code: int


ROOMS: Final[Mapping[str, Size]] = {
    "sessionrun": Size(4, 477, 266),
    "agents": Size(13, 2764, 1706),
    "checks": Size(15, 3504, 2260),
    "cli": Size(30, 5753, 3453),
    "client": Size(28, 5868, 3614),
    "cluster": Size(23, 5048, 3015),
    "doors": Size(9, 2435, 1606),
    "engine": Size(11, 3157, 1936),
    "git": Size(8, 1732, 1009),
    "input": Size(17, 3945, 2492),
    "keeper": Size(9, 1545, 967),
    "landing": Size(17, 3316, 2034),
    "model": Size(18, 3593, 1801),
    "queue": Size(14, 3141, 1902),
    "session": Size(15, 3595, 2136),
    "store": Size(17, 2967, 1616),
    "walls": Size(20, 3255, 1954),
    "worktrees": Size(22, 5759, 3466),
}
"""What each room may have: no room lends to another but by a change of these rows."""

PACKAGE_BUDGET: Final = Size(290, 61854, 37233)
TESTS_LINES: Final = 50_335
PAGES_LINES: Final = 9433


@cache
def measure_rooms() -> dict[str, Size]:
    """The size of each room of the package; the modules beside them are one room."""
    rooms = sorted(path for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
    sizes = {room.name: measure(room.rglob("*.py")) for room in rooms}
    return {"sessionrun": measure(PACKAGE.glob("*.py")), **sizes}


def measure(modules: Iterable[Path]) -> Size:
    return add_up(_measure_module(module.read_text()) for module in modules)


def add_up(sizes: Iterable[Size]) -> Size:
    return Size(*map(sum, zip((0, 0, 0), *sizes, strict=True)))


def count_lines(paths: Iterable[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


def find_tests() -> Iterable[Path]:
    return TOP.joinpath("tests").rglob("*.py")


def find_pages() -> list[Path]:
    """All pages for people; those of the verbs are made from the manual, and do not count."""
    pages = [*TOP.glob("*.md"), *TOP.joinpath("docs").rglob("*.md"), *TOP.joinpath("man").glob("*.[0-9]")]
    return [*pages, *TOP.joinpath("examples").rglob("*.md")]


def _measure_module(text: str) -> Size:
    others: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and (is_text or isinstance(node, (ast.Import, ast.ImportFrom))):
            others.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            code.update(range(token.start[0], token.end[0] + 1))
    lines = text.count("\n")
    return Size(1, lines, len({line for line in code - others if line <= lines}))


def _print() -> None:
    found = measure_rooms()
    print(f"{'':12} modules    of   lines    of    code    of")
    for name, size in {**found, "all": add_up(found.values())}.items():
        budget = PACKAGE_BUDGET if name == "all" else ROOMS[name]
        pairs = zip(size, budget, strict=True)
        print(f"{name:12}", "  ".join(f"{count:6} {most:5}" for count, most in pairs))
    print(
        f"tests {count_lines(find_tests())} of {TESTS_LINES}, pages {count_lines(find_pages())} of {PAGES_LINES}"
    )


if __name__ == "__main__":
    _print()

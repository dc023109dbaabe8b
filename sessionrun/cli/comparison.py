"""The tasks of a matrix side by side, as `status` shows them: a row for each task, a column for each arm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sessionrun.cli.render import escape_line, lay_out, sign
from sessionrun.client.reading.comparison import conclude, list_figures
from sessionrun.model.wording import clip, columns

NAME_COLUMNS: Final = 28

_ROW_AXES: Final[Mapping[str, Sequence[str]]] = {
    "model": ("task",),
    "agent": ("task", "model"),
    "task": ("agent", "model"),
}

Shown = Mapping[str, Any]
Row = Sequence[str]


def comparison_lines(record: Shown, width: int, *, show_all: bool) -> list[str]:
    """The grid of `compare_tasks`; where that is wider than `width`, a row for each arm with what fits."""
    groups = record["groups"]
    keys = [clip(escape_line(group["key"]), NAME_COLUMNS) for group in groups]
    rows = _find_rows(record)
    kept = rows
    if len(rows) > 20 and not show_all:
        kept = {name: cells for name, cells in rows.items() if _differ(cells)}
    cells = [[name, *(_tell_cell(found.get(group["key"])) for group in groups)] for name, found in kept.items()]
    figures = [*_figures(record)]
    corner = f"{sum(group['runs'] for group in groups)} runs"
    rights = range(1, 1 + len(groups))
    lines = lay_out([[corner, *keys], *cells, *figures], rights)
    if columns(lines[0]) > width:
        turned = [
            [name, *column] for name, column in zip([corner, *keys], zip(*figures, strict=True), strict=True)
        ]
        while columns((lines := lay_out(turned, range(1, len(turned[0]))))[0]) > width and len(turned[0]) > 2:
            turned = [row[:-1] for row in turned]
    if len(rows) > len(kept):
        lines.append(f"and {len(rows) - len(kept)} on which all are alike: --all shows each")
    return [*lines, *map(escape_line, conclude(record))]


def _find_rows(record: Shown) -> dict[str, dict[str, Shown]]:
    cells = [(group["key"], cell) for group in record["groups"] for cell in group["cells"]]
    axes = _ROW_AXES[record["by"]]
    differing = [axis for axis in axes if len({cell[axis] for _, cell in cells}) > 1] or axes[-1:]
    rows: dict[str, dict[str, Shown]] = {}
    for key, cell in cells:
        name = clip(escape_line("/".join(cell[axis] for axis in differing)), NAME_COLUMNS)
        rows.setdefault(name, {})[key] = cell
    return rows


def _differ(cells: Mapping[str, Shown]) -> bool:
    return len({word for cell in cells.values() for word in cell["words"]}) > 1


def _tell_cell(cell: Shown | None) -> str:
    """How many runs of a cell succeeded, and of few a sign for each run: together these are all runs."""
    if cell is None:
        return "-"
    signs = [sign(word) for word in cell["words"]] if cell["runs"] <= 6 else []
    between = " " if any(len(each) > 1 for each in signs) else ""
    return f"{cell['succeeded']}/{cell['runs']} {between.join(signs)}".rstrip()


def _figures(record: Shown) -> Iterator[list[str]]:
    """What is known of each group in sum, the most telling first."""
    groups = record["groups"]
    yield ["solved", *(f"{group['succeeded']}/{group['runs']}" for group in groups)]
    rates = [group["pass_at"].get("1") for group in groups]
    yield ["pass@1", *("-" if rate is None else f"{rate['estimate']:.0%}" for rate in rates)]
    yield ["  95 % interval", *("-" if rate is None else _interval(rate) for rate in rates)]
    behind = [group["behind"] for group in groups]
    if any(behind):
        yield ["behind", *("-" if found is None else f"{100 * found['estimate']:.0f} pts" for found in behind)]
        yield ["  95 % interval", *("-" if found is None else _interval(found) for found in behind)]
    yield from ([name, *texts] for name, texts in list_figures(record))


def _interval(found: Shown) -> str:
    return f"{100 * found['low']:.0f} to {100 * found['high']:.0f}"

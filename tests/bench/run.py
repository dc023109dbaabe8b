"""Runs the benchmarks, prints one table: ``python -m bench.run [NAME]...`` in the directory `tests`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from . import repositories, sessions
from .measure import Row, print_table

BENCHMARKS: Mapping[str, Callable[[], list[Row]]] = {
    name.removeprefix("measure_"): measure
    for module in (sessions, repositories)
    for name, measure in vars(module).items()
    if name.startswith("measure_")
}


def main(names: Sequence[str]) -> None:
    """Run the named benchmarks, all when none is named."""
    rows = []
    for name in names or BENCHMARKS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows += BENCHMARKS[name]()
    print_table(rows)


if __name__ == "__main__":
    main(sys.argv[1:])

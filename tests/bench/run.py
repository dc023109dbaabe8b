"""Runs the benchmarks, prints one table: ``python -m bench.run [NAME]...`` in the directory `tests`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from . import cluster, repositories, sessions
from .measure import print_table

BENCHMARKS = {**sessions.BENCHMARKS, **repositories.BENCHMARKS, **cluster.BENCHMARKS}


def main(names: Sequence[str]) -> None:
    """Run the named benchmarks, all when none is named."""
    rows = []
    for name in names or BENCHMARKS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows += BENCHMARKS[name]()
    print_table(rows)


if __name__ == "__main__":
    main(sys.argv[1:])

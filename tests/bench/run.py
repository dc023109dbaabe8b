"""Runs the benchmarks, prints one table: ``python -m tests.bench.run [NAME]...`` at the top of the repository."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from . import (
    bench_cluster,
    bench_dispatch,
    bench_environments,
    bench_graph,
    bench_jobs,
    bench_landing,
    bench_launch,
    bench_list,
    bench_memory,
    bench_serve,
    bench_status,
    bench_walls,
    bench_worktrees,
)
from .measure import Row, print_table

BENCHMARKS: Final[Mapping[str, Callable[[], list[Row]]]] = {
    "launch": bench_launch.measure,
    "status": bench_status.measure,
    "dispatch": bench_dispatch.measure,
    "jobs": bench_jobs.measure,
    "graph": bench_graph.measure,
    "list": bench_list.measure,
    "memory": bench_memory.measure,
    "serve": bench_serve.measure,
    "worktrees": bench_worktrees.measure,
    "walls": bench_walls.measure,
    "environments": bench_environments.measure,
    "landing": bench_landing.measure,
    "cluster": bench_cluster.measure,
}


def main(names: Sequence[str]) -> None:
    """Run the named benchmarks, all when none is named."""
    rows: list[Row] = []
    for name in names or BENCHMARKS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows += BENCHMARKS[name]()
    print_table(rows)


if __name__ == "__main__":
    main(sys.argv[1:])

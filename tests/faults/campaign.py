"""Random kills, seeded, on the real command: in `tests`, ``python -m faults.campaign --kills 1000``.

    supervisor, keeper, both    victims one at a time, in any order; the session must end by itself
    pairs                       supervisor and keeper at the same moment; the same
    chain                       the root as well, 1 to 3 of them at once; then 1 to 3 users `resume` at once
    launcher                    whoever starts the session, at any moment of it
    worktrees; worktrees, chain    sessions with worktrees: no work is lost, the user's repository is as it was
    worktrees, all    the same, of which all processes are killed at once, and nobody resumes it
    walls; walls, chain    the same, and each task commits inside of walls; only with --mode
    neighbours; neighbours, walls    no kills, but hostile steps of one task beside honest ones; only with --mode

What was seen is printed as a table; the exit code is 1 when anything was wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Final

from conftest import wait_until

from .chain import ROLES, Role
from .neighbours import run_beside_neighbour
from .oracle import Choice, Figures, examine, examine_start, kill_by_chance, make_plan
from .place import Place, make_place
from .worktrees import kill_everything_in_worktrees, kill_in_worktrees

TASKS: Final = 24
PARALLEL: Final = 6
AT_ONCE: Final = 3
VICTIMS: Final = (*ROLES, "daemon", "launcher", "step")


def kill_plain(place: Place, rng: random.Random, choose: Choice, *, may_lose: bool = False) -> Figures:
    """A session of plain tasks; unless it may lose its root, it has to end by itself."""
    session = place.start(make_plan(place.executed, TASKS, rng), "--max-parallel", str(PARALLEL))
    seen = kill_by_chance(place, rng, session, choose, may_lose=may_lose)
    figures = examine(session, place.executed, may_lose=may_lose)
    figures.add(seen)
    return figures


def kill_launcher(place: Place, rng: random.Random) -> Figures:
    """Starts that are killed; what was promised is kept, what was not leaves nothing that runs half."""
    plan = make_plan(place.executed, TASKS, rng)
    process = place.popen(place.run_argv(plan, "--max-parallel", str(PARALLEL)))
    wait_until(lambda: process.poll() is not None, rng.uniform(0.0, 0.6))
    figures = Figures(kills=Counter(launcher=int(process.poll() is None)))
    process.kill()
    out, _ = process.communicate(timeout=120)
    examine_start(place, out.strip(), figures)
    return figures


def one_of(*roles: Role) -> Choice:
    """Victims one at a time, in any order."""
    return lambda rng: [rng.choice(roles)]


def some(rng: random.Random) -> Sequence[Role]:
    """One to three of the chain at once."""
    return rng.sample(ROLES, rng.randint(1, 3))


Mode = Callable[[Place, random.Random], Figures]
ALONE: Final = one_of(*ROLES[1:])
MODES: Final[Mapping[str, Mode]] = {
    "supervisor": partial(kill_plain, choose=one_of("supervisor")),
    "keeper": partial(kill_plain, choose=one_of("keeper")),
    "both": partial(kill_plain, choose=ALONE),
    "pairs": partial(kill_plain, choose=lambda rng: rng.sample(ROLES[1:], 2)),
    "chain": partial(kill_plain, choose=some, may_lose=True),
    "launcher": kill_launcher,
    "worktrees": partial(kill_in_worktrees, choose=ALONE),
    "worktrees, chain": partial(kill_in_worktrees, choose=some, may_lose=True),
    "worktrees, all": kill_everything_in_worktrees,
}

WALLED_MODES: Final[Mapping[str, Mode]] = {
    "walls": partial(kill_in_worktrees, choose=ALONE, walled=True),
    "walls, chain": partial(kill_in_worktrees, choose=some, may_lose=True, walled=True),
}
"""They need bubblewrap."""

NEIGHBOURS: Final[Mapping[str, Mode]] = {
    "neighbours": run_beside_neighbour,
    "neighbours, walls": partial(run_beside_neighbour, walled=True),
}
"""The second one needs bubblewrap, too."""

ALL_MODES: Final[Mapping[str, Mode]] = {**MODES, **WALLED_MODES, **NEIGHBOURS}


def run_campaign(modes: Sequence[str], kills: int, seconds: float, seed: int) -> dict[str, Figures]:
    """Run sessions of the modes in turn until there were so many kills, or the time is over."""

    def run_one(mode: str, number: int, seed: int) -> Figures:
        with outer.nest(number) as place:
            return ALL_MODES[mode](place, random.Random(seed))

    found = {mode: Figures() for mode in modes}
    rng = random.Random(seed)
    deadline = time.monotonic() + seconds
    with make_place() as outer, ThreadPoolExecutor(AT_ONCE) as pool:
        running: dict[Future[Figures], str] = {}
        number = 0
        while running or number == 0:
            killed = sum(figures.kills.total() for figures in found.values())
            while len(running) < AT_ONCE and killed < kills and time.monotonic() < deadline:
                mode = modes[number % len(modes)]
                running[pool.submit(run_one, mode, number, rng.getrandbits(64))] = mode
                number += 1
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                found[running.pop(future)].add(future.result())
    return found


def print_table(found: Mapping[str, Figures]) -> None:
    """Print what was seen, a line for each mode."""
    from tabulate import tabulate

    total = Figures()
    for figures in found.values():
        total.add(figures)
    names = [name for name in vars(total) if name not in ("kills", "wrong")]
    rows = [
        [mode, *(one.kills[role] for role in VICTIMS), *(getattr(one, name) for name in names), len(one.wrong)]
        for mode, one in [*found.items(), ("all", total)]
    ]
    print(tabulate(rows, ("mode", *VICTIMS, *names, "wrong")))
    for line in total.wrong[:20]:
        print(line)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m faults.campaign",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--mode", action="append", choices=[*ALL_MODES], dest="modes")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    found = run_campaign(options.modes or list(MODES), options.kills, options.seconds, options.seed)
    print_table(found)
    sys.exit(0 if all(figures.is_good for figures in found.values()) else 1)


if __name__ == "__main__":
    main()

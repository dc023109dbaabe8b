"""Random kills, seeded, on the real command: ``python -m tests.faults.campaign --kills 1000``.

    supervisor, keeper, both    victims one at a time, in any order; the session must end by itself
    pairs                       supervisor and keeper at the same moment; the same
    chain                       the root as well, 1 to 3 of them at once; then 1 to 3 users `resume` at once
    launcher                    whoever starts the session, at any moment of it
    worktrees; worktrees, chain    sessions with worktrees: no work is lost, the user's repository is as it was
    walls; walls, chain    the same, and each task commits inside of walls; only with --mode

What was seen is printed as a table; the exit code is 1 when anything was wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final

from sessionrun.store.session import SessionDir

from .chain import ROLES, Role, kill_at_once, kill_role
from .oracle import Figures, examine, make_plan
from .place import Place, make_place, wait_until

TASKS: Final = 24
PARALLEL: Final = 6
KILLS: Final = 8
"""A session's kills: so many deaths in a row without progress are what root and keeper put up with."""

PAUSE_S: Final = 0.12
HUNG_S: Final = 300.0
AT_ONCE: Final = 3
VICTIMS: Final = (*ROLES, "daemon", "launcher")


def kill_alone(roles: Sequence[Role]) -> Callable[[Place, random.Random], Figures]:
    """A session whose victims are of these roles, one at a time."""

    def run(place: Place, rng: random.Random) -> Figures:
        return _run_without_help(place, rng, lambda: [rng.choice(roles)])

    return run


def kill_pairs(place: Place, rng: random.Random) -> Figures:
    """A session whose supervisor and keeper are killed at the same moment."""
    return _run_without_help(place, rng, lambda: rng.sample(["supervisor", "keeper"], 2))


def _run_without_help(place: Place, rng: random.Random, choose: Callable[[], list[Role]]) -> Figures:
    session = _start(place, rng)
    kills = Figures()
    while not has_ended(session) and kills.kills.total() < KILLS:
        _pause(rng, session)
        for role in choose():
            kills.kills[role] += kill_role(session.path, role)
    wait_until(lambda: has_ended(session), HUNG_S)
    figures = examine(session, place.executed)
    figures.add(kills)
    return figures


def kill_chain(place: Place, rng: random.Random) -> Figures:
    """A session that loses its root too, again and again, and that its users resume."""
    session = _start(place, rng)
    seen = Figures()

    def go_on() -> bool:
        if seen.kills.total() < KILLS:
            _pause(rng, session)
            for role in rng.sample(ROLES, rng.randint(1, 3)):
                seen.kills[role] += kill_role(session.path, role)
        if is_gone(session) and not has_ended(session):
            seen.resumed += resume_by(rng.randint(1, 3), place, session, seen)
        return has_ended(session)

    wait_until(go_on, HUNG_S)
    figures = examine(session, place.executed, may_lose=True)
    figures.add(seen)
    return figures


def resume_by(users: int, place: Place, session: SessionDir, seen: Figures) -> int:
    """Let so many users resume a session at once; of how many it was started is returned."""
    processes = [place.popen_resume(session) for _ in range(users)]
    said = [process.communicate(timeout=120) for process in processes]
    errors = [error for _, error in said if error]
    seen.wrong += [f"{session.session_id}: resume said {error}" for error in errors]
    started: int = sum(out.strip().endswith("goes on") for out, _ in said)
    if started > 1:
        seen.wrong.append(f"{session.session_id}: {started} users resumed it at once")
    return started


def kill_launcher(place: Place, rng: random.Random) -> Figures:
    """Starts that are killed; what was promised is kept, what was not leaves nothing that runs half."""
    before = find_sessions(place)
    process = place.popen(_argv(place, rng))
    wait_until(lambda: process.poll() is not None, rng.uniform(0.0, 0.6))
    killed = process.poll() is None
    process.kill()
    out, _ = process.communicate(timeout=120)
    figures = Figures()
    figures.kills["launcher"] = int(killed)
    made = [one for one in find_sessions(place) - before if one.spec_path.exists()]
    for session in made:
        wait_until(lambda session=session: has_ended(session) or is_gone(session), HUNG_S)  # type: ignore[misc]
        if not has_ended(session):
            if out.strip() == session.session_id:
                figures.wrong.append(f"{session.session_id} was promised and did not run")
            figures.resumed += resume_by(1, place, session, figures)
            wait_until(lambda session=session: has_ended(session), HUNG_S)  # type: ignore[misc]
        figures.add(examine(session, place.executed))
    if out.strip() and not made:
        figures.wrong.append(f"{out.strip()} was promised and is not there")
    return figures


class _Session(SessionDir):
    """Comparable, for finding what is new."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SessionDir) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)


def find_sessions(place: Place) -> set[_Session]:
    """The sessions in the results directory of a place."""
    return {_Session(path) for path in place.results.glob("session-*")}


def _argv(place: Place, rng: random.Random) -> list[str]:
    return place.run_argv(make_plan(place.executed, TASKS, rng), "--max-parallel", str(PARALLEL))


def _start(place: Place, rng: random.Random) -> SessionDir:
    return place.start(make_plan(place.executed, TASKS, rng), "--max-parallel", str(PARALLEL))


def _pause(rng: random.Random, session: SessionDir) -> None:
    wait_until(lambda: has_ended(session), rng.uniform(0.0, PAUSE_S))


def has_ended(session: SessionDir) -> bool:
    """Whether its end is published."""
    status = session.load_status()
    return status is not None and status["ended_at"] is not None


def kill_all(session: SessionDir) -> None:
    """Kill root, keeper and supervisor until nobody is left; raises AssertionError when somebody always is."""
    wait_until(lambda: not kill_at_once(session.path) and is_gone(session), HUNG_S)
    assert is_gone(session)


def is_gone(session: SessionDir) -> bool:
    """Whether nobody runs it: all locks are free, now and a moment later."""
    return not session.is_alive() and not wait_until(session.is_alive, 0.1)


Mode = Callable[[Place, random.Random], Figures]


def worktree_mode(name: str) -> Mode:
    """A mode of the module `worktrees`, which builds on this one."""

    def run(place: Place, rng: random.Random) -> Figures:
        from . import worktrees

        chosen: Mode = getattr(worktrees, name)
        return chosen(place, rng)

    return run


MODES: Final[Mapping[str, Mode]] = {
    "supervisor": kill_alone(["supervisor"]),
    "keeper": kill_alone(["keeper"]),
    "both": kill_alone(["supervisor", "keeper"]),
    "pairs": kill_pairs,
    "chain": kill_chain,
    "launcher": kill_launcher,
    "worktrees": worktree_mode("kill_in_worktrees"),
    "worktrees, chain": worktree_mode("kill_chain_in_worktrees"),
}

WALLED_MODES: Final[Mapping[str, Mode]] = {
    "walls": worktree_mode("kill_behind_walls"),
    "walls, chain": worktree_mode("kill_chain_behind_walls"),
}
"""They need bubblewrap."""


def run_campaign(
    modes: Sequence[str],
    kills: int,
    seconds: float,
    seed: int,
    code: Path | None = None,
    *,
    at_once: int = AT_ONCE,
) -> dict[str, Figures]:
    """Run sessions of the modes in turn until there were so many kills, or the time is over."""
    found = {mode: Figures() for mode in modes}
    rng = random.Random(seed)
    deadline = time.monotonic() + seconds
    with make_place(code=code) as place, ThreadPoolExecutor(at_once) as pool:
        running: dict[Future[Figures], str] = {}
        number = 0
        while running or number == 0:
            killed = sum(figures.kills.total() for figures in found.values())
            while len(running) < at_once and killed < kills and time.monotonic() < deadline:
                mode = modes[number % len(modes)]
                inside = Place(place.path / str(number), dict(place.environ))
                inside.path.mkdir()
                running[pool.submit(_run_one, mode, inside, rng.getrandbits(64))] = mode
                number += 1
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                found[running.pop(future)].add(future.result())
    return found


def _run_one(mode: str, place: Place, seed: int) -> Figures:
    from .place import end_sessions

    try:
        return {**MODES, **WALLED_MODES}[mode](place, random.Random(seed))
    finally:
        end_sessions(place.results)


def print_table(found: Mapping[str, Figures]) -> None:
    """Print what was seen, a line for each mode."""
    from tabulate import tabulate

    total = Figures()
    for figures in found.values():
        total.add(figures)
    headers = (
        "mode",
        *VICTIMS,
        "sessions",
        "tasks",
        "lost",
        "unsure",
        "refused",
        "resumed",
        "twice",
        "wrong",
        "hung",
    )
    rows = [_row(mode, figures) for mode, figures in [*found.items(), ("all", total)]]
    print(tabulate(rows, headers))
    for line in total.wrong[:20]:
        print(line)


def _row(mode: str, one: Figures) -> tuple[object, ...]:
    kills = [one.kills[role] for role in VICTIMS]
    return (
        mode,
        *kills,
        one.sessions,
        one.tasks,
        one.lost,
        one.unsure,
        one.refused,
        one.resumed,
        one.twice,
        len(one.wrong),
        one.hung,
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.campaign",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--mode", action="append", choices=[*MODES, *WALLED_MODES], dest="modes")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    found = run_campaign(options.modes or list(MODES), options.kills, options.seconds, options.seed)
    print_table(found)
    sys.exit(0 if all(figures.is_good for figures in found.values()) else 1)


if __name__ == "__main__":
    main()

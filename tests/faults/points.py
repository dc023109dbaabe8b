"""Deaths at exact points: each process is killed at each of its calls of the system.

Points are rules of `tests/calls.py`, joined by a comma.  A sweep of a role goes on, one session for each call,
until its process comes to its end without having made so many.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from typing import Final

from calls import Calls

from sessionrun.store.creation import has_begun
from sessionrun.store.session import SessionDir, iterate_sessions

from .oracle import HUNG_S, Figures, examine, has_ended, is_gone, kill_all, make_plan
from .place import Place, make_place, wait_until

TASKS: Final = 4
_PARALLEL_WORDS: Final = ("--max-parallel", "2")
AT_ONCE: Final = 3
MOST_RESUMES: Final = 6
SWEPT: Final = ("launcher", "daemon", "root", "keeper", "supervisor")
LAST: Final = 400
"""More calls than any of the roles makes in such a session."""


def crash_at_start(place: Place, points: str) -> Figures | None:
    """A session that is started with the points; None when none of them was reached."""
    calls = _watch(place, points)
    env = calls.environ()
    process = place.popen(place.run_argv(_plan(place), *_PARALLEL_WORDS), env=env)
    out, said = process.communicate(timeout=120)
    figures = Figures()
    if "Traceback" in said:
        figures.wrong.append(f"{points}: run said {said}")
    for session in iterate_sessions(place.results):
        if is_gone(session) and not has_begun(session):
            figures.wrong += _sweep(place, session, points)
            continue
        helped = _finish(place, session, env, figures)
        # a root that dies takes nobody with it; more than one death may leave nobody
        if helped and out.strip() and "," not in points:
            figures.wrong.append(f"{points}: did not end by itself")
        figures.add(examine(session, place.executed, may_lose="root" in points and "," in points))
    if out.strip() and not list(iterate_sessions(place.results)):
        figures.wrong.append(f"{points}: {out.strip()} was promised and is not there")
    return _mark(calls, points, figures)


def _sweep(place: Place, session: SessionDir, points: str) -> list[str]:
    """A launcher died before its session began: no reader shows what it left, and `doctor` removes it."""
    _, out, _ = place.run_verb("list", "--json")
    wrong = [f"{points}: list shows what never began"] if json.loads(out)["sessions"] else []
    place.run_verb("doctor", "--fix")
    return wrong + ([f"{points}: what never began stays"] if session.path.exists() else [])


def crash_at_resume(place: Place, points: str) -> Figures | None:
    """A session that lost all of its chain before any task could end, and is resumed with the points."""
    gate = place.path / "gate"
    session = place.start(_plan(place, f"while ! [ -e '{gate}' ]; do sleep 0.05; done;"), *_PARALLEL_WORDS)
    wait_until(lambda: place.executed.exists(), HUNG_S)
    kill_all(session)
    gate.touch()
    figures, calls = Figures(), _watch(place, points)
    _finish(place, session, calls.environ(), figures)
    figures.add(examine(session, place.executed, may_lose=True))
    return _mark(calls, points, figures)


def crash_at_ask(place: Place, points: str) -> Figures | None:
    """A session that is asked to hold its tasks, and to release them; who asks and is killed asks again."""
    gate, calls = place.path / "gate", _watch(place, points)
    session = place.start(
        _plan(place, f"while ! [ -e '{gate}' ]; do sleep 0.05; done;"), *_PARALLEL_WORDS, env=calls.environ()
    )
    wait_until(place.executed.exists, HUNG_S)
    figures = Figures()
    for verb in ("hold", "release"):
        for _ in range(MOST_RESUMES):
            code, _, said = place.run_verb(verb, session.session_id, env=calls.environ())
            if code == 0:
                break
            if code > 0:
                figures.wrong.append(f"{points}: {verb} said {said}")
    gate.touch()
    if _finish(place, session, calls.environ(), figures):
        figures.wrong.append(f"{points}: did not end by itself")
    figures.add(examine(session, place.executed))
    return _mark(calls, points, figures)


def _plan(place: Place, more: str = "") -> object:
    return make_plan(place.executed, TASKS, random.Random(0), more=more)


def _watch(place: Place, points: str) -> Calls:
    return Calls(place.path / "calls", *points.split(","))


def _finish(place: Place, session: SessionDir, env: Mapping[str, str], figures: Figures) -> bool:
    """Wait for the end, resuming whenever nobody is left; whether that was so."""
    for number in range(MOST_RESUMES):
        wait_until(lambda: has_ended(session) or is_gone(session), HUNG_S)
        if has_ended(session) or not is_gone(session) or not session.spec_path.exists():
            return number > 0
        figures.resumed += 1
        place.run_verb("resume", session.session_id, env=env)
    return True


def _mark(calls: Calls, points: str, figures: Figures) -> Figures | None:
    """Count the deaths; a session that none of its points hit says only that the sweep is over."""
    reached = [rule.split(":")[0] for rule, hit in zip(calls.rules, calls.has_hit(), strict=True) if hit]
    figures.kills.update(reached)
    figures.wrong = [one if points in one else f"{points}: {one}" for one in figures.wrong]
    return figures if reached or figures.wrong else None


CASES: Final = {"start": crash_at_start, "resume": crash_at_resume, "ask": crash_at_ask}


def run_points(case: str, points: Sequence[str], code: Path | None = None) -> Iterator[Figures | None]:
    """Run a session for each of the points, some at once, and give what was seen in their order."""
    with make_place(code=code) as place, ThreadPoolExecutor(AT_ONCE) as pool:
        waiting = [pool.submit(_run_one, place, case, number, one) for number, one in enumerate(points)]
        try:
            for future in waiting:
                yield future.result()
        finally:
            for future in waiting:
                future.cancel()


def _run_one(outer: Place, case: str, number: int, points: str) -> Figures | None:
    with outer.nest(number) as place:
        return CASES[case](place, points)


def sweep(
    case: str,
    role: str,
    *,
    kind: str = "any",
    do: str = "kill",
    every: int = 1,
    code: Path | None = None,
    first_wrong: bool = False,
) -> Figures:
    """All calls of a role, of a kind, or every so many-th, and what is done there.

    With `first_wrong` it ends there: of a package that is broken on purpose nothing more has to be seen.
    """
    points = (f"{role}:{kind}:{number}:{do}" for number in count(1, every))
    total, missed = Figures(), 0
    chosen = list(takewhile(lambda point: int(point.split(":")[2]) <= LAST, points))
    for figures in run_points(case, chosen, code):
        missed = missed + 1 if figures is None else 0  # on a busy machine a session makes fewer calls
        if missed == AT_ONCE:
            return total
        total.add(figures or Figures())
        if first_wrong and not total.is_good:
            return total
    return total


def random_pairs(number: int, seed: int) -> list[str]:
    """Two deaths in one session, anywhere."""
    rng = random.Random(seed)
    chosen = partial(rng.choice, ("root", "keeper", "keeper", "supervisor", "supervisor"))
    return [
        f"{chosen()}:any:{rng.randint(1, 120)}:kill,{chosen()}:any:{rng.randint(1, 80)}:kill"
        for _ in range(number)
    ]

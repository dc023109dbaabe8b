"""How long `list` takes with 1,000 sessions, against one."""

from __future__ import annotations

import uuid
from typing import Final

import orjson

from sessionrun.store.caches import find_body, seal
from sessionrun.store.session import SessionDir

from .measure import Row, command, compare, interleave, make_place

SESSIONS: Final = 1000
GOAL: Final = 1.5


def measure(rounds: int = 9) -> list[Row]:
    """Measure; a round takes about a second."""
    with make_place() as place:
        name = place.write_prompts("list.json", ["true"])
        _, printed = place.call([*command(), "-q", "--sync", "--agent", "shell", name])
        session = place.session(printed.strip())
        for _ in range(SESSIONS):
            _copy(session)
        one = place.path / "one"
        one.mkdir()
        session.path.rename(one / session.path.name)
        cases, pairs = {}, []
        for kind, options in (("", ()), (" --json", ("--json",))):
            pair = f"list{kind} {SESSIONS:,}", f"list{kind} 1"
            for case, folder in zip(pair, ("results", "one"), strict=True):
                cases[case] = place.takes(*command(), "list", "--results-dir", folder, *options)
            pairs.append(pair)
        samples = interleave(cases, rounds)
    return [compare(samples, many, single, GOAL) for many, single in pairs]


def _copy(session: SessionDir) -> None:
    """A copy of an ended session under a new id, with all that is read of it."""
    new = str(uuid.uuid4())
    folder = session.path.with_name(f"session-{new}")
    folder.mkdir()
    for file in session.path.iterdir():
        if not file.is_file():
            continue
        content = file.read_bytes().replace(session.session_id.encode(), new.encode())
        if file in (session.status_path, session.summary_path):  # they bear a checksum
            body = find_body(file.read_bytes())
            assert body is not None
            content = seal(orjson.loads(bytes(body).replace(session.session_id.encode(), new.encode()) + b"}"))
        (folder / file.name).write_bytes(content)

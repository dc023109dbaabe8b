"""Damages the files of sessions at random and looks at them through every verb that reads, in one process.

Bytes are flipped, cut, put in and doubled; values of JSON become others, in logs also where a checksum says that
they are right; records are doubled, dropped, swapped.
Whatever lies there, a verb ends with a code of the manual and says at most one line for each session; what it says
of other sessions is as before; and where only status.json or summary is damaged, all is as before.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch
from zlib import crc32

import orjson
from conftest import eventually
from hostile import NUMBERS, OTHERS, TEXTS, WHOLE
from stages import make_program

from sessionrun.cli import main as run_command
from sessionrun.client.reading import waiting
from sessionrun.model.errors import SessionrunError
from sessionrun.session.launch import _check_logs
from sessionrun.store import index, seal
from sessionrun.store.logs import parse_log
from sessionrun.store.requests import load_requests, send_request
from sessionrun.store.session import SessionDir

from .oracle import has_ended
from .place import Place, make_place
from .worktrees import git, make_repository

HANG_S: Final = 120
"""A verb that takes longer hangs; the longest takes a second."""

CODES: Final = frozenset((0, 1, 2, 3, 4, 75, 124, 130))
AGENT: Final = r"""#!/bin/sh
cat > answer.txt
echo '{"type":"system","subtype":"init","session_id":"c1","model":"m"}'
echo '{"type":"result","subtype":"success","is_error":false,"result":"done","session_id":"c1","num_turns":1,'\
'"usage":{"input_tokens":10,"output_tokens":5}}'
"""
PLAN: Final = {
    "name": "nightly",
    "prompts": [
        {"id": "good", "prompt": "echo out; echo err >&2", "labels": {"kind": "x"}, "check": "true"},
        {"id": "bad", "prompt": "exit 3", "retries": 1},
        {"id": "after", "prompt": "true", "needs": ["bad"]},
        {"id": "told", "prompt": "Do it.", "agent": "qwen"},
    ],
}
MATRIX: Final = {"tasks": [{"id": "one", "name": "One", "prompts": ["Do it."]}], "models": ["m1", "m2"]}

POLLS: Final = (
    "status ID",
    "status ID --json",
    "status nightly",
    "status ID --by model",
    "status ID --by task --json",
    "results ID",
    "results ID --json",
    "results ID 1 --tail 2",
    "results ID --raw",
    "wait ID --timeout 0",
    "wait ID 1 --any --timeout 0 --json",
    "logs ID",
    "logs ID -n 2 --json",
    "cost ID",
    "cost ID --by agent --json",
    "explain ID",
    "explain ID --json",
    "explain ID 1 2",
    "diff ID --json",
    "diff ID",
)
"""Verbs about the damaged session."""

SWEEPS: Final = (
    "list --json",
    "list",
    "list --all",
    "list --all --totals",
    "list --totals --json",
    "cost --all",
    "cost --all --by day --json",
)
"""Verbs about all sessions: the others must be there."""

DEAR_SWEEPS: Final = (
    "clean --older-than 0s --dry-run --json",
    "clean --worktrees --dry-run --json",
    "doctor ID",
    "doctor --json",
)
"""The same, which run git or look at all processes: one mutation of `DEAR_EVERY` is looked at through these."""

DEAR_EVERY: Final = 8
VERBS: Final = 2
"""So many verbs look at each mutation, besides."""

ODD: Final[tuple[Any, ...]] = (
    *(*TEXTS, *WHOLE, *NUMBERS, *OTHERS),
    2**63,
    9e15,
    "/",
    "..",
    "a/b",
    "running",
    "../../../etc/hostname",
    "\u202e\x1b[31m",
    "x" * 5000,
    "2026-13-45T99:99:99.000Z",
    "0001-01-01T00:00:00.000Z",
    "9999-12-31T23:59:59.999Z",
    "succeeded",
    {"pid": 1},
)


@dataclass
class World:
    """Sessions that have ended, one that was interrupted, and what the sweeps say while all are whole."""

    place: Place
    sessions: list[SessionDir]
    whole: dict[tuple[str, str], str] = field(default_factory=dict)


@dataclass
class Found:
    """What many mutations came to: `codes` by verb and exit code; `wrong` in words."""

    codes: Counter[tuple[str, int]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


@contextlib.contextmanager
def make_world(parent: Path | None = None) -> Iterator[World]:
    """Run the sessions, and stand in their directory with the environment of their own."""
    with make_place(parent) as place:
        make_repository(place)
        agent = make_program(place.path / "bin" / "qwen", AGENT)
        place.environ["PATH"] = f"{agent.parent}:{place.environ['PATH']}"
        repository = place.path / "repo"
        plain = place.start(PLAN, "--budget", "5", "--no-ready", cwd=repository)
        trees = ["--agent", "qwen", "--worktree", "--worktree-dir", str(place.path / "trees")]
        matrix = place.start(MATRIX, *trees, "--keep-worktree", "always", cwd=repository)
        for session in (plain, matrix):
            eventually(lambda session=session: has_ended(session) and not session.is_alive())  # type: ignore[misc]
        here = os.getcwd()
        os.chdir(place.path)
        try:
            nobody_comes_back = patch.object(waiting, "GONE_AFTER_S", 0.05)
            with nobody_comes_back, patch.dict(os.environ, {**place.environ, "TZ": "UTC"}, clear=True):
                yield World(place, [plain, matrix, _interrupt(place, plain)])
        finally:
            os.chdir(here)
            git(place, "worktree", "prune")


def _interrupt(place: Place, ended: SessionDir) -> SessionDir:
    """A copy of a session as it was before its last entries were written, with no process left."""
    session = place.copy(ended, ("nightly", "daily"))
    session.status_path.unlink()
    session.summary_path.unlink()
    lines = session.journal_path.read_bytes().splitlines(keepends=True)
    session.journal_path.write_bytes(b"".join(lines[: len(lines) * 2 // 3]))
    send_request(session, {"kind": "cancel", "tasks": ["good"]})
    return session


# --- mutations ---


def damage_bytes(content: bytes, rng: random.Random) -> bytes:
    """Other bytes than there were."""
    begin, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    end = min(end, begin + rng.choice((1, 8, 4096)))
    flipped = bytearray(content or b"x")
    flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    random_bytes = rng.randbytes(rng.choice((1, 1, 8, 100)))
    return rng.choice(
        (
            bytes(flipped),
            bytes(flipped),
            content[:begin],
            content[:begin] + content[end:],
            content[:begin] + random_bytes + content[begin:],
            content[:begin] + b"\0" * (end - begin) + content[end:],
            content + content[begin:end],
        )
    )


def damage_value(value: Any, rng: random.Random) -> Any:
    """The same JSON value with one change at a random place in it."""
    holders = list(_iterate_holders(value))
    if not holders:
        return rng.choice(ODD)
    holder, key = rng.choice(holders)
    kind = rng.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[f"{key}x"] = holder.pop(key)
    elif kind == 1:
        holder.append(holder[key])
    elif kind == 2 and isinstance(holder[key], (int, float, str)):
        holder[key] = str(holder[key]) if not isinstance(holder[key], str) else len(holder[key])
    elif kind == 3:
        holder[key] = rng.choice(holders)[0]
        holder[key] = orjson.loads(orjson.dumps(rng.choice(ODD))) if holder[key] is holder else None
    else:
        holder[key] = rng.choice(ODD)
    return value


def _iterate_holders(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _iterate_holders(value[key])


def damage_json(content: bytes, rng: random.Random) -> bytes:
    """A file of JSON with another value."""
    return orjson.dumps(damage_value(orjson.loads(content), rng))


def damage_cache(content: bytes, rng: random.Random) -> bytes:
    """The same for status.json and summary: the checksum is left as it was, or taken away.

    To make a right one is not an accident: it is that of the keys of today, too.
    """
    record = orjson.loads(content)
    sealed_by = record.pop(seal.SEAL_KEY)
    changed = damage_value(record, rng)
    sealed = {**changed, seal.SEAL_KEY: sealed_by} if isinstance(changed, dict) and rng.randrange(2) else changed
    return orjson.dumps(sealed, option=orjson.OPT_APPEND_NEWLINE)


def damage_records(content: bytes, rng: random.Random) -> bytes:
    """A log of which each line is right by itself."""
    payloads = list(parse_log(content).payloads)
    place, other = (rng.randrange(len(payloads)) for _ in range(2))
    kind = rng.randrange(8)
    if kind == 0:
        del payloads[place]
    elif kind == 1:
        payloads.insert(other, payloads[place])
    elif kind == 2:
        payloads[place], payloads[other] = payloads[other], payloads[place]
    elif payloads[place].startswith(b"{"):
        payloads[place] = damage_json(payloads[place], rng)
    else:
        words: list[Any] = payloads[place].decode().split(" ")
        odd = [str(one).encode("ascii", "replace").decode() for one in ODD]
        words[rng.randrange(len(words))] = rng.choice(odd)
        payloads[place] = " ".join(words).encode().replace(b"\n", b"")
    return b"".join(b"%08x %b\n" % (crc32(payload), payload) for payload in payloads)


Damage = Callable[[bytes, random.Random], bytes]


def choose_damage(session: SessionDir, rng: random.Random) -> tuple[Path, Damage]:
    """A file of the session, or the user's index, and what is done to it."""
    caches_there = [path for path in (session.status_path, session.summary_path) if path.exists()]
    logs = [session.journal_path, session.ledger_path]
    jobs = sorted(session.path.glob("jobs/*/*/*.json")) + sorted(session.path.glob("requests/*.json"))
    kinds: list[tuple[list[Path], Damage]] = [
        (caches_there, damage_bytes),
        (caches_there, damage_cache),
        (caches_there, damage_cache),
        ([session.spec_path], damage_json),
        ([session.spec_path], damage_json),
        ([session.spec_path], damage_bytes),
        (logs, damage_records),
        (logs, damage_records),
        (logs, damage_bytes),
        (jobs, damage_json),
        (jobs, damage_bytes),
        ([index.index_path()], damage_bytes),
    ]
    paths, damage = rng.choice([kind for kind in kinds if kind[0]])
    return rng.choice(paths), damage


# --- looking ---


def call(words: list[str]) -> tuple[int, str, str]:
    """Run a command in this process: its exit code, and what it printed on either stream."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        code = run_command(words)
        for stream in streams:
            stream.flush()
    gc.unfreeze()  # a process of its own would end here
    out, said = (stream.buffer.getvalue().decode("utf-8", "replace") for stream in streams)
    return code, out, said


def look(world: World, session: SessionDir, verb: str, found: Found) -> tuple[int, str]:
    """One verb; whatever is wrong with its end is noted."""
    words = [session.session_id if word == "ID" else word for word in verb.split()]
    place = [] if "--all" in words else ["--results-dir", str(world.place.results)]
    code, out, said = call([*words, *place])
    found.codes[verb, code] += 1
    lines = [line for line in said.splitlines() if line.startswith("sessionrun: error")]
    if "Traceback" in said or "this is a bug" in said or code not in CODES or len(lines) > 1:
        found.wrong.append(f"{verb}: exit {code}: {said[-3000:]}")
    return code, out


def mutate(world: World, number: int, seed: int, found: Found) -> None:
    """Damage one file, look through some verbs, and put it right again."""
    rng = random.Random(f"{seed}/{number}")
    session = rng.choice(world.sessions)
    path, damage = choose_damage(session, rng)
    content = path.read_bytes()
    damaged = damage(content, rng)
    before = len(found.wrong)
    path.write_bytes(damaged)
    try:
        for turn in range(VERBS):
            verb = POLLS[(number * VERBS + turn) % len(POLLS)]
            out, whole = look(world, session, verb, found)[1], world.whole[session.session_id, verb]
            if path in (session.status_path, session.summary_path) and "wait" not in verb and out != whole:
                found.wrong.append(f"{verb} shows something else: {out[:2000]}\ninstead of {whole[:2000]}")
        turn, is_cheap = divmod(number, DEAR_EVERY)
        verb = SWEEPS[number % len(SWEEPS)] if is_cheap else DEAR_SWEEPS[turn % len(DEAR_SWEEPS)]
        _sweep(world, session, verb, found)
        _go_on(session, found)
    finally:
        path.write_bytes(content)
    for place in range(before, len(found.wrong)):
        found.wrong[place] = f"seed {seed}, {number}: {path.name}, {damage.__name__}: {found.wrong[place]}"


def _sweep(world: World, session: SessionDir, verb: str, found: Found) -> None:
    code, out = look(world, session, verb, found)
    allowed = (0, 1) if verb.startswith("doctor") else (0,)
    if code not in allowed:
        found.wrong.append(f"{verb}: exit {code}")
    others = {other.session_id for other in world.sessions} - {session.session_id}
    if verb.startswith("list --json") and not others <= {one["session_id"] for one in json.loads(out)["sessions"]}:
        found.wrong.append(f"{verb} has not all others: {out}")


def _go_on(session: SessionDir, found: Found) -> None:
    """What `resume` and a supervisor read before anything is started."""
    for step in (_check_logs, load_requests):
        try:
            step(session)
        except (SessionrunError, OSError):
            pass
        except Exception as error:
            found.wrong.append(f"{step.__name__}: {error!r}")


def note_whole(world: World) -> None:
    """Remember what the verbs say while nothing is damaged; nothing may be wrong then."""
    found = Found()
    for session in world.sessions:
        for verb in POLLS:
            world.whole[session.session_id, verb] = look(world, session, verb, found)[1]
        for verb in (*SWEEPS, *DEAR_SWEEPS):
            _sweep(world, session, verb, found)
    assert not found.wrong, found.wrong


def run_mutations(world: World, count: int, seed: int) -> Found:
    """Do so many; a verb that does not return ends the process with all its stacks."""
    found = Found()
    note_whole(world)
    old = signal.signal(signal.SIGALRM, _tell_hang)
    try:
        for number in range(count):
            signal.alarm(HANG_S)
            mutate(world, number, seed, found)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
    return found


def _tell_hang(number: int, frame: object) -> None:
    raise AssertionError(f"no answer for {HANG_S} s")

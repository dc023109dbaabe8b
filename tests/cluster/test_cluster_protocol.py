"""The protocol of a cluster, without processes: permits, leases, heads and links on a virtual clock."""

from __future__ import annotations

import asyncio
import base64
import errno
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from cluster_simulation import TIMERS, play
from conftest import slow, slow_seed

from sessionrun.cluster import dask_executor, permits
from sessionrun.cluster.dask_carrier import register
from sessionrun.cluster.dask_executor import ALL, Arrivals, choose_node
from sessionrun.cluster.dask_scheduler import WaitingRoom
from sessionrun.cluster.ends import CALL_SLACK_S, Head, Link, Opened, Timers, name_epoch, parse_timers
from sessionrun.cluster.messages import AWAY_S, QUIET_S, Message
from sessionrun.keeper.lease import Lease, LeaseFile
from sessionrun.model.asked import Sandbox
from sessionrun.store.session import SessionDir
from sessionrun.walls.trial import list_problems

NO_BWRAP = {"project": "bubblewrap is not installed"}
JOB = "s/t/1/1/work/1"
ABOUT: Message = {"argv": ["true"]}
REASONS = {
    permits.LEASE_OVER: "lease",
    permits.NEVER_DELIVERED: "undelivered",
    permits.NEVER_SUBMITTED: "unsubmitted",
    permits.NOT_THERE: "not there",
    permits.STOPPED: "stopped",
}
TIMES = {
    "silence": TIMERS.silence,
    "lease": TIMERS.lease,
    "margin": TIMERS.margin,
    "call": CALL_SLACK_S,
    "closed": permits.CLOSED_S,
    "quiet": QUIET_S,
    "away": AWAY_S,
    "longest": permits.LONGEST_S,
}


def name_job(name: str) -> str:
    """`t` is the WORK of the task t, `t/release` its RELEASE."""
    task, _, phase = name.partition("/")
    return f"s/{task}/1/1/{phase or 'work'}/1"


def make_link(boot: int = 0, walls: Mapping[str, str] | None = None) -> Link:
    return Link({"node": "a", "name": "a", "slots": 2, "version": "1", "walls": walls or {}, "boot": boot})


def short(job: str) -> str:
    return job.split("/")[1]


class Cluster:
    """Permits, a session's heads and the node a; a story says what happens, one move after the other.

    Each move returns what is told of it, in words: that is all that an answer or a reply holds.  A tick is one
    that is sent, and its answer; `keep` is an answer on its way, `hold` a call.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.permits = permits.Permits("e1", self.now, TIMERS)
        self.heads = [Head("s", 1, {})]
        self.link = make_link()
        self.booted = 0.0
        self.lagging: Message = {}
        self.kept: Message = {}
        self.held: Message = {}
        for _ in range(2):
            self.do_call()
        self.do_tick()

    def play(self, move: str) -> list[str]:
        word, *about = move.split()
        if word in ("drop", "stop", "wrote", "close"):
            self.do_want(word, *about)
            return self.do_call()
        return list(getattr(self, f"do_{word}")(*about) or ())

    # --- the node ---

    def make(self, *about: str) -> Message:
        """A tick, with jobs by their names: `t` is held, `t!` has ended, and so has `t!lease`, by its lease."""
        held = [name_job(one) for one in about if "!" not in one and one != "out"]
        ends = [make_end(*one.split("!")) for one in about if "!" in one]
        out = [CHUNK] if "out" in about else []
        now_ns = round((self.now - self.booted) * 1e9)
        return self.link.make_tick(now_ns, held=held, ends=ends, out=out, wait=0.0)

    def do_send(self, *about: str) -> None:
        assert self.permits.take_tick(self.now, self.make(*about))

    def do_unsent(self) -> None:
        self.lagging = self.make()

    def do_arrive(self) -> list[str]:
        """The tick that was not sent comes."""
        return [] if self.permits.take_tick(self.now, self.lagging) else ["refused"]

    def do_keep(self) -> None:
        self.kept = self.permits.answer_node(self.now, "a")

    def do_take(self) -> list[str]:
        return self.take(self.kept)

    def do_tick(self, *about: str) -> list[str]:
        self.do_send(*about)
        return self.take(self.permits.answer_node(self.now, "a"))

    def take(self, answer: Message) -> list[str]:
        if not self.link.take(answer):
            return ["outdated"]
        assert all(order == ABOUT for order in answer["orders"].values())
        lists = {"order": answer["orders"], "void": answer["void"], "ack": answer["ack"]}
        told = [f"{word} {short(job)}" for word, jobs in lists.items() for job in jobs]
        told += [f"wrote {short(job)} {size}" for job, _, size in answer["wrote"]]
        stops = [f"stop {short(job)} {level}" for job, level in answer["stop"]]
        flags = {"no lease": not answer["renew"], "leave": answer["leave"]}
        return [*told, *stops, *(word for word, is_so in flags.items() if is_so)]

    def do_anew(self, boot: str = "0") -> None:
        """It is started anew; with another boot the clock of its machine begins anew."""
        self.link = make_link(int(boot))
        self.booted = self.now if int(boot) else 0.0

    # --- the session ---

    def do_offer(self, name: str) -> None:
        at = Opened("a", self.heads[0].epoch or "")
        self.heads[0].submit(name_job(name), at, ABOUT, waits="release" in name)

    def do_submit(self, name: str) -> list[str]:
        self.do_offer(name)
        return self.do_call()

    def do_want(self, word: str, *about: str) -> None:
        values = [int(one) if one.isdigit() else one for one in about[1:]]
        getattr(self.heads[0], word)(*map(name_job, about[:1]), *values)

    def do_second(self, *names: str) -> None:
        """Another supervisor, whose journal has these jobs open."""
        self.heads.append(Head("s", 2, {name_job(name): Opened("a", "e1") for name in names}))

    def do_journal(self, name: str, lease: str) -> None:
        """It was opened in an epoch of before, with another lease."""
        epoch = name_epoch("old", replace(TIMERS, lease=float(lease)))
        self.heads[0].opened[name_job(name)] = Opened("a", epoch)

    def do_hold(self) -> None:
        self.held = self.heads[0].make_call(0.0)

    def do_unheard(self) -> list[str]:
        """A call whose reply is lost."""
        told = self.word_reply(self.answer(self.heads[0].make_call(0.0)))
        self.heads[0].fail()
        return told

    def do_late(self) -> list[str]:
        """The call that was held."""
        return self.deliver(self.heads[0], self.held)

    def do_over(self) -> list[str]:
        return ["yes" if self.heads[0].is_over else "no"]

    def do_call(self, head: str = "1") -> list[str]:
        of = self.heads[int(head) - 1]
        return self.deliver(of, of.make_call(0.0))

    def deliver(self, head: Head, call: Message) -> list[str]:
        reply = self.answer(call)
        head.take(call, reply)
        assert head.superseded == (reply["state"] == "superseded")
        return self.word_reply(reply)

    def answer(self, call: Message) -> Message:
        state = self.permits.take_call(self.now, call)
        return self.permits.reply(self.now, "s") if state == "ok" else self.permits.reply_nothing(state)

    def word_reply(self, reply: Message) -> list[str]:
        told = [reply["state"]] if reply["state"] != "ok" else []
        for kind, one in reply["news"]:
            if kind == "ended":
                told.append(f"{one.get('reason', 'end')} {short(one['job'])}")
            elif kind == "dead":
                told.append(f"{short(one['job'])} {REASONS[one['reason']]}{' ran' if one['ran'] else ''}")
        return [*told, *(f"out {short(one['job'])}" for one in reply["out"])]

    # --- the scheduler, and people ---

    def do_restart(self) -> None:
        self.permits = permits.Permits("e2", self.now, TIMERS)

    def do_wait(self, *parts: str) -> None:
        """So many seconds, in all."""
        self.now = round(self.now + sum(TIMES[part] if part in TIMES else float(part) for part in parts), 3)
        self.permits.advance(self.now)

    def do_news(self) -> list[str]:
        return ["yes" if self.permits.node_has_news("a") else "no"]

    def do_show(self) -> list[str]:
        self.do_call()
        node = self.heads[0].nodes["a"]
        return ["lives" if node["lives"] else "gone", *(["silent"] if node["silent_s"] is not None else [])]

    def do_sessions(self) -> list[str]:
        return list(self.permits.sessions)

    def do_end(self, force: str = "") -> list[str]:
        """A person ends the nodes."""
        told = self.permits.stop_nodes(self.now, force=bool(force))
        assert all(one["node"] == "a" for one in told["busy"])
        busy = [f"busy {short(one['job'])}" for one in told["busy"]]
        return [*busy, *(one["state"] for one in told["nodes"]), *([] if told["begun"] else ["refused"])]


def make_end(name: str, kind: str = "") -> Message:
    return {"job": name_job(name), "kind": kind or "exit", "files": {}}


CHUNK = {"job": JOB, "name": "out", "at": 0, "content": "eA=="}

STORIES = {
    "a job goes to its node, and its end comes back until it is dropped": """
        submit t; tick -> order t; tick t; tick t!; call -> end t; drop t; tick t! -> ack t""",
    "that an end may be forgotten is no reason for an answer; what no session wants is": """
        submit t; tick -> order t; send t!; call -> end t; drop t; news -> no; keep; take -> ack t;
        send t; news -> yes""",
    "an order whose answer was dropped is offered again, and only then": """
        submit t; send; keep; unsent; take -> outdated; tick -> order t; tick t""",
    "a node that does not tick is silent within its lease, until it ticks": """
        show -> lives; wait silence -0.1; show -> lives; wait 0.2; show -> lives, silent; tick; show -> lives;
        wait lease 0.1; show -> gone, silent; tick; show -> lives""",
    "without a tick a job is dead when lease and margin are over, and is killed when it comes back": """
        submit t; tick -> order t; wait lease margin -0.01; call; wait 0.02; call -> t lease ran;
        tick t -> stop t 3; drop t; tick t -> void t""",
    "a new scheduler takes up what it is told, and kills nothing before": """
        submit t; tick -> order t; submit u; restart; tick t -> no lease; call -> open; call; call; tick t;
        call -> u not there; tick t!; call -> end t""",
    "a new scheduler with a shorter lease waits for the longer one of before": """
        journal t 60; restart; call -> open; call; wait 61; call; wait margin -0.9; call -> t lease ran""",
    "a new scheduler kills jobs of a session that does not come, and keeps their ends": """
        submit t; tick -> order t; restart; tick t -> no lease; wait lease margin 0.1; tick t -> stop t 3; tick t!;
        call -> open; call; tick t!; call -> end t""",
    "a call that was delayed beyond a later one is stale: its job may have another attempt by now": """
        offer t; hold; call; wait lease 0.1; call -> t undelivered; drop t; tick; late -> stale; tick""",
    "what is wanted while a call is on its way is said by the next one": """
        offer t; hold; offer u; late; tick -> order t; call; tick t -> order u; want stop t 1; hold; want stop t 2;
        late; tick t u -> stop t 1; call; tick t u -> stop t 2""",
    "an order of which it is not known whether a scheduler before had it may have been delivered": """
        offer t; unheard; tick -> order t; restart; call -> open; call; wait lease margin -0.1; call;
        wait 0.2; call -> t lease ran""",
    "an earlier supervisor is superseded, and leases go on before the next one has said what is open": """
        submit t; tick -> order t; second t u; call 2 -> open; tick t; call 2 -> u unsubmitted; call -> superseded;
        tick t!; call 2 -> end t""",
    "an order in the last answer of a scheduler counts until the next tick": """
        submit t; send; keep; restart; take -> order t; tick t -> no lease; call -> open; call; tick t; tick t!;
        call -> end t""",
    "so nothing is concluded from a tick that was sent before, though it comes to the next scheduler": """
        submit t; unsent; arrive; keep; restart; call -> open; call; arrive; call; take -> order t; tick t;
        tick t!; call -> end t""",
    "one that does not arrive before that tick never counts": """
        submit t; send; keep; restart; tick -> no lease; call -> open; call; tick; take -> outdated;
        call -> t not there""",
    "a supervisor that was killed with an end hears it again": """
        submit t; tick -> order t; tick t!; call -> end t; second t; call 2 -> open; call 2 -> end t; tick t!""",
    "unless its journal has it": """
        submit t; tick -> order t; tick t!; call -> end t; second; call 2 -> open; call 2; tick t! -> ack t""",
    "a machine that was started again is a node again, and its ticks of the boot before come too late": """
        wait 1000; tick; unsent; wait lease margin 1; anew 1; tick; arrive -> refused; show -> lives""",
    "what a lost reply told is told again": """
        submit t; tick -> order t; tick t!; unheard -> end t; call -> end t""",
    "a stop is in each answer until the end": """
        submit t; tick -> order t; stop t 1; news -> yes; tick t -> stop t 1; tick t -> stop t 1; news -> no;
        stop t 2; tick t -> stop t 2; tick t!""",
    "a stopped job that was not delivered is dead at once; a node gets as many as it has slots": """
        submit t; submit u; submit v; tick -> order t, order u; tick t u; news -> no; stop v 1 -> v stopped;
        tick t u; stop t 1; tick t u -> stop t 1""",
    "an order may wait for a node that is gone, until it is stopped": """
        submit t/release; wait lease margin 1; submit u/release; wait 1000; call; stop u/release 2 -> u stopped;
        tick -> order t""",
    "a session that has ended leaves nothing, and its late calls do nothing": """
        submit t; tick -> order t; hold; close; tick t -> void t, no lease; late -> superseded;
        wait closed 1; tick; sessions""",
    "it is over when a call that says so was taken, and not one before": """
        hold; want close; late; over -> no; restart; call -> open; over -> no; call; over -> yes""",
    "output goes through, and is not kept where no session fetches it": """
        submit t; tick -> order t; tick t out; call -> out t; call; wrote t out 1;
        tick t -> wrote t 1; wait call -0.1; tick t out; call -> out t; wait call 0.1; tick t out; call""",
    "a node without jobs goes when it has been quiet, and stays if a person starts it again": """
        end -> leaving; show -> gone; wait quiet; tick; wait 0.1; tick -> leave; wait away 0.1; end -> left;
        anew; tick; show -> lives""",
    "jobs keep their node; by force they are ended, and it goes when their work has come home": """
        submit t; end -> busy t, up, refused; tick -> order t; tick t; end -> busy t, up, refused;
        end force -> busy t, leaving; tick t -> stop t 3; tick t!lease;
        call -> its node was stopped with the cluster t; wait quiet 1; tick t!; drop t; submit r/release;
        wait quiet 1; tick -> order r; wait longest;
        tick r/release -> stop r 3, leave""",
    "an order that waits at a node that goes starts anew elsewhere": """
        submit t; end force -> busy t, leaving; call -> t undelivered""",
    "a job whose session has not come back keeps its node": """
        restart; tick t -> no lease; end -> busy t, up, refused""",
}
"""What happens between a scheduler, the node a and a session: each move, and all that is told of it."""


@pytest.mark.parametrize("story", STORIES)
def test_what_is_told(story: str) -> None:
    cluster = Cluster()
    for step in " ".join(STORIES[story].split()).split("; "):
        move, _, wanted = step.partition(" -> ")
        assert cluster.play(move) == (wanted.split(", ") if wanted else []), step


@pytest.mark.parametrize(
    ("until", "now", "taken"),
    [(10, 5, True), (10, 10, False), (9, 10, False), (7, 5, True)],
)
def test_a_lease_is_renewed_only_before_its_new_end(until: int, now: int, taken: bool) -> None:
    lease = Lease(8, 2)
    assert lease.renew(until, 3, now) is taken
    assert lease.until_ns == (until if taken else 8)
    edge = lease.until_ns - lease.grace_ns
    assert lease.may_start(edge - 1) and not lease.may_start(edge)


def test_a_lease_of_another_boot_or_a_damaged_one_is_over(tmp_path: Path) -> None:
    file = LeaseFile(tmp_path)
    assert file.read().is_over(1)
    file.write(Lease(10**18, 5))
    assert not file.read().is_over(10**17)
    text = (tmp_path / "lease").read_bytes()
    for damage in (text[:30], text[:-10] + b"another-b\n", b""):
        (tmp_path / "lease").write_bytes(damage)
        assert file.read().is_over(1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lease=5", "three ticks"),
        ("margin=1", "margin must be at least 2.12"),
        ("tick=0", "more than 0"),
        ("speed=3", "'speed' is not one of grace, lease, margin, tick"),
        ("lease=many", "'lease=many' is no time"),
        ("lease=nan", "'lease=nan' is no time"),
        ("tick=inf", "'tick=inf' is no time"),
    ],
)
def test_times_that_do_not_go_together(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_timers(text)
    assert parse_timers("") == Timers() and parse_timers("tick=0.5,lease=5,grace=0.5,margin=2.2") == TIMERS
    assert parse_timers("lease=70, tick=5,grace=.5") == replace(Timers(), lease=70.0, tick=5.0, grace=0.5)


# --- the simulation ---


@pytest.mark.parametrize("count", [8, *slow(1000)])
def test_faults_of_all_kinds_break_no_promise(count: int, say: Callable[[str], None]) -> None:
    first = slow_seed() if count > 8 else 0
    faults = jobs = lost = 0
    for seed in range(first, first + count):
        truth = play(seed)
        assert truth.violations == [], f"seed {seed}"
        faults, jobs, lost = faults + truth.faults, jobs + sum(map(len, truth.spans.values())), lost + truth.lost
    assert jobs > 10 * count
    say(f"cluster, simulated: {faults} faults, {jobs} jobs, {lost} lost and said so")


def test_without_a_margin_jobs_are_called_dead_while_they_run() -> None:
    """The counter-proof: the simulation sees what the margin is for."""
    without = replace(TIMERS, margin=0.0)
    found = (violation for seed in range(3000) for violation in play(seed, timers=without).violations)
    assert any("while it runs" in violation for violation in found)


def test_what_walls_a_node_cannot_build_is_known_where_sessions_are() -> None:
    cluster = Cluster()
    for walls in (NO_BWRAP, {}):  # it is started again, with bubblewrap
        cluster.link = make_link(walls=walls)
        cluster.now += 1
        assert cluster.play("tick") == cluster.play("call") == []
        assert cluster.heads[0].nodes["a"]["walls"] == walls


def test_a_job_goes_to_the_node_with_most_room_of_those_that_can_do_it() -> None:
    slots, used = {"a": 4, "b": 2}, {"a": 3}
    assert [choose_node(slots, used, without) for without in ("", "b", "ab")] == ["b", "a", None]
    assert choose_node({"a": 4}, used, {"b"}) == "a"


def test_a_call_that_waits_beyond_the_end_of_its_session_stops_no_clock() -> None:
    """Its session is forgotten by then."""
    now, head, replies = [0.0], Head("s", 1, {}), list[Message]()
    room = WaitingRoom(permits.Permits("e1", 0.0, TIMERS), lambda: now[0])
    for _ in range(2):
        room.take_call(head.make_call(0.0), lambda reply: head.take(head.make_call(0.0), reply))
    head.close()
    room.take_call(head.make_call(10 * permits.CLOSED_S), replies.append)
    for now[0] in (2 * permits.CLOSED_S, 20 * permits.CLOSED_S):
        room.look_at_clock()
    assert len(replies) == 1 and not room.permits.sessions


def test_what_a_sandbox_needs_of_a_machine() -> None:
    assert Sandbox("project").needs == ("project",)
    assert Sandbox("strict", network="proxy", cpus=2.0).needs == ("strict without the network", "cpus")
    assert set(list_problems()) <= {
        *(f"{policy}{end}" for policy in ("project", "strict") for end in ("", " without the network")),
        *("memory", "cpus"),
    }


def test_a_program_of_dask_that_is_no_scheduler_is_called_so() -> None:
    answers_nothing = AsyncMock(return_value=None)
    rpc = Mock(register_scheduler_plugin=answers_nothing, register_worker_plugin=answers_nothing)
    with pytest.raises(ConnectionError, match="no scheduler"):
        asyncio.run(register(rpc))


# --- Files and ends that come back from nodes: each file is whole, and no end waits for one that cannot b ---

OWN = "jobs/t/a1-r1-work/raw"
SHARED = "jobs/t/agent/state.json"


class Home:
    """A session's machine, without a carrier that carries."""

    def __init__(self, place: Path) -> None:
        self.session = SessionDir(place / "session-s")
        self.session.path.mkdir()
        self.said: list[str] = []
        self.begin()

    def begin(self) -> None:
        """Begin another life of the supervisor."""
        self.head = Head("s", 1, {JOB: Opened("n", "e")})
        self.arrivals = Arrivals(self.session, self.head, lambda line: self.said.append(str(line)))

    def take(self, *chunks: Message, **files: int) -> list[Message]:
        left = {NAMES[name]: size for name, size in files.items()}
        end = {"job": JOB, "kind": "exit", "wait_status": 0, "files": left}
        heard = self.keep(*chunks, ends=[end] if files else ())
        return [about for kind, about in heard if kind == "ended"]

    def keep(self, *chunks: Message, ends: Iterable[Message]) -> list[tuple[str, Message]]:
        return self.arrivals.keep({"out": chunks, "news": [("ended", end) for end in ends]})

    @property
    def wrote(self) -> Mapping[str, int]:
        """What the node hears next."""
        return {name: size for _, _, name, size in self.head.make_call(0.0)["wants"]}

    def read(self, name: str) -> bytes:
        return (self.session.path / name).read_bytes()

    def write(self, name: str, content: bytes) -> Path:
        path = self.session.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path


NAMES = {"own": OWN, "shared": SHARED}


def chunk(name: str, at: int, content: bytes) -> Message:
    return {"job": JOB, "name": name, "at": at, "content": base64.b64encode(content).decode()}


@pytest.fixture
def home(own_place: Path) -> Home:
    return Home(own_place)


def test_a_file_comes_in_parts_and_its_end_waits_for_all(home: Home) -> None:
    assert home.take(chunk(OWN, 0, b"one ")) == []
    assert home.take(chunk(OWN, 8, b"three"), own=13) == [], "what comes too early is left out"
    assert home.wrote == {OWN: 4}
    assert home.take(chunk(OWN, 0, b"one ")) == [] and home.wrote == {OWN: 4}
    assert len(home.take(chunk(OWN, 4, b"two three"))) == 1
    assert home.read(OWN) == b"one two three"


@pytest.mark.parametrize("old", [b"", b"new", b"NEW", b"something much longer", b"new content and more"])
@pytest.mark.parametrize("new", [b"", b"new", b"new content"])
def test_an_older_file_in_a_shared_folder_counts_for_nothing(home: Home, old: bytes, new: bytes) -> None:
    home.write(SHARED, old)
    if new:
        assert home.take(shared=len(new)) == []
        assert home.wrote == {SHARED: 0}
    parts = [chunk(SHARED, at, new[at : at + 4]) for at in range(0, len(new), 4)]
    ends = [end for part in parts for end in home.take(part)] or home.take(shared=len(new))
    assert len(ends) == 1 and home.read(SHARED) == new


@pytest.mark.parametrize("name", NAMES)
def test_another_supervisor_has_all_of_a_file_sent_again(home: Home, name: str) -> None:
    """A power failure may have taken a part."""
    path = NAMES[name]
    home.take(chunk(path, 0, b"half "))
    os.truncate(home.session.path / path, 3)
    home.begin()
    assert home.take(**{name: 9}) == [] and home.wrote == {path: 0}
    assert home.take(chunk(path, 0, b"half ")) == []
    assert len(home.take(chunk(path, 5, b"done"))) == 1 and home.read(path) == b"half done"


@pytest.mark.parametrize("way", ["folder", "link", "file for a folder", "too long"])
def test_no_end_waits_for_a_file_that_cannot_be_here(home: Home, way: str) -> None:
    name = f"{SHARED}/inner" if way == "file for a folder" else SHARED
    if way == "folder":
        home.write(f"{SHARED}/inner", b"x")
    if way == "link":
        home.write(SHARED, b"").unlink()
        (home.session.path / SHARED).symlink_to("/etc/passwd")
    if way == "file for a folder":
        home.write(SHARED, b"x")
    if way == "too long":
        name = f"jobs/t/{'x' * 300}"
    end = {"job": JOB, "kind": "exit", "wait_status": 0, "files": {name: 3, OWN: 2}}
    heard = home.keep(chunk(name, 0, b"abc"), chunk(OWN, 0, b"ok"), ends=[end])
    assert [kind for kind, _ in heard] == ["ended"]
    assert home.wrote == {name: ALL, OWN: 2}
    assert len(home.said) == 1 and "does not come home" in home.said[0]


def test_an_end_whose_file_the_disk_refuses_is_tried_again(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        full.setattr(dask_executor, "open_regular", Mock(side_effect=OSError(errno.ENOSPC, "No space left")))
        assert home.take(own=0) == [] and home.wrote == {}
    assert len(home.take()) == 1 and home.read(OWN) == b""


@pytest.mark.parametrize("damage", [{"content": "%"}, {"at": "x"}, {"content": None}])
def test_a_damaged_chunk_ends_nothing(home: Home, damage: Mapping[str, Any]) -> None:
    home.take({**chunk(OWN, 0, b"abc"), **damage}, chunk("task-t.txt", 0, b"fine"))
    assert home.read("task-t.txt") == b"fine"
    assert home.wrote == {OWN: ALL, "task-t.txt": 4} and "cannot be read" in home.said[0]


@pytest.mark.parametrize("name", ["../x", "jobs/u/x", "jobs/t/../../x", "task-u.txt", "status.json", "jobs/t//x"])
def test_nothing_is_written_where_a_task_has_no_business(home: Home, name: str) -> None:
    home.take(chunk(name, 0, b"evil"))
    assert [path for path in home.session.path.parent.rglob("*") if path.is_file()] == []
    assert home.wrote == {name: ALL}

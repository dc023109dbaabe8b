"""The scheduler's end: which job may run on which node, and until when.  In memory alone.

    offered     not in an answer so far, or the node showed that it did not get that answer
    delivered   in an answer to its node: this is the permit, and it counts only with the lease of that answer
    ended       its node told its end
    dead        it has not started and never will, or its node's lease is over for longer than the margin

The session's call `drop` forgets a permit.  What a node has without a permit is void: the node kills it.

An *epoch* is one life of the scheduler.  A session tells a new one what it has open.  Of jobs that were submitted
in an older epoch it cannot be known whether they run: so they count as delivered, and the lease of their node as
renewed now.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from sessionrun.cluster.ends import CALL_SLACK_S, Timers, lease_of
from sessionrun.cluster.messages import (
    ABANDON,
    Message,
    Node,
    Party,
    Permit,
    ReplyState,
    Session,
    key_of,
    session_of,
)

NEVER_DELIVERED: Final = "its order was never delivered"
STOPPED: Final = "it was stopped before its order was delivered"
NEVER_SUBMITTED: Final = "its order never reached the scheduler"
NOT_THERE: Final = "its node does not have it"
NODE_STOPPED: Final = "its node was stopped with the cluster"
LEASE_OVER: Final = "the lease of its node was over"

CLOSED_S: Final = 600.0
"""How long the scheduler remembers that a session has ended: longer than any of its calls can be on the way."""

LONGEST_S: Final = 60.0
"""A node goes after this time whatever a session still wants, such as one whose supervisor is gone."""


class Permits:
    """All permits of one epoch.  All times are the scheduler's own clock, in seconds.

    That a time has come is seen by `advance` alone, which is called every now and then: a node whose tick comes
    before that has its lease renewed, for nothing was concluded yet.
    """

    def __init__(self, epoch: str, now: float, timers: Timers) -> None:
        self.epoch = epoch
        self.timers = timers
        self.nodes: dict[str, Node] = {}
        self.sessions: dict[str, Session] = {}
        self._born = now
        self._nodes_version = 0
        self._touched: dict[Party, None] = {}

    # --- nodes ---

    def take_tick(self, now: float, tick: Message) -> bool:
        """Take in what a node tells; False: it sent a later one before."""
        node = self._find_node(tick["node"])
        sent = tick["boot"], tick["seq"]  # the clock of a machine begins anew with each boot
        if sent <= node.sent:
            return False
        about = {name: tick[name] for name in node.about}
        stays = node.leaves_by is not None and tick["epoch"] is None  # it was to go, and was started anew
        if stays or not node.lives or node.silent or about != node.about:
            self._note_change()
        node.about, node.sent, node.lives, node.silent = about, sent, True, False
        node.until, node.left_at = now + self.timers.lease, None
        node.leaves_by = None if stays else node.leaves_by
        held, ends = set(tick["held"]), {end["job"]: end for end in tick["ends"]}
        for permit in list(node.permits.values()):
            if permit.job in ends:
                self._end(permit, ends[permit.job])
            elif permit.job in held:
                self._begin(permit)
            elif permit.state == "delivered" and not permit.adopted:
                permit.state = "offered"  # of the answer that held it none counts any more
            elif permit.state == "delivered" and tick["epoch"] == self.epoch:
                # before the node has had an answer of this epoch, one of an older epoch may still count
                self._die(permit, NOT_THERE)
        node.held, node.ends = list(tick["held"]), list(ends)
        for chunk in tick["out"]:
            printing, session = node.permits.get(chunk["job"]), self.sessions.get(session_of(chunk["job"]))
            # output is handed on; what its session does not fetch now, the node sends again
            if printing is not None and session is not None and now <= session.fetches_until:
                printing.chunks[chunk["name"]] = chunk
                self._tell(printing)
        return True

    def _note_change(self) -> None:
        """The nodes are not what the sessions were told."""
        self._nodes_version += 1
        self._touched |= {("session", name): None for name in self.sessions}

    def _end(self, permit: Permit, end: Message) -> None:
        if permit.state == "ended":
            return
        if permit.node.leaves_by is not None and end["kind"] == "lease":
            end = {**end, "reason": NODE_STOPPED}
        permit.state, permit.end, permit.order = "ended", end, None
        self._tell(permit)

    def _begin(self, permit: Permit) -> None:
        if permit.state == "offered":
            permit.state = "delivered"
        if not permit.begun and permit.state == "delivered":
            permit.begun = True
            self._tell(permit)

    def _die(self, permit: Permit, reason: str, *, ran: bool = False) -> None:
        """It has not run and never will or, with `ran`, nothing of it runs any more."""
        permit.state, permit.order = "dead", None
        permit.end = {"job": permit.job, "reason": reason, "ran": ran}
        self._tell(permit)

    def _tell(self, permit: Permit) -> None:
        session = session_of(permit.job)
        self.sessions[session].news[permit.job] = permit
        self._touched["session", session] = None

    def node_has_news(self, node_id: str) -> bool:
        """Whether an answer would bring something besides the lease that is wanted at once.

        That the node may forget an end is not: the next answer says so.
        """
        node = self.nodes[node_id]
        void, _, killed = self._find_strange(node)
        if void or killed or node.wrote or (self._renews and node.choose_offers()):
            return True
        return any(permit.stop > 0 for permit in node.list_permits("delivered"))

    def answer_node(self, now: float, node_id: str) -> Message:
        """The answer to the last tick of a node.  The permits in it are delivered from here on."""
        node = self.nodes[node_id]
        # leases go on once one session is there, or has had the time to come
        renews = self._renews or self._is_settled(now)
        orders = {}
        for permit in node.choose_offers() if renews else ():
            orders[permit.job] = permit.order
            permit.state = "delivered"
        void, ends, abandoned = self._find_strange(node, now)
        stop = [[job, ABANDON] for job in abandoned]
        for permit in node.list_permits("delivered"):
            if permit.stop:
                permit.stop = -abs(permit.stop)  # it is in each answer from now on, but no news any more
                stop.append([permit.job, -permit.stop])
        wrote, node.wrote = [[*place, size] for place, size in node.wrote.items()], {}
        lists = {"orders": orders, "stop": stop, "void": void, "ack": ends, "wrote": wrote}
        about = {"seq": node.sent[1], "epoch": self.epoch, "renew": renews, "times": asdict(self.timers)}
        return {**about, "leave": node.may_leave(now), **lists}

    @property
    def _renews(self) -> bool:
        # known, not attached: a supervisor that was killed may take long to come, and its permits are here
        return any(session.known for session in self.sessions.values())

    def _is_settled(self, now: float) -> bool:
        """Whether all sessions that live have had the time to tell this epoch what they have open."""
        return now > self._born + self.timers.lease + self.timers.margin

    def _find_strange(self, node: Node, now: float = float("-inf")) -> tuple[list[str], list[str], list[str]]:
        """What the node told in its last tick without a permit that counts.

        Jobs that it has and no session wants; ends that no session wants; and jobs to be killed whose ends are
        kept, for the session may still ask: it has not come to this epoch, or has not heard that the job is dead.
        """
        strange = [job for job in node.held if job not in node.permits]
        void = [job for job in strange if self._knows(job)]
        ends = [job for job in node.ends if job not in node.permits and self._knows(job)]
        killed = [job for job in node.held if job in node.permits and node.permits[job].state == "dead"]
        if self._is_settled(now):
            killed += [job for job in strange if not self._knows(job)]
        return void, ends, killed

    def _knows(self, job: str) -> bool:
        """Whether its session has told this epoch what it has open, or that it has ended."""
        session = self.sessions.get(session_of(job))
        return session is not None and (session.attached or session.closed_at is not None)

    # --- sessions ---

    def take_call(self, now: float, call: Message) -> ReplyState:
        """Take in what a session tells; all but ``ok``: nothing of it was."""
        session = self.sessions.setdefault(call["session"], Session())
        if call["gen"] < session.gen or (session.closed_at is not None and call["gen"] == session.gen):
            return "superseded"
        if call["gen"] > session.gen:
            session.gen, session.seq, session.attached, session.closed_at = call["gen"], -1, False, None
        if call["seq"] <= session.seq:
            return "stale"
        session.seq, session.fetches_until = call["seq"], now + call["wait"] + CALL_SLACK_S
        if call["open"] is not None and call["epoch"] == self.epoch:
            self._attach(now, session, call["open"])
        elif not session.attached:
            return "open"
        if call["again"]:
            self._tell_again(session)
        self._obey(now, session, call["wants"])
        self._touched["session", call["session"]] = None
        if call["close"]:
            for permit in list(session.permits.values()):
                self._forget(session, permit)
            session.attached, session.known, session.closed_at = False, False, now
        return "ok"

    def _obey(self, now: float, session: Session, wants: Iterable[list[Any]]) -> None:
        for kind, job, *about in wants:
            permit = session.permits.get(job)
            if kind == "submit":
                if permit is None:
                    self._submit(now, session, job, *about)
            elif permit is None:
                continue
            elif kind == "drop":
                self._forget(session, permit)
            elif kind == "wrote":
                name, size = about
                permit.node.wrote[job, name] = size
                self._touched["node", permit.node.node_id] = None
            elif permit.state == "offered":  # it is to stop
                self._die(permit, STOPPED)  # no answer that counts has it
            elif permit.state == "delivered" and about[0] > abs(permit.stop):
                permit.stop = about[0]
                self._touched["node", permit.node.node_id] = None

    def _attach(self, now: float, session: Session, opened: list[list[str]]) -> None:
        names = {job for job, _, _ in opened}
        for permit in () if session.attached else list(session.permits.values()):
            if permit.job not in names:  # a supervisor before this one had it, and its end
                self._forget(session, permit)
        session.attached, session.known, session.nodes_told = True, True, -1
        for job, node_id, epoch in opened:
            if job in session.permits:
                continue
            node = self._find_node(node_id)
            permit = session.permits[job] = node.permits[job] = Permit(job, node, None, "delivered", adopted=True)
            if epoch == self.epoch:
                self._die(permit, NEVER_SUBMITTED)
            else:
                node.until = max(node.until, now + max(self.timers.lease, lease_of(epoch)))
        self._tell_again(session)

    def _submit(self, now: float, session: Session, job: str, node_id: str, order: Message, waits: bool) -> None:
        node = self._find_node(node_id)
        permit = session.permits[job] = node.permits[job] = Permit(job, node, order, waits=waits)
        if now > node.until and not waits:
            self._die(permit, NEVER_DELIVERED)
        else:
            self._touched["node", node_id] = None

    def _forget(self, session: Session, permit: Permit) -> None:
        self._touched["node", permit.node.node_id] = None
        del session.permits[permit.job]
        session.news.pop(permit.job, None)
        permit.node.permits.pop(permit.job, None)

    def _tell_again(self, session: Session) -> None:
        for permit in session.permits.values():
            if permit.end is not None or permit.begun:
                session.news[permit.job] = permit

    def session_has_news(self, session_id: str) -> bool:
        session = self.sessions[session_id]
        return bool(session.news) or session.nodes_told != self._nodes_version

    def reply(self, now: float, session_id: str) -> Message:
        session = self.sessions[session_id]
        permits, session.news = list(session.news.values()), {}
        news, out = list[tuple[str, Message]](), list[Message]()
        for permit in permits:
            out += permit.chunks.values()
            permit.chunks = {}
            if permit.end is not None:
                news.append((permit.state, permit.end))
            elif permit.begun:
                news.append(("begun", {"job": permit.job}))
        nodes = None if session.nodes_told == self._nodes_version else self.show_nodes(now)
        session.nodes_told = self._nodes_version
        return {**self.reply_nothing(), "nodes": nodes, "news": news, "out": out}

    def show_nodes(self, now: float) -> list[Message]:
        return [node.show(now, self.timers.lease) for node in self.nodes.values()]

    def show(self, now: float) -> Message:
        """The cluster as people see it: nodes, and sessions that have not ended."""
        living = [
            {"id": name, "jobs": len(session.permits)}
            for name, session in self.sessions.items()
            if session.closed_at is None
        ]
        return {"epoch": self.epoch, "nodes": self.show_nodes(now), "sessions": living}

    def reply_nothing(self, state: ReplyState = "ok") -> Message:
        """A reply without news: to a call after which another one came, or that was not taken."""
        return {"state": state, "epoch": self.epoch, "nodes": None, "news": [], "out": []}

    def take_touched(self) -> Iterable[Party]:
        """For whom something has happened since this was asked last: they may have news."""
        touched, self._touched = self._touched, {}
        return touched

    # --- time ---

    def advance(self, now: float) -> None:
        """Leases that are over by now end what they allowed."""
        for node in self.nodes.values():
            if node.until == -math.inf:  # it has never had a lease
                continue
            if not node.silent and now > node.until - self.timers.lease + self.timers.silence:
                node.silent = True
                self._note_change()
            if now <= node.until:
                continue
            if node.lives:
                node.lives = False
                self._note_change()
            for permit in list(node.permits.values()):
                if permit.state == "offered" and not permit.waits:
                    self._die(permit, NEVER_DELIVERED)
                elif permit.state == "delivered" and now > node.until + self.timers.margin:
                    self._die(permit, LEASE_OVER, ran=True)
        for name, session in list(self.sessions.items()):
            if session.closed_at is not None and now > session.closed_at + CLOSED_S:
                del self.sessions[name]

    def _find_node(self, node_id: str) -> Node:
        return self.nodes.setdefault(node_id, Node(node_id))

    # --- the end of nodes for good, as a person wants it ---

    def stop_nodes(self, now: float, *, force: bool) -> Message:
        """Tell the nodes that live to end, unless they have jobs, or may have; says how far that is.

        With `force` their jobs end.  To ask again changes nothing more.
        """
        nodes, busy = self.nodes.values(), list[Message]()
        for node in nodes:
            wanted = [permit.job for permit in node.permits.values() if permit.state in ("offered", "delivered")]
            # also those whose sessions have not come back
            jobs = dict.fromkeys([*wanted, *(node.held if node.lives else ())])
            busy += [{"job": job, "node": node.about["name"]} for job in jobs]
        begun = not busy or force or any(node.leaves_by is not None for node in nodes)
        for node in nodes:
            if begun and node.lives:
                self._send_away(node, now)
        return {"busy": busy, "nodes": [node.describe(now) for node in nodes], "begun": begun}

    def _send_away(self, node: Node, now: float) -> None:
        if node.leaves_by is None:
            node.leaves_by, node.quiet_since = now + LONGEST_S, now
            self._note_change()
        for permit in list(node.permits.values()):
            if key_of(permit.job).phase == "release":
                continue
            if permit.state == "offered" and not permit.waits:
                self._die(permit, NEVER_DELIVERED)
            elif permit.state == "delivered" and abs(permit.stop) < ABANDON:
                permit.stop = ABANDON
                self._touched["node", node.node_id] = None

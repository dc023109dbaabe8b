"""Frames between supervisor and keeper: whole or not at all, with any byte, however long."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from sessionrun.keeper.wire import Connection, JobOrder, pack
from sessionrun.model.events import HoldPlaced, JobLost
from sessionrun.model.keys import JobKey
from sessionrun.session.executor import read_frame

Ends = tuple[socket.socket, Connection]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(Connection(theirs)) as connection:
        yield ours, connection


def test_an_order_may_hold_any_byte(ends: Ends) -> None:
    ours, connection = ends
    argv = ["/bin/\udcff", "a\nb", "\udcf0\udc9f\udc98\udc80", "\U0001f600", ""]
    order = JobOrder("a/1/1/work/1", 1.5, "/\udc80", "", "/o", "/e", argv, {"A\udcfe": "\x01\udcc3"}, keeps=True)
    ours.sendall(pack(("J", *order)))
    kind, *fields = connection.receive()[0]
    assert kind == "J" and JobOrder(*fields) == order


def test_half_a_frame_is_none_also_at_the_end(ends: Ends) -> None:
    ours, connection = ends
    content = pack(("T", "a", True)) + pack(("Q",)) + pack(("T", "b", False))
    heard = []
    for place in range(len(content) - 1):
        ours.sendall(content[place : place + 1])
        heard += connection.receive()
    assert heard == [["T", "a", True], ["Q"]]
    ours.sendall(content[-1:] + b'["T", "c')
    ours.close()
    assert connection.receive() == [["T", "b", False]]
    with pytest.raises(EOFError):
        connection.receive()


def test_a_frame_may_be_longer_than_what_the_socket_takes(ends: Ends) -> None:
    ours, connection = ends
    sender, heard = Connection(ours), list[list[str]]()
    sender.send("x" * (3 << 20))
    while not heard:
        sender.flush()
        heard = connection.receive()
    assert heard == [["x" * (3 << 20)]]


def test_a_refusal_that_names_a_path_of_other_bytes_can_be_recorded(ends: Ends) -> None:
    ours, connection = ends
    key = JobKey("a", 1, 1, "work", 1)
    ours.sendall(pack(("R", key.text(), "cannot write /\udcff/ledger: No space left on device")))
    hold, lost = read_frame(connection.receive()[0], key)
    assert isinstance(hold, HoldPlaced) and isinstance(lost, JobLost)
    assert hold.reason == lost.reason == "cannot write /\ufffd/ledger: No space left on device"

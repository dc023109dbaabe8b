"""A worker: what it is asked it does in that order, what it tells wakes whoever has it, and it ends in time."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator

from sessionrun.session.worker import Worker, serve


def is_ready(worker: Worker[int, int]) -> bool:
    return bool(select.select([worker.fd], [], [], 0)[0])


def test_what_it_is_asked_it_does_in_order_and_a_descriptor_says_that_there_is_news() -> None:
    worker: Worker[int, int] = Worker("w", serve(lambda asked: [asked, -asked]))
    assert not is_ready(worker) and worker.take() == []
    for number in range(1, 4):
        worker.ask(number)
    worker.stop(60)
    assert is_ready(worker) and worker.take() == [1, -1, 2, -2, 3, -3]
    assert not is_ready(worker) and worker.take() == []
    worker.ask(4)  # it lives again
    worker.stop(60)
    assert worker.take() == [4, -4] and "w" not in {thread.name for thread in threading.enumerate()}


def serve_after(goes_on: threading.Event) -> Callable[[Worker[int, int]], None]:
    """Answers with what is asked, once that is set."""

    def answer(asked: int) -> Iterator[int]:
        goes_on.wait()
        yield asked

    return serve(answer)


def test_its_end_is_waited_for_no_longer_than_the_limit_and_what_it_is_asked_then_it_does() -> None:
    goes_on = threading.Event()
    worker: Worker[int, int] = Worker("w", serve_after(goes_on))
    worker.ask(1)
    worker.stop(0.01)
    worker.ask(2)
    goes_on.set()
    worker.stop(60)
    assert worker.take() == [1, 2]


def test_who_asks_waits_while_too_much_waits_for_it() -> None:
    goes_on, done = threading.Event(), threading.Event()

    def ask() -> None:
        for number in range(4):
            worker.ask(number)
        done.set()

    worker: Worker[int, int] = Worker("w", serve_after(goes_on), most=1)
    threading.Thread(target=ask).start()
    assert not done.wait(0.05)
    goes_on.set()
    assert done.wait(60)
    worker.stop(60)
    assert worker.take() == [0, 1, 2, 3]


def test_one_that_fails_says_so_and_begins_no_more() -> None:
    worker: Worker[int, int] = Worker("w", serve(lambda asked: [1 // asked]))
    worker.ask(0)
    assert select.select([worker.fd], [], [], 60)[0]
    worker.ask(1)
    worker.stop(60)
    assert (worker.fault or "").startswith("ZeroDivisionError") and worker.take() == []

"""Does several things at once that run programs; if the user breaks it off, these programs end, too."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Final, TypeVar

from sessionrun.store.programs import Programs

AT_A_TIME: Final = 4
"""How many are done at once."""

_PAUSE_S: Final = 0.05

Result = TypeVar("Result")


def run_abreast(jobs: Sequence[Callable[[], Result]], tell: Callable[[Result], None]) -> None:
    """Run all, each in a thread; `tell` gets each result when it is there, in the thread of the caller.

    Whatever is raised, Ctrl+C too, ends the others first, and of all children of this process only their programs.
    """
    programs = Programs()

    def run(job: Callable[[], Result]) -> Result:
        with programs.collect():
            return job()

    pool = ThreadPoolExecutor(AT_A_TIME)
    futures = [pool.submit(run, job) for job in jobs]
    try:
        for future in as_completed(futures):
            tell(future.result())
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        while not all(future.done() for future in futures):
            programs.kill()  # again and again: a job may go on with another program
            time.sleep(_PAUSE_S)
        raise
    finally:
        pool.shutdown()

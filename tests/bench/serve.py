"""What watching and reporting in a browser costs."""

from __future__ import annotations

import subprocess
import threading
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import Final

import psutil
from browser import Browser, find_browser

from .measure import Bench, Row, Spent, command, compare, compare_figure, interleave, make_bench, supervisor_of

TASKS: Final = 1000
CLIENTS: Final = 20
GOAL: Final = 1.1
REPORT_TASKS: Final = 500
OPEN_GOAL_S: Final = 2.0


def measure(rounds: int = 3) -> list[Row]:
    """What browsers that watch a session cost its supervisor, and how long a big report takes to open.

    A round takes about ten seconds.
    """
    watched, alone = f"supervisor of {TASKS:,} tasks, {CLIENTS} browsers", "nobody watches"
    with make_bench() as bench:
        cases = {watched: lambda: _spend(bench, CLIENTS), alone: lambda: _spend(bench, 0)}
        samples = interleave(cases, rounds)
        return [compare(samples, watched, alone, GOAL), *_measure_report(bench)]


def _spend(bench: Bench, clients: int) -> Spent:
    """The processor time of a session's supervisor; the seconds are the same."""
    file = bench.write("serve.json", ["true"] * TASKS)
    server = subprocess.Popen([*command(), "serve"], cwd=bench.path, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port, token = server.stdout.readline().strip().removeprefix("http://127.0.0.1:").split("/?token=")
        _, session = bench.run("--max-parallel", 4, file)
        for _ in range(clients):
            threading.Thread(target=_watch, args=(int(port), token, session.session_id), daemon=True).start()
        used = 0.0
        while session.is_alive():
            with suppress(psutil.Error, TypeError):
                times = psutil.Process(supervisor_of(session)).cpu_times()
                used = max(used, times.user + times.system)
            time.sleep(0.02)
    finally:
        server.kill()
        server.wait()
    return Spent(used, used)


def _watch(port: int, token: str, session_id: str) -> None:
    """Do what the script of a page does, until the server ends."""
    headers = {"Authorization": f"Bearer {token}"}
    try:
        stream = HTTPConnection("127.0.0.1", port)
        stream.request("GET", f"/sessions/{session_id}/events", headers=headers)
        news = stream.getresponse()
        while line := news.readline():
            if line.startswith(b"data"):
                page = HTTPConnection("127.0.0.1", port)
                page.request("GET", f"/sessions/{session_id}/part", headers=headers)
                page.getresponse().read()
                page.close()
    except (OSError, HTTPException):
        pass


def _measure_report(bench: Bench) -> list[Row]:
    program = find_browser()
    if program is None:
        return []
    _, session = bench.run("--sync", bench.write("report.json", ["seq 2000"] * REPORT_TASKS))
    page = bench.path / "report.html"
    bench.call([*command(), "report", session.session_id, "-o", page])
    browser = Browser(program)
    try:
        begun = time.perf_counter()
        browser.open(page.as_uri())
        seen = "document.readyState === 'complete' && document.querySelectorAll('.tasks tbody tr').length"
        while browser.evaluate(seen) != REPORT_TASKS:
            time.sleep(0.01)
        took = time.perf_counter() - begun
    finally:
        browser.close()
    return [compare_figure(f"seconds to open a report of {REPORT_TASKS} tasks", took, OPEN_GOAL_S)]


BENCHMARKS: Final = {"serve": measure}

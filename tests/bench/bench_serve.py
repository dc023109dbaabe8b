"""What browsers that watch a session cost its supervisor, and how long a big report takes to open."""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from http.client import HTTPConnection, HTTPException
from importlib import import_module
from pathlib import Path
from typing import Final

import psutil

from .measure import Place, Row, Spent, command, compare, compare_figure, interleave, make_place

TASKS: Final = 1000
CLIENTS: Final = 20
GOAL: Final = 1.1
REPORT_TASKS: Final = 500
OPEN_GOAL_S: Final = 2.0


def measure(rounds: int = 3) -> list[Row]:
    """Measure; a round takes about ten seconds."""
    with make_place() as place:
        name = place.write_prompts("serve.json", ["true"] * TASKS)
        watched, alone = f"supervisor of {TASKS:,} tasks, {CLIENTS} browsers", "nobody watches"
        cases = {
            watched: lambda: _run(place, name, CLIENTS),
            alone: lambda: _run(place, name, 0),
        }
        samples = interleave(cases, rounds)
        return [compare(samples, watched, alone, GOAL), *_measure_report(place)]


def _run(place: Place, name: str, clients: int) -> Spent:
    """The processor time of a session's supervisor; the seconds are the same."""
    server = subprocess.Popen([*command(), "serve"], cwd=place.path, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port, token = server.stdout.readline().strip().removeprefix("http://127.0.0.1:").split("/?token=")
        words = [*command(), "-q", "--agent", "shell", "--max-parallel", "4", name]
        session = place.session(place.call(words)[1].strip())
        for _ in range(clients):
            threading.Thread(target=_watch, args=(int(port), token, session.session_id), daemon=True).start()
        used = 0.0
        while session.is_alive():
            status = session.load_status()
            assert status is not None
            try:
                times = psutil.Process(status["processes"]["supervisor"]["pid"]).cpu_times()
            except (psutil.Error, TypeError):
                continue
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


def _measure_report(place: Place) -> list[Row]:
    tools = import_module("tests.browser")  # tests know it by another name
    program = tools.find_browser()
    if program is None:
        return []
    name = place.write_prompts("report.json", ["seq 2000"] * REPORT_TASKS)
    session_id = place.call([*command(), "-q", "--sync", "--agent", "shell", name])[1].strip()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        place.call([*command(), "report", session_id, "-o", str(page)])
        browser = tools.Browser(program)
        try:
            begun = time.perf_counter()
            browser.open(page.as_uri())
            seen = "document.readyState === 'complete' && document.querySelectorAll('details').length"
            while browser.evaluate(seen) != REPORT_TASKS:
                time.sleep(0.01)
            took = time.perf_counter() - begun
        finally:
            browser.close()
    return [compare_figure(f"seconds to open a report of {REPORT_TASKS} tasks", took, OPEN_GOAL_S)]

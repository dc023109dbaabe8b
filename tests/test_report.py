"""The report of a session: what it shows, that nothing in it is markup but ours, and how big it gets."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from test_looks import BEGAN, make_task, make_view

from sessionrun.client.evidence import Run
from sessionrun.client.reading.digest import Excerpt
from sessionrun.client.report.gathering import MOST_BYTES, Hold, Matter, Shown, find_holds
from sessionrun.client.report.markup import tag
from sessionrun.client.report.overview import Day, gather_days, make_overview_page
from sessionrun.client.report.page import make_page
from sessionrun.model.events import Entry, Event, HoldLifted, HoldPlaced, JobClaimed
from sessionrun.model.keys import JobKey
from sessionrun.model.times import parse_time

HOSTILE = (
    """</pre></details><script>document.title = 'taken'</script><img src=x onerror="document.title='taken'">"""
)
ODD = f"{HOSTILE} & 'single' \"double\" ]]> <!-- \u202egnp.exe \x1b[31m"
SEEN = f"{HOSTILE} & 'single' \"double\" ]]> <!-- \\u202egnp.exe \\u001b[31m"
ELEMENTS = set(
    re.findall(
        r"\w+",
        "html head meta title style body main h1 h2 h3 section table thead tbody tr th td p pre span a details "
        "summary svg g rect line text",
    )
)


class Reader(HTMLParser):
    """Reads a page as a browser does: elements, their attributes, and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def make_shown(num: int, text: str, **values: Any) -> Shown:
    """A task with the same text wherever text may be."""
    task = make_task(
        num,
        title=text,
        reason=text,
        agent=text,
        model=text,
        usage={"cost_usd": 0.25, "cost_source": "agent", "unpriced_jobs": 0},
        **values,
    )
    task |= {"attempt": 1, "round": 1, "branch": text, "proof": text, "check": {"passed": True}, "labels": {}}
    task |= {"landing": {"status": "landed", "reason": text}}
    task["diff_stat"] = {"files": 1, "insertions": 2, "deletions": 3}
    begin = parse_time(BEGAN)
    work, check = (JobKey("t", 1, 1, phase, 1) for phase in ("work", "check"))
    first, second = (Entry(0, at, at, JobClaimed(work)) for at in (begin, begin + 2.0))
    runs = [Run(work, first, second), Run(check, second)]
    whole = Excerpt(text, len(text), False)
    return Shown(task, (text,), runs, whole, Excerpt(text, 10**6, True), Excerpt(f"+{text}", 100, False))


def make_matter(*tasks: Shown, **values: Any) -> Matter:
    usage = {"cost_usd": 0.5, "unpriced_jobs": 1}
    more = {"agent": "claude", "labels": {}, "usage": usage, "usage_by_model": {"opus": {"cost_usd": 0.5}}}
    return Matter(make_view([dict(shown.task) for shown in tasks], **(more | values)), list(tasks))


def test_nothing_in_it_is_markup_but_ours() -> None:
    labels = {"task": ODD, "model": ODD}
    first = make_shown(1, ODD)
    second = make_shown(2, ODD, needs=["t1"])
    for shown in (first, second):
        assert isinstance(shown.task, dict)
        shown.task["labels"] = labels
    page = make_page(make_matter(first, second, name=ODD, labels={ODD: ODD}, agent=ODD), parse_time(BEGAN) + 9)
    reader = Reader(page)
    assert {name for name, _ in reader.elements} == ELEMENTS
    assert not [key for _, attributes in reader.elements for key in attributes if key.startswith("on")]
    links = [attributes["href"] for _, attributes in reader.elements if "href" in attributes]
    assert links == ["#task-1", "#task-2"]
    assert not re.search(r"src=[^x]|url\(|@import|https?://", page)
    policy = next(attributes["content"] for _, attributes in reader.elements if "http-equiv" in attributes)
    assert policy is not None and policy.startswith("default-src 'none'")
    seen = "".join(reader.texts)
    assert seen.count(SEEN) >= 20 and "\u202e" not in page and "\x1b" not in page


def test_what_it_shows() -> None:
    good, bad = make_shown(1, "one"), make_shown(2, "two", outcome="failed", needs=["t1"])
    page = make_page(make_matter(good, bad), parse_time(BEGAN) + 9)
    elements = Reader(page).elements
    details = {attributes["id"]: "open" in attributes for name, attributes in elements if name == "details"}
    assert details == {"task-1": False, "task-2": True}
    labels = [attributes.get("aria-label") for name, attributes in elements if name == "svg"]
    assert labels == [
        "How tasks ended: 1 succeeded, 1 failed",
        "When 2 tasks ran, in 9.0 seconds",
        "What each task needs",
        "Cost by model",
    ]
    bars = [
        attributes for _, attributes in elements if attributes.get("class") == "phase work" and "x" in attributes
    ]
    assert [float(str(bar["width"])) > 100 for bar in bars[:2]] == [True, True]
    assert "at least $0.5000" in page and "(parts of 1000000 bytes)" in page and 'class="added">+one' in page
    scopes = [attributes.get("scope") for name, attributes in elements if name == "th"]
    assert scopes and set(scopes) == {"row", "col"}
    empty = make_page(make_matter(usage=None, usage_by_model=None), parse_time(BEGAN))
    assert "<svg" not in empty and "<h2>Tasks</h2>" in empty


@pytest.mark.parametrize("agents", [("alpha", "beta"), ("beta", "alpha")])
def test_the_grid_has_a_column_for_each_agent_and_model(agents: tuple[str, ...]) -> None:
    """Whichever agent is named first, none is lost: the cells add up to the runs."""
    arms = [(agent, model, sample) for agent in agents for model in ("m1", "m2") for sample in (1, 2)]
    shown = []
    for num, (agent, model, _) in enumerate(arms, 1):
        one = make_shown(num, "x")
        labels = {"task": "good", "model": model, "agent": agent}
        outcome = "succeeded" if agent == "alpha" else "failed"
        shown.append(one._replace(task={**one.task, "labels": labels, "outcome": outcome, "word": outcome}))
    page = make_page(make_matter(*shown), parse_time(BEGAN) + 9)
    grid = page.partition("<h2>Tasks and models</h2>")[2].partition("</table>")[0]
    heads = re.findall(r'<th scope="col">([^<]*)</th>', grid)
    assert heads == ["alpha/m1", "beta/m1", "alpha/m2", "beta/m2"]
    cells = [(int(good), int(runs)) for good, runs in re.findall(r"(\d) of (\d)", grid)]
    assert cells == [(2, 2), (0, 2), (2, 2), (0, 2)] and sum(runs for _, runs in cells) == len(arms)


def test_a_big_session_makes_no_huge_page() -> None:
    long = "<" * (MOST_BYTES // 500 // 8)  # each becomes four characters
    tasks = [make_shown(num, "title")._replace(answer=Excerpt(long, 10**6, True)) for num in range(1, 501)]
    assert len(make_page(make_matter(*tasks), parse_time(BEGAN) + 9).encode()) < 5_000_000


def test_attributes_and_parts() -> None:
    assert tag("a", "x<y", [tag("br"), None, ["z"]], class_='b"c', aria_label=3, id=None) == (
        '<a class="b&quot;c" aria-label="3">x&lt;y<br/>z</a>'
    )


def test_a_report_is_written_whole_and_private(sessionrun: Command) -> None:
    session_id = sessionrun.finished(["echo hello there", "echo why >&2; exit 3"])
    done = sessionrun("report", session_id, "-o", "page.html")
    assert (done.returncode, done.stdout) == (0, "")
    page = sessionrun.cwd / "page.html"
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert "hello there" in page.read_text() and '<pre tabindex="0">why\n</pre>' in page.read_text()
    assert sessionrun("report", session_id).stdout == page.read_text()
    (sessionrun.cwd / "link.html").symlink_to("page.html")
    assert sessionrun("report", session_id, "-o", "link.html").returncode == 0
    assert (sessionrun.cwd / "link.html").is_symlink()
    for where, code in (("none/page.html", 2), (".", 2)):
        done = sessionrun("report", session_id, "-o", where)
        assert done.returncode == code and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.slow
def test_a_browser_shows_it_and_runs_nothing(tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium is installed")
    page = tmp_path / "page.html"
    page.write_text(make_page(make_matter(make_shown(1, ODD), make_shown(2, ODD)), parse_time(BEGAN) + 9))
    words = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run([*words, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120)
    reader = Reader(done.stdout)
    assert "<title>Session nightly</title>" in done.stdout, done.stderr
    assert {name for name, _ in reader.elements} <= ELEMENTS
    assert sum(name == "details" for name, _ in reader.elements) == 2
    assert "".join(reader.texts).count(SEEN) >= 10


def test_holds_are_in_the_timeline() -> None:
    events: list[Event] = [
        HoldPlaced("provider:claude", "usage limit"),
        HoldPlaced("provider:claude", "usage limit, again"),
        HoldPlaced("slot", ODD),
        HoldLifted("provider:claude"),
        HoldLifted("nothing"),
        HoldPlaced("provider:claude", "once more"),
    ]
    began = parse_time(BEGAN)
    holds = find_holds([Entry(seq, began + seq, seq, event) for seq, event in enumerate(events, 1)])
    assert holds == [
        Hold("provider:claude", "usage limit", began + 1, began + 4),
        Hold("slot", ODD, began + 3, None),
        Hold("provider:claude", "once more", began + 6, None),
    ]
    page = make_page(make_matter(make_shown(1, "one"))._replace(holds=holds), began + 9)
    elements = Reader(page).elements
    bars = [attributes for _, attributes in elements if attributes.get("class") == "phase hold"]
    assert [float(str(bar["width"])) > 100 for bar in bars] == [True, True, True]
    assert SEEN in "".join(Reader(page).texts)


def test_the_page_over_all_sessions(sessionrun: Command) -> None:
    sessionrun.finished({"prompts": ["true", "true", "exit 3"]})
    sessionrun.finished({"prompts": ["true"]})
    days = gather_days(sessionrun.results, everywhere=False)
    ((key, known),) = days.items()
    assert key == ("shell", "default")
    whole = [day[:2] for day in known.values()]
    assert (sum(day[0] for day in whole), sum(day[1] for day in whole)) == (3, 4)
    done = sessionrun("overview", "--html", "page.html")
    page = (sessionrun.cwd / "page.html").read_text()
    assert done.returncode == 0 and "75% (30% to 95%)" in page and "Cost, day by day" not in page
    assert sessionrun("overview", "--html", "page.html", "--json").returncode == 2
    empty = make_overview_page({})
    assert "No task has ended yet" in empty and "<table" not in empty


def test_the_page_over_all_sessions_is_escaped_and_drawn() -> None:
    good, dear = Day(3, 4, 2.0, 0, (1.0, 2.0, 3.0, 50.0)), Day(0, 1, 0.0, 1, (9.0,))
    dates = {f"2026-11-{number:02}": good for number in range(1, 29)} | {
        f"2026-12-{n:02}": dear for n in range(1, 9)
    }
    page = make_overview_page({(ODD, ODD): dates, ("codex", "default"): {"2026-12-08": dear}})
    reader = Reader(page)
    assert {name for name, _ in reader.elements} <= ELEMENTS
    assert not [key for _, attributes in reader.elements for key in attributes if key.startswith("on")]
    assert "".join(reader.texts).count(SEEN) >= 4
    labels = [str(attributes["aria-label"]) for name, attributes in reader.elements if name == "svg"]
    assert [label.rpartition(": ")[2] for label in labels] == [
        "success on 30 days",
        "success on 1 days",
        "cost on 22 days",
        "time on 30 days",
        "time on 1 days",
    ]
    assert "at least $56.0000" in page and "70%" in page

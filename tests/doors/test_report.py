"""The page of a session: what it shows, in which order; that nothing in it is markup but ours; how big it gets."""

from __future__ import annotations

import itertools
import json
import re
import stat
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from conftest import Command, eventually
from test_looks import BEGAN, make_task, make_view

from sessionrun.client.evidence import Run
from sessionrun.client.reading.comparison import name_each
from sessionrun.client.reading.digest import Excerpt
from sessionrun.client.reading.telling import Failure, Section
from sessionrun.doors.drawing import Bar, draw_needs, draw_timeline, find_bars
from sessionrun.doors.gathering import Matter, Shown, find_pauses, gather, is_wrong
from sessionrun.doors.markup import tag
from sessionrun.doors.pages import make_overview_page
from sessionrun.doors.report import MOST_CARDS, make_page
from sessionrun.model.events import (
    Entry,
    Event,
    HoldLifted,
    HoldPlaced,
    JobClaimed,
    JobLost,
    RequestReceived,
    Verdict,
)
from sessionrun.model.keys import JobKey, Phase
from sessionrun.model.usage import Usage
from sessionrun.model.wording import group_tasks, name_tasks, tell_reason
from sessionrun.model.words import SIGNS, WORDS, parse_time
from sessionrun.store.session import SessionDir

HOSTILE = (
    """</pre></details><script>document.title = 'taken'</script><img src=x onerror="document.title='taken'">"""
)
ODD = f"{HOSTILE} & 'single' \"double\" ]]> <!-- \u202egnp.exe \x1b[31m\0"
SEEN = f"{HOSTILE} & 'single' \"double\" ]]> <!-- \\u202egnp.exe \\u001b[31m\\u0000"
ELEMENTS = set(
    re.findall(
        r"\w+",
        "html head meta title style script body main h1 h2 h3 section article header nav table thead tbody tr "
        "th td p div pre span strong small code a details summary fieldset input label svg g rect line path text "
        "button footer",
    )
)
NOW = parse_time(BEGAN) + 9
LANDED = {"status": "landed", "target": "main", "commit": "c0ffee", "at": BEGAN, "reason": None}


class Reader(HTMLParser):
    """Reads a page as a browser does: elements, their attributes, and text but for that of looks and scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._last = ""
        self.feed(page)

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self._last = name
        self.elements.append((name, dict(attributes)))

    def handle_data(self, data: str) -> None:
        if self._last not in ("style", "script"):
            self.texts.append(data)


def make_shown(num: int, text: str = "plain", **values: Any) -> Shown:
    """A task with the same text wherever text may be, but for these values."""
    known = {
        **dict.fromkeys(("title", "reason", "agent", "model", "branch", "proof"), text),
        "attempt": 1,
        "round": 1,
    }
    known |= {"usage": asdict(Usage(cost_usd=0.25, cost_source="agent")), "check": {"passed": True}}
    known |= {"audit": [dict.fromkeys(("level", "where", "text"), text)]}
    known |= {"leftovers": [{"command": text, "how": text}]}
    known |= {"diff_stat": {"files": 1, "insertions": 2, "deletions": 3}}
    task = make_task(num, **{**known, **values}) | values
    bars = [Bar(NOW - 9, NOW - 7, "work", text), Bar(NOW - 7, NOW, "failed", text)]
    whole = Excerpt(text, len(text), False)
    said = [Section("check", [text]), Section("said", [text])] if is_wrong(task) else []
    cut, patch = Excerpt(text, 10**6, True), Excerpt(f"--- a/{text}\n+++ b/{text}\n@@\n+{text}", 100, False)
    return Shown(task, bars, said, [text], whole, cut, patch, [(text, 1.5), (text, None)], rounds=[text])


def make_matter(*tasks: Shown, **values: Any) -> Matter:
    used = asdict(Usage(1, 2, 0.5))
    more = {"agent": "claude", "labels": {}, "max_parallel": 4, "usage": {**used, "unpriced_jobs": 1}}
    view = make_view([dict(shown.task) for shown in tasks], **(more | {"usage_by_model": {"opus": used}} | values))
    view = {"ended_at": None, **view}
    by_id = name_tasks(view)
    groups = group_tasks((one.task for one in tasks if is_wrong(one.task)), by_id, NOW)
    told = {one.task["id"]: one.sections for one in tasks}
    failures = [Failure(group, told[group.tasks[0]["id"]]) for group in groups]
    reasons = {name: tell_reason(task, by_id, NOW) for name, task in by_id.items()}
    return Matter(view, "nightly", NOW, tasks, failures, name_each([one.task for one in tasks]), reasons)


def find_headings(page: str) -> list[str]:
    return re.findall(r'<section id="(\w+)">', page)


def test_nothing_in_it_is_markup_but_ours() -> None:
    lands = {"status": "bounced", "target": ODD, "commit": ODD, "at": BEGAN, "reason": ODD, "output": None}
    states: list[dict[str, Any]] = [{"outcome": "failed", "id": ODD}, {"outcome": "failed", "needs": [ODD]}]
    states += [{"landing": lands}, {"landing": {**lands, "status": "landed"}}, {"status": "running"}]
    states += [{"status": "pending", "reason_class": "held"}]
    labels = {"task": ODD, "model": ODD, "agent": ODD}
    tasks = [make_shown(num, ODD, labels=labels, **state) for num, state in enumerate(states, 1)]
    tasks[4] = tasks[4]._replace(sections=[Section("work", [ODD])])
    used = asdict(Usage(1, 2, 0.5, unpriced_jobs=1))
    matter = make_matter(
        *tasks, name=ODD, session_id=ODD, labels={ODD: ODD}, agent=ODD, usage_by_model={ODD: used}
    )._replace(name=ODD)
    page = make_page(matter._replace(pauses=[Bar(NOW - 5, NOW, "pause", f"{ODD} {ODD}")]))
    reader = Reader(page)
    assert {name for name, _ in reader.elements} <= ELEMENTS
    assert not [key for _, named in reader.elements for key in named if key.startswith("on") or key == "style"]
    links = {named["href"] for _, named in reader.elements if "href" in named}
    assert {link for link in links if link not in {f"#{name}" for name in find_headings(page)}} == {
        "#content",
        *(f"#t{num}" for num in range(1, 7)),
    }
    assert " ".join(find_headings(page)) == "matrix wrong running landing tasks timeline needs cost each"
    assert not re.search(r"src=[^x]|url\(|@import|https?://", page)
    policy = str(next(named["content"] for _, named in reader.elements if "http-equiv" in named))
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "connect-src 'none'" in policy
    seen = "".join(reader.texts)
    assert seen.count(SEEN) >= 100 and not re.search("[\u202e\x1b\0]", page)


def test_the_first_thing_is_what_came_out_then_what_needs_a_person_then_why() -> None:
    page = make_page(make_matter(make_shown(1), make_shown(2, outcome="failed", needs=["t1"])))
    assert "<title>nightly (abc123): 1 succeeded, 1 failed" in page
    body = page.partition("<main")[2]
    order = ["verdict", "needs-you", *(f'id="{name}"' for name in ("wrong", "tasks", "timeline", "cost", "each"))]
    assert sorted(order, key=body.index) == order
    assert "sessionrun retry nightly --failed" in body and "sessionrun explain nightly t2" in body
    assert "<span>1 failed: read why below, then try again</span>" in body
    assert "&gt;= $0.5000, 1 run without a known price" in body and "at most 4 at once" in body
    assert "(parts of 1,000,000 bytes)" in body and 'class="added">+plain' in body
    scopes = [named.get("scope") for name, named in Reader(page).elements if name == "th"]
    assert scopes and set(scopes) <= {"row", "col"}
    empty = make_page(make_matter(usage=None, usage_by_model=None))
    assert "<svg" not in empty and find_headings(empty) == []


@pytest.mark.parametrize("word", WORDS)
def test_counts_stand_in_its_bar_and_each_word_can_be_chosen_without_a_script(word: str) -> None:
    from sessionrun.doors.markup import document

    page = make_page(make_matter(make_shown(1, word=word, landing=LANDED), make_shown(2)))
    assert f"main:has(#w-{word}:checked) .tasks tbody tr:not(.{word})" in document("", "")
    assert f'<tr class="{word}" id="r1">' in page and SIGNS[word] in page


@pytest.mark.parametrize("agents", [("alpha", "beta"), ("beta", "alpha")])
def test_the_grid_has_a_column_for_each_agent_and_model(agents: tuple[str, ...]) -> None:
    """Whichever agent is named first, none is lost: the cells add up to the runs."""
    runs = itertools.product(agents, ("m1", "m2"), ("easy", "hard"), (1, 2))
    shown = []
    for num, (agent, model, row, _) in enumerate(runs, 1):
        labels = {"task": row, "model": model, "agent": agent}
        shown.append(make_shown(num, "x", labels=labels, outcome="succeeded" if agent == "alpha" else "failed"))
    page = make_page(make_matter(*shown))
    grid = page.partition('id="matrix"')[2].partition("</table>")[0]
    heads = re.findall(r'<th scope="col">([^<]+)', grid)
    assert set(heads[:2]) == {"alpha/m1", "alpha/m2"} and set(heads[2:]) == {"beta/m1", "beta/m2"}
    cells = [(int(good), int(runs)) for good, runs in re.findall(r"<strong>(\d) of (\d)", grid)]
    assert cells == 2 * [(2, 2), (2, 2), (0, 2), (0, 2)] and page.count('href="#t') >= len(shown)
    assert "2 tasks are too few to tell" in grid and "2 tasks, 4 arms, 2 samples" in grid
    assert page.count("<td>2 won, 0 even, 0 lost") == 2 and page.count("<td>0 won, 2 even, 0 lost") == 1


@pytest.mark.parametrize("many", [True, False])
def test_a_cell_is_called_by_its_row_and_its_arm(many: bool) -> None:
    """Its id is a UUID: nobody knows one by that; the agent is told where there are several, the run as well."""
    cells = [("a", "alpha", "m1"), ("a", "beta" if many else "alpha", "m2"), ("b", "alpha", "m1")]
    shown = []
    for num, (row, agent, model) in enumerate(cells * (2 if many else 1), 1):
        labels = {"task": row, "name": f"Do {row}", "model": model, "agent": agent}
        shown.append(make_shown(num, "x", title=f"Do {row} ({model})", outcome="failed", labels=labels))
    names = list(name_each([one.task for one in shown]).values())
    if many:
        assert names[:3] == ["a · alpha/m1 #1", "a · beta/m2 #1", "b · alpha/m1 #1"] and names[3].endswith("#2")
    else:
        assert names == ["a · m1", "a · m2", "b · m1"]
    page = make_page(make_matter(*shown))
    body = "".join(Reader(page.partition("<main")[2]).texts)
    assert f"{names[0]} Do a" in body and "(m1)" not in body
    assert "sessionrun explain" not in body or "explain nightly t" in body, "a command has the id"


def test_one_task_is_told_at_once() -> None:
    page = make_page(make_matter(make_shown(1), ended_at=BEGAN, state="ended"))
    assert find_headings(page) == ["cost", "each"] and "Nothing needs you." in page
    assert re.search(r'<details id="t1" open', page)
    assert find_headings(make_page(make_matter(make_shown(1), make_shown(2))))[:2] == ["tasks", "timeline"]
    assert "its work is on: t1-rescue" in make_page(make_matter(make_shown(1, rescue_branch="t1-rescue")))


def test_the_card_that_tells_of_most_tasks_is_not_left_out() -> None:
    """However many cards another reason has, because each of its tasks printed something else."""
    shown = [make_shown(num, "one", outcome="failed") for num in range(1, MOST_CARDS + 2)]
    shown += [make_shown(num, "two", outcome="failed") for num in (91, 92)]
    matter = make_matter(*shown)
    many, few = matter.failures
    alone = [Failure(many.group._replace(tasks=[task]), many.sections) for task in many.group.tasks]
    page = make_page(matter._replace(failures=[*alone, few]))
    wrong = page.partition('id="wrong"')[2].partition("</section>")[0]
    assert 'href="#t91"' in wrong and "and 2 more, each for another reason" in wrong


def test_the_drawing_of_needs_has_each_edge_and_goes_round_boxes() -> None:
    needs = {"a": [], "b": ["a"], "c": ["b", "a"], "d": ["a"], "alone": []}
    tasks = [
        {**make_task(num, needs=list(wanted)), "id": name} for num, (name, wanted) in enumerate(needs.items(), 1)
    ]
    drawn, note = draw_needs(tasks, SIGNS)
    assert drawn is not None and note == "4 tasks, 4 needs; 1 others are not drawn"
    assert drawn.count("<path") == 4 and drawn.count('class="box good"') == 4 and "0 crossings" in drawn
    long_way = [path for path in re.findall(r' d="([^"]+)"', drawn) if path.count("c") == 2]
    assert len(long_way) == 1 and "h168" in long_way[0]  # past the depth of b and d, beside their boxes
    assert draw_needs(tasks[:1], SIGNS) == (None, "")
    needs = {"a": [], "b": [], "c": [], "d": [], "low": ["c"], "high": ["a", "b", "d"]}
    drawn, _ = draw_needs([{**make_task(1, needs=wanted), "id": name} for name, wanted in needs.items()], SIGNS)
    tops = dict(re.findall(r'<title>(low|high): [^<]*</title><rect x="224" y="([0-9]+)"', str(drawn)))
    assert int(tops["high"]) < int(tops["low"]), "each stands in the middle of what it needs"


@pytest.mark.parametrize(("count", "rows"), [(50, 50 + 1), (51, 3 + 1)])
def test_of_many_tasks_it_is_drawn_what_ran_side_by_side(count: int, rows: int) -> None:
    """Two at a time, each for a second: two slots, above them how many ended when."""
    tasks = [
        ({**make_task(num), "word": "succeeded"}, [Bar(float(num // 2), num // 2 + 1.0, "work", "")])
        for num in range(count)
    ]
    names = {task["id"]: tag("span", task["id"]) for task, _ in tasks}
    drawn, note = draw_timeline(tasks, [], names, dict.fromkeys(names, ""))
    assert len(re.findall('class="row(?: ends)?"', "".join(map(str, drawn)))) == rows and note.endswith(
        "from the first start"
    )


@pytest.mark.parametrize(("count", "most"), [(300, 300_000), (2000, 700_000)])
def test_a_big_session_makes_no_huge_page(count: int, most: int) -> None:
    phases = ("prepare", "work", "check", "release")
    bars = [Bar(NOW - 9, NOW - 7, phase, f"t: {phase}", phase) for phase in phases]
    tasks = []
    for num in range(1, count + 1):
        facts: dict[str, Any] = {"outcome": "failed", "reason": "exit code 1"}
        facts = dict.fromkeys(("reason", "audit", "leftovers")) if num % 16 else facts
        one = make_shown(num, f"Fix the warnings in src/queue/loader{num}.py", agent="a", model="m", **facts)
        if num % 16:
            done, none = Excerpt("done", 4, False), Excerpt("", 0, False)
            one = one._replace(sections=(), prompts=[], acts=(), bars=bars, answer=done, errors=none, rounds=())
        tasks.append(one)
    assert len(make_page(make_matter(*tasks)).encode()) < most


def test_a_report_is_written_whole_and_private(sessionrun: Command) -> None:
    session_id = sessionrun.finished(["echo hello there", "echo why >&2; exit 3"])
    done = sessionrun("report", session_id, "-o", "page.html")
    assert (done.returncode, done.stdout) == (0, "")
    page = sessionrun.cwd / "page.html"
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert "hello there" in page.read_text() and '<pre tabindex="0">why</pre>' in page.read_text()
    assert sessionrun("report", session_id).stdout == page.read_text()
    (sessionrun.cwd / "link.html").symlink_to("page.html")
    assert sessionrun("report", session_id, "-o", "link.html").returncode == 0
    assert (sessionrun.cwd / "link.html").is_symlink()
    for where, code in (("none/page.html", 2), (".", 2)):
        done = sessionrun("report", session_id, "-o", where)
        assert done.returncode == code and done.stderr.count("\n") == 1, done.stderr
    done = sessionrun("report", session_id, "--all", "-o", "page.html")
    assert done.returncode == 2 and "--all takes no session ID" in done.stderr


# --- as a browser shows it ---

CONTRAST = """
(() => {
  const part = (value) => {
    value /= 255; return value <= .03928 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4; };
  const of = (colour) => { const [r, g, b, a] = colour.match(/[\\d.]+/g).map(Number);
    return a === 0 ? null : .2126 * part(r) + .7152 * part(g) + .0722 * part(b); };
  const back = (one) => { for (; one; one = one.parentElement) {
    const found = of(getComputedStyle(one).backgroundColor); if (found !== null) { return found; } } return 1; };
  let least = 99;
  for (const one of document.querySelectorAll('body *')) {
    if (![...one.childNodes].some((child) => child.nodeType === 3 && child.data.trim())) { continue; }
    if (['title', 'script'].includes(one.localName) || !one.checkVisibility()) { continue; }
    const style = getComputedStyle(one), box = one.parentNode.querySelector(':scope > rect.box');
    const ground = box ? of(getComputedStyle(box).fill) : back(one);
    const [low, high] = [of(one.closest('svg') ? style.fill : style.color), ground].sort((a, b) => a - b);
    least = Math.min(least, (high + .05) / (low + .05)); }
  return least; })()
"""


def show(browser: Browser, page: Path) -> None:
    """Open a page, and wait until it is there."""
    browser.resize(1400, 900)
    browser.open(page.as_uri())
    is_there = "document.readyState === 'complete' && !!document.querySelector('main')"
    eventually(lambda: browser.evaluate(is_there))


def check_looks(browser: Browser) -> None:
    """The page that is open fits a phone and a screen, and can be read on light and on dark ground."""
    for width, dark in itertools.product((500, 1400), (False, True)):
        browser.resize(width, 900, dark=dark)
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth") is True, width
        assert float(str(browser.evaluate(CONTRAST))) >= 4.5, (width, dark)
    assert browser.evaluate("violations") == []


@pytest.mark.slow
def test_a_browser_shows_it_and_runs_nothing_of_others(tmp_path: Path, browser: Browser) -> None:
    page = tmp_path / "page.html"
    bad = [make_shown(num, ODD, outcome="failed") for num in (1, 2)]
    page.write_text(make_page(make_matter(*bad, make_shown(3))))
    show(browser, page)
    assert str(browser.evaluate("document.title")).startswith("nightly (abc123)")
    assert browser.evaluate("document.querySelectorAll('img, main script').length") == 0
    assert browser.evaluate("violations") == []
    assert str(browser.evaluate("document.body.textContent")).count(SEEN) >= 10
    shown = "[...document.querySelectorAll('.tasks tbody tr')].filter((row) => row.checkVisibility()).length"
    assert browser.evaluate(shown) == 3
    browser.evaluate("document.querySelector('#w-failed').click()")
    assert browser.evaluate(shown) == 2
    browser.evaluate("document.querySelector('#w-all').click()")
    field = "document.querySelector('input[type=search]')"
    browser.evaluate(f"{field}.value = 'PLAIN'; {field}.dispatchEvent(new Event('input', {{bubbles: true}}))")
    assert browser.evaluate(shown) == 1
    browser.evaluate(
        "document.querySelector('.tasks button').click(); document.querySelector('.tasks button').click()"
    )
    assert browser.evaluate("document.querySelector('.tasks tbody td').textContent") == "3"


def make_many() -> Matter:
    """Many tasks, of which the last ones failed."""
    tasks = [make_shown(num, f"Fix the warnings in loader{num}.py", agent="a", model="m") for num in range(1, 281)]
    failed = [make_shown(num, "A longer title " * 9, outcome="failed", agent="a") for num in range(281, 301)]
    return make_matter(*tasks, *failed)


def make_lane() -> Matter:
    """Tasks with words that do not end: some landed, one bounced, one held, one runs, and each needs another."""
    word = "x" * 200
    states: list[dict[str, Any]] = [{"landing": {**LANDED, "commit": f"c{num}"}} for num in range(4)]
    states += [{"landing": {**LANDED, "status": "bounced", "reason": word}}, {"outcome": "failed"}]
    states += [{"status": "running"}, {"status": "pending", "reason_class": "held", "reason": f"held: {word}"}]
    tasks = []
    for num, state in enumerate(states, 1):
        needs = [f"{word}{num - 1}"] if num > 1 else []
        tasks.append(make_shown(num, f"{word}{num}", id=f"{word}{num}", needs=needs, **state))
    return make_matter(*tasks)._replace(pauses=[Bar(NOW - 5, NOW, "pause", f"{word} {word}")])


def make_matrix() -> Matter:
    """Two tasks for eight arms."""
    tasks = []
    for num in range(32):
        labels = {"task": f"row{num % 2}", "name": "A name", "model": f"model-{num // 4}", "agent": "an-agent"}
        outcome = "failed" if num % 3 else "succeeded"
        tasks.append(make_shown(num + 1, "x" * 100, outcome=outcome, labels=labels))
    return make_matter(*tasks)


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_many, make_lane, make_matrix])
def test_pages_of_all_kinds_fit_a_phone_and_can_be_read(
    tmp_path: Path, browser: Browser, make: Callable[[], Matter]
) -> None:
    page = tmp_path / "page.html"
    page.write_text(make_page(make()))
    show(browser, page)
    is_near = "document.querySelector('article').getBoundingClientRect().top < 900"
    assert make is not make_many or browser.evaluate(is_near) is True, "the first reason"
    browser.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    check_looks(browser)
    assert set(browser.asked) == {page.as_uri()}


# --- holds, and all sessions ---


def test_holds_are_in_the_timeline() -> None:
    events: list[Event] = [
        HoldPlaced("provider:claude", "usage limit"),
        HoldPlaced("provider:claude", "usage limit, again"),
        HoldPlaced("slot", ODD),
        HoldLifted("provider:claude"),
        HoldLifted("nothing"),
        HoldPlaced("provider:claude", "once more"),
        RequestReceived("1", "hold", reason="lunch"),
        RequestReceived("2", "release", ("t1",)),
        RequestReceived("3", "release"),
        RequestReceived("4", "hold", ("t1",)),
    ]
    began = parse_time(BEGAN)
    pauses = find_pauses([Entry(seq, began + seq, seq, event) for seq, event in enumerate(events, 1)], NOW)
    assert pauses == [
        Bar(began + 1, began + 4, "pause", "held: claude: usage limit"),
        Bar(began + 3, NOW, "pause", f"held: slot: {ODD}"),
        Bar(began + 6, NOW, "pause", "held: claude: once more"),
        Bar(began + 7, began + 9, "pause", "held: on request: lunch"),
    ]
    page = make_page(make_matter(make_shown(1), make_shown(2))._replace(pauses=pauses))
    bars = [named for name, named in Reader(page).elements if name == "rect" and named.get("class") == "pause"]
    assert [float(str(bar["width"]).rstrip("%")) > 20 for bar in bars] == [True] * 8 + [False]
    assert [bar["height"] for bar in bars[:5]] == ["100%"] * 4 + ["9"], "bands behind the rows, then rows"
    assert SEEN in "".join(Reader(page).texts)


def test_the_page_over_all_sessions(sessionrun: Command) -> None:
    sessionrun.finished({"prompts": ["true", "true", "exit 3"]})
    sessionrun.finished({"prompts": ["true"]})
    done = sessionrun("report", "--all", "-o", "page.html")
    page = (sessionrun.cwd / "page.html").read_text()
    assert done.returncode == 0 and "75% (30% to 95%)" in page and "Cost, day by day" not in page
    assert page.count("2 succeeded") == 1 and "Sessions that need somebody" in page  # the first one alone
    empty = make_overview_page([])
    assert "No task has ended yet" in empty and "<table" not in empty


def test_the_page_over_all_sessions_is_escaped_and_drawn() -> None:
    ends: list[tuple[str, bool, float | None]] = [
        (f"2026-11-{number:02}T12:00:00Z", number % 4 > 0, 0.5) for number in range(1, 29)
    ]
    ends += [(f"2026-12-{number:02}T12:00:00Z", False, None) for number in range(1, 9)]
    tasks = []
    for num, (at, good, cost) in enumerate(ends):
        usage = asdict(Usage(cost_usd=cost, cost_source="agent", unpriced_jobs=int(cost is None)))
        ended = {"ended_at": at, "duration_s": 3.0, "usage": usage, "outcome": "succeeded" if good else "failed"}
        tasks.append({**make_task(num, agent=ODD, model=ODD), **ended})
    view = make_view(tasks, name=ODD)
    page = make_overview_page([view])
    reader = Reader(page)
    assert {name for name, _ in reader.elements} <= ELEMENTS
    assert not [key for _, named in reader.elements for key in named if key.startswith("on")]
    assert "".join(reader.texts).count(SEEN) >= 4 and "&gt;= $14.00" in page and "58%" in page
    labels = [str(named["aria-label"]) for name, named in reader.elements if name == "svg"]
    expected = ["success on 30 days", "cost on 22 days", "time on 30 days"]
    assert [label.rpartition(": ")[2] for label in labels] == expected


@pytest.mark.parametrize(
    ("phase", "verdict", "word", "kind"),
    [
        ("land", None, "landed", "landed"),
        ("land", None, "bounced", "bounced"),
        ("work", "cancelled", "cancelled", "dash"),
        ("work", "lost", "lost", "failed"),
    ],
)
def test_what_a_bar_is(phase: Phase, verdict: Verdict | None, word: str, kind: str) -> None:
    """A landing that bounced is not drawn as one that landed; what was cancelled is neither good nor bad."""
    key = JobKey("t1", 1, 1, phase, 1)
    end = Entry(1, NOW, NOW, JobLost(key, verdict, "why")) if verdict else None
    (bar,) = find_bars(
        {**make_task(1), "word": word}, [Run(key, Entry(0, NOW - 2, NOW, JobClaimed(key)), end)], NOW
    )
    assert bar.kind == kind


def test_slots_have_the_looks_of_how_their_tasks_ended() -> None:
    words = ("running", "cancelled", "failed", "succeeded", "bounced")
    states: dict[str, dict[str, Any]] = {
        "running": {"status": "running"},
        "bounced": {"landing": {**LANDED, "status": "bounced"}},
    }
    tasks = [make_task(num, **states.get(word, {"outcome": word})) for num, word in enumerate(words * 11)]
    pairs = [(task, [Bar(NOW - 2, NOW, "work", "")]) for task in tasks]
    drawn = "".join(map(str, draw_timeline(pairs, [], {}, {})[0]))
    (strip,) = re.findall(r'<div class="row ends">.*?</div>', drawn)
    assert set(re.findall(r'class="(\w+)"', strip)) == {"succeeded", "failed"}
    slots = Counter(re.findall(r'class="(\w+)"', drawn.partition("slot 1<")[2].partition("legend")[0]))
    assert [slots[kind] for kind in ("work", "dash", "failed", "succeeded", "bounced")] == [11] * 5
    assert "cancelled</span>" in drawn and "agent at work</span>" in drawn


def test_what_an_agent_did_is_told_from_its_own_stream(sessionrun: Command) -> None:
    call = {"type": "tool_use", "id": "c", "name": "Bash", "input": {"command": f"echo {ODD}{'x' * 99}"}}
    done = {"content": [{"type": "tool_result", "tool_use_id": "c"}]}
    events = [
        {"type": "system", "subtype": "init", "session_id": "s", "model": "m"},
        {
            "type": "assistant",
            "timestamp": "2026-11-20T18:00:00.000Z",
            "message": {"content": [call, {"type": "text", "text": "$ I ran it."}]},
        },
        {"type": "user", "timestamp": "2026-11-20T18:00:01.500Z", "message": done},
        {"type": "result", "subtype": "success", "is_error": False, "result": "done", "num_turns": 1},
    ]
    stream = sessionrun.cwd / "stream"
    stream.write_text("".join(json.dumps(event) + "\n" for event in events))
    (sessionrun.cwd / "sessionrun.toml").write_text(
        f'[agents.own]\nargv = ["sh", "-c", "cat >/dev/null; cat {stream}"]\noutput = "claude"\n'
    )
    session_id = sessionrun.finished(["go"], "--agent", "own")
    (shown,) = gather(SessionDir(sessionrun.directory(session_id))).tasks
    assert [(line[:7], len(line.encode()), seconds) for line, seconds in shown.acts] == [("$ echo ", 200, 1.5)]
    page = sessionrun("report", session_id).stdout
    assert "What the agent did, its last step, each with its time" in page and "1.5 s  $ echo" in page
    assert SEEN[:100] in "".join(Reader(page).texts)
    assert "attempt 1: work " in page


def test_what_runs_shows_what_it_printed_last(sessionrun: Command) -> None:
    session = SessionDir(sessionrun.directory(sessionrun.start(["echo working on it; sleep 600"])))
    printed = [Section("work", ["working on it"])]
    eventually(lambda: gather(session).tasks[0].sections == printed)
    assert "working on it" in make_page(gather(session))

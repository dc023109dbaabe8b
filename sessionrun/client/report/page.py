"""The page of a report: its parts in order, and how they look.  Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sessionrun.client.reading.comparison import compare_tasks, describe_rest
from sessionrun.client.reading.digest import Excerpt
from sessionrun.client.reading.waiting import has_failed
from sessionrun.client.report.drawings import draw_costs, draw_needs, draw_outcomes, draw_timeline
from sessionrun.client.report.gathering import Matter, Shown
from sessionrun.client.report.markup import Markup, Part, facts, join, table, tag
from sessionrun.model import wording
from sessionrun.model.times import parse_time
from sessionrun.model.wording import tell_reason, tell_span, took_s
from sessionrun.model.words import HELD, tell_counts

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'"
"""Nothing may be loaded, run or sent, whatever stands in the page."""

STYLE: Final = """
:root { color-scheme: light dark; --back: #fff; --ink: #1b1f24; --dim: #59636e; --edge: #d0d7de; --fill: #f6f8fa;
 --good: #1a7f37; --bad: #cf222e; --other: #9a6700; --run: #0969da; }
@media (prefers-color-scheme: dark) { :root { --back: #0d1117; --ink: #e6edf3; --dim: #9198a1; --edge: #3d444d;
 --fill: #151b23; --good: #3fb950; --bad: #f85149; --other: #d29922; --run: #4493f8; } }
body { background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto;
 max-width: 1000px; padding: 0 1rem; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.2rem; } .dim { color: var(--dim); }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { border-bottom: 1px solid var(--edge); padding: .3rem .6rem; text-align: left; vertical-align: top; }
pre { background: var(--fill); border: 1px solid var(--edge); border-radius: 6px; padding: .7rem; overflow-x: auto;
 white-space: pre-wrap; overflow-wrap: anywhere; font-size: 13px; }
svg { max-width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 12px; }
.phase { fill: var(--dim); } .phase.work { fill: var(--run); } .phase.check, .phase.prove { fill: var(--other); }
.phase.land { fill: var(--good); } .phase.hold { fill: var(--bad); opacity: .5; }
.need { stroke: var(--dim); stroke-width: 1.2; }
.box { fill: var(--fill); stroke: var(--dim); }
.box.succeeded, .box.landed { stroke: var(--good); stroke-width: 2; }
.box.failed, .box.timed_out, .box.lost, .box.bounced { stroke: var(--bad); stroke-width: 2; }
.succeeded, .landed { color: var(--good); }
.failed, .timed_out, .lost, .stopped, .bounced { color: var(--bad); }
.held, .changed_nothing { color: var(--other); }
.added { color: var(--good); } .removed { color: var(--bad); } .place { color: var(--run); }
details { border-top: 1px solid var(--edge); padding: .5rem 0; } summary { cursor: pointer; }
:focus-visible { outline: 2px solid var(--run); outline-offset: 2px; }
@media print { body { max-width: none; } pre { white-space: pre-wrap; } details > * { display: revert; } }
"""


def make_page(matter: Matter, now: float) -> str:
    """The whole page.

    Args:
        matter: what is shown.
        now: wall time (seconds since the epoch).
    """
    body = [*make_overview(matter, now), section("Details", join(tell_task(shown) for shown in matter.tasks))]
    return close(find_title(matter.view), body)


def close(title: str, body: Sequence[Part]) -> str:
    """A document into which nothing is loaded, wherever it is opened."""
    return frame(title, tag("main", *body), tag("meta", http_equiv="Content-Security-Policy", content=POLICY))


def frame(title: str, body: Markup, *head: Markup) -> str:
    """A document with a title, elements of its head, and its body."""
    whole = tag(
        "head",
        tag("meta", charset="utf-8"),
        *head,
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        Markup(f"<style>{STYLE}</style>"),
    )
    return f"<!DOCTYPE html>\n{tag('html', whole, tag('body', body), lang='en')}\n"


def find_title(view: Mapping[str, Any]) -> str:
    """What a page of a session is called."""
    return f"Session {view['name'] or view['session_id'][:8]}"


def make_overview(matter: Matter, now: float, *, link: str = "#task-") -> list[Markup | None]:
    """All parts of the page but the details of tasks; these have the address `link` and the number of the task."""
    view, tasks = matter.view, [shown.task for shown in matter.tasks]
    began = parse_time(view["started_at"])
    ended = parse_time(view["ended_at"]) if view["ended_at"] else now
    return [
        tag("h1", find_title(view)),
        _tell_summary(view, now),
        section("Outcomes", draw_outcomes(tasks)),
        section("Timeline", _tell_timeline(draw_timeline(matter.tasks, began, ended, matter.holds))),
        section("Needs", draw_needs(tasks)),
        section("Tasks and models", _make_grid(view, tasks)),
        section("Cost", draw_costs(view.get("usage_by_model"))),
        section("Tasks", _make_table(tasks, link, now)),
    ]


def section(heading: str, content: Markup | None) -> Markup | None:
    """A part of a page under its heading; None without content."""
    return None if not content else tag("section", tag("h2", heading), content)


def _tell_timeline(drawing: Markup | None) -> Markup | None:
    legend = "Blue: the agent works. Brown: checks and proofs. Green: landing. "
    legend += "Grey: preparing and saving the work. Red: held."
    return drawing and join([drawing, tag("p", legend, class_="dim")])


def _tell_summary(view: Mapping[str, Any], now: float) -> Markup:
    usage = view.get("usage") or {}
    cost = usage.get("cost_usd")
    rows: list[tuple[str, Part]] = [
        ("Id", view["session_id"]),
        ("Status", tell_state(view)),
        ("Tasks", f"{view['total']}: {tell_counts(view['counts'])}"),
        ("Started", _clock(view["started_at"])),
        ("Ended", _clock(view["ended_at"])),
        ("Took", tell_span(took_s(view, now))),
        ("Agent", view["agent"]),
        ("Cost", None if cost is None else f"{'at least ' if usage.get('unpriced_jobs') else ''}${cost:.4f}"),
        ("Labels", ", ".join(f"{key}={value}" for key, value in view["labels"].items()) or None),
    ]
    return facts((name, part) for name, part in rows if part)


def tell_state(view: Mapping[str, Any]) -> Markup:
    """How a session stands: its result if it has ended, else its state, and what releases it if it is held."""
    word = str(view["result"] or view["state"])
    until = f" until {_clock(view['held_until'])}" if view["held_until"] else ""
    how = f"; sessionrun release {view['session_id']}" if word == HELD else ""
    return tag("span", f"{word}{until}{how}", class_="held" if HELD in word else word)


def _make_table(tasks: Sequence[Mapping[str, Any]], link: str, now: float) -> Markup:
    heads = ("#", "Task", "Outcome", "Reason", "Time", "Agent", "Changed", "Cost")
    rows: list[Sequence[Part]] = []
    by_id = {task["id"]: task for task in tasks}
    for task in tasks:
        word, diff, usage = task["word"], task["diff_stat"], task["usage"] or {}
        changed = "" if diff is None else f"{diff['files']} +{diff['insertions']} -{diff['deletions']}"
        landing = (task["landing"] or {}).get("status")
        cells = [
            str(task["num"]),
            tag("a", task["title"], href=f"{link}{task['num']}"),
            [tell_word(task), f", {landing}" if landing not in (None, word) else ""],
            tell_reason(task, by_id, now),
            "" if task["duration_s"] is None else tell_span(task["duration_s"]),
            "/".join(filter(None, (task["agent"], task["model"]))),
            changed,
            "" if usage.get("cost_usd") is None else f"${usage['cost_usd']:.4f}",
        ]
        rows.append(cells)
    return table(heads, rows)


def tell_word(task: Mapping[str, Any]) -> Markup:
    """The word of a task, in its colour."""
    return tag("span", wording.tell_word(task["word"]), class_=task["word"])


def _make_grid(view: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]]) -> Markup | None:
    """Tasks times arms of a matrix, an arm being an agent with a model; None of another session."""
    if not any("model" in task["labels"] and "task" in task["labels"] for task in tasks):
        return None
    record = compare_tasks(view, tasks, "task")
    arms = sorted({(cell["model"], cell["agent"]) for group in record["groups"] for cell in group["cells"]})
    several = len({agent for _, agent in arms}) > 1
    rows = []
    for group in record["groups"]:
        cells = {(cell["model"], cell["agent"]): _tell_cell(cell) for cell in group["cells"]}
        rows.append(tag("tr", tag("th", group["key"], scope="row"), *(tag("td", cells.get(arm)) for arm in arms)))
    names = [f"{agent}/{model}" if several else model for model, agent in arms]
    head = tag("thead", tag("tr", tag("td"), *(tag("th", name, scope="col") for name in names)))
    return tag("table", head, tag("tbody", *rows))


def _tell_cell(cell: Mapping[str, Any]) -> Markup:
    state = cell["outcome"] or ("succeeded" if cell["succeeded"] and not cell["failed"] else "")
    words = cell["outcome"] or f"{cell['succeeded']} of {cell['succeeded'] + cell['failed']}{describe_rest(cell)}"
    rate = cell["pass_at"].get("1") if cell["outcome"] is None else None
    interval = f" ({rate['low']:.0%} to {rate['high']:.0%})" if rate else ""
    took = "" if cell["duration_s"] is None else f", {tell_span(cell['duration_s'])}"
    return tag("span", words.replace("_", " ") + interval + took, class_=state)


def tell_task(shown: Shown, *, unfolded: bool = False) -> Markup:
    """All there is of a task; folded, unless it failed or that is not wanted."""
    task = shown.task
    unfolded = unfolded or has_failed(task)
    summary = tag("summary", f"{task['num']}. {task['title']}: ", tell_word(task))
    check, landing = task["check"] or {}, task.get("landing") or {}
    reason = tell_reason(task, {}, 0.0) if task["status"] == "completed" else task["reason"]
    facts = [
        f"id {task['id']}",
        f"attempt {task['attempt']}, round {task['round']}",
        f"branch {task['branch']}" if task["branch"] else None,
        f"needs {', '.join(task['needs'])}" if task["needs"] else None,
        None if check.get("passed") is None else f"check {'passed' if check['passed'] else 'did not pass'}",
        f"proof: {task['proof']}" if task.get("proof") else None,
        *(f"audit: {note['level']}: {note['where']}: {note['text']}" for note in task.get("audit") or ()),
        f"landing: {landing['status']}" if landing else None,
    ]
    return tag(
        "details",
        summary,
        tag("p", "; ".join(filter(None, facts)), class_="dim"),
        tag("p", reason, class_=task["word"]) if reason else None,
        _tell_words(task.get("telling")),
        [_block("Prompt", prompt) for prompt in shown.prompts],
        _excerpt("Answer", shown.answer),
        _excerpt("Standard error", shown.errors),
        _tell_patch(shown.patch),
        id=f"task-{task['num']}",
        open="" if unfolded else None,
    )


def _tell_words(telling: Mapping[str, Any] | None) -> Markup | None:
    """The telling lines of the step that failed; those of the work are in its standard error."""
    if not telling or telling["step"] == "work":
        return None
    return _block(f"{str(telling['step']).capitalize()}, last lines", "\n".join(telling["lines"]))


def _excerpt(heading: str, excerpt: Excerpt) -> Markup | None:
    if not excerpt.size:
        return None
    return _block(f"{heading} (parts of {excerpt.size} bytes)" if excerpt.is_cut else heading, excerpt.text)


def _block(heading: str, content: str | Markup) -> Markup:
    return join([tag("h3", heading), tag("pre", content, tabindex="0")])


def _tell_patch(patch: Excerpt) -> Markup | None:
    if not patch.size:
        return None
    lines = join(_colour(line) for line in patch.text.splitlines(keepends=True))
    return _block(f"Changes (parts of {patch.size} bytes)" if patch.is_cut else "Changes", lines)


def _colour(line: str) -> Part:
    kinds = {"+": "added", "-": "removed", "@": "place"}
    kind = kinds.get(line[:1])
    return line if kind is None else tag("span", line, class_=kind)


def _clock(at: str | None) -> str | None:
    if at is None:
        return None
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(parse_time(at)))

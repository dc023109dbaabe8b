"""The page of a session: what came out, what needs a person, and why, before all that is there.  Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from sessionrun.client.reading.telling import Failure
from sessionrun.doors.drawing import MOST_ROWS, draw_needs, draw_timeline
from sessionrun.doors.gathering import FEW, MOST, Matter, is_wrong
from sessionrun.doors.grid import make_grid
from sessionrun.doors.markup import NUMBERS, Markup, Part, cells, document, join, section, table, tag
from sessionrun.doors.task import (
    make_block,
    make_link,
    make_sign,
    name_apart,
    name_source,
    tell_changes,
    tell_cost,
    tell_facts,
    tell_task,
)
from sessionrun.model.times import parse_time
from sessionrun.model.wording import (
    name_session,
    name_tasks,
    short_id,
    tell_reason,
    tell_result,
    tell_span,
    tell_word,
    took_s,
)
from sessionrun.model.words import BAD, SIGNS, WORDS, is_matrix

LONG: Final = 60
"""A table of more rows scrolls in a box of its own."""

MOST_CARDS: Final = 40
MOST_NAMED: Final = 60
MOST_AGENTS: Final = 5

Task = Mapping[str, Any]
View = Mapping[str, Any]


def make_page(matter: Matter) -> str:
    """The whole document of a report."""
    return document(tell_result(matter.view, matter.now), tag("main", *make_blocks(matter), id="content"))


def make_blocks(matter: Matter, *, base: str = "#t", above: Part = None) -> list[Part]:
    """All blocks in their order; a task is at `base` and its number, and `above` stands before the first block."""
    tasks = [shown.task for shown in matter.tasks]
    wrong = [task for task in tasks if is_wrong(task)]
    served = base != "#t"
    links = {task["id"]: make_link(task, base if served or _is_told(matter, task) else None) for task in tasks}
    names = {task["id"]: join([make_sign(task), " ", links[task["id"]], " ", name_apart(task)]) for task in tasks}
    drawn, note = draw_timeline([(one.task, one.bars) for one in matter.tasks], matter.pauses, names, matter.now)
    graph, about = draw_needs(tasks, SIGNS)
    rows = section("tasks", "Tasks", *_make_table(matter, links))
    timeline = section("timeline", "Timeline", *drawn, note=note)
    blocks = [
        section("matrix", "Tasks and arms", *make_grid(matter.view, tasks, base)) if is_matrix(tasks) else None,
        section("wrong", "What went wrong", *_tell_failures(matter, links), note=f"{len(wrong)} of {len(tasks)}"),
        section("running", "Running now", *_tell_running(matter, names)),
        section("landing", "Landing", *_tell_landing(tasks, names), note=_tell_target(tasks)),
        *((timeline, rows) if len(tasks) > MOST_ROWS else (rows, timeline)),
        section("needs", "Needs", graph, note=about),
        section("cost", "Cost", *_tell_costs(matter.view)),
        None if served else section("each", "Each task", *_tell_each(matter)),
    ]
    ways = [tag("a", heading, href=f"#{name}") for name, heading in _list_headings(blocks)]
    return [*_tell_verdict(matter), _tell_needed(matter), tag("nav", *ways), above, *blocks]


def _is_told(matter: Matter, task: Task) -> bool:
    return len(matter.tasks) <= MOST or is_wrong(task)


def _list_headings(blocks: Iterable[Markup | None]) -> Iterator[tuple[str, str]]:
    known = {"matrix": "Matrix", "wrong": "What went wrong", "running": "Running now", "landing": "Landing"}
    known |= {"tasks": "Tasks", "timeline": "Timeline", "needs": "Needs", "cost": "Cost", "each": "Each task"}
    there = [name for block in blocks if block for name in known if block.startswith(f'<section id="{name}"')]
    return ((name, known[name]) for name in there)


# --- what came out, and what needs a person ---


def _tell_verdict(matter: Matter) -> list[Part]:
    view = matter.view
    counts, words = list_counts(view), tell_counts(view)
    name = [name_session(view), tag("code", str(view["session_id"])[:8]) if view["name"] else None]
    return [
        tag("h1", *name, tag("span", str(view["state"]), class_="badge")),
        tag("p", *(words or ["no tasks"]), class_="verdict", role="status"),
        tag("p", " · ".join(_tell_facts(view, matter)), class_="dim"),
        draw_bar(counts, view["total"]),
    ]


def list_counts(view: View) -> list[tuple[str, int]]:
    """How many tasks have each word, without what there is none of."""
    return [(word, view["counts"][word]) for word in WORDS if view["counts"].get(word)]


def tell_counts(view: View) -> Sequence[Part]:
    """``4 landed, 2 failed``, each in the colour of its word."""
    counts = [tag("span", f"{number} {tell_word(word)}", class_=word) for word, number in list_counts(view)]
    return [part for count in counts for part in (", ", count)][1:]


def _tell_facts(view: View, matter: Matter) -> Iterator[str]:
    yield f"{view['total']} {'task' if view['total'] == 1 else 'tasks'}"
    yield tell_span(took_s(view, matter.now))
    if _has_costs(view):
        unknown = view["usage"]["unpriced_jobs"]
        more = f", {unknown} runs without a known price" if unknown else ""
        yield f"{'at least ' if unknown else ''}${view['usage']['cost_usd']:.4f}{more}"
    agents = sorted({shown.task["agent"] for shown in matter.tasks})
    if agents:
        more = ", ..." if len(agents) > MOST_AGENTS else ""
        named = ", ".join(agents[:MOST_AGENTS])
        yield named if len(agents) == 1 else f"{len(agents)} agents: {named}{more}"
    if view["max_parallel"]:
        yield f"at most {view['max_parallel']} at once"
    yield from (f"{key}={value}" for key, value in view["labels"].items())
    if view["started_at"]:
        yield time.strftime("%a %d %b %Y, %H:%M %Z", time.localtime(parse_time(view["started_at"])))


def draw_bar(counts: Sequence[tuple[str, int]], total: int) -> Markup | None:
    """One bar of all tasks by their words; None where there are no tasks."""
    at, parts = 0.0, []
    for word, number in counts:
        width = 100 * number / total
        about = tag("title", f"{number} {tell_word(word)}")
        place = {"x": f"{at:.2f}%", "width": f"{max(0.1, width - 0.15):.2f}%", "height": "13"}
        parts.append(tag("rect", about, class_=word, **place))
        at += width
    label = ", ".join(f"{number} {tell_word(word)}" for word, number in counts)
    return tag("svg", *parts, class_="bar", role="img", aria_label=label) if parts else None


def _tell_needed(matter: Matter) -> Markup | None:
    lines = [
        tag("p", tag("span", words), tag("code", " ".join(["sessionrun", verb, matter.name, *rest])))
        for words, verb, *rest in _find_needed(matter)
    ]
    return tag("div", tag("strong", "Needs you"), *lines, class_="needs-you") if lines else None


def _find_needed(matter: Matter) -> Iterator[tuple[str, ...]]:
    """What a person may do, each with the command for it: the words, the verb, what comes behind the session."""
    by_word: dict[str, list[Task]] = {}
    for shown in matter.tasks:
        by_word.setdefault(shown.task["word"], []).append(shown.task)
    held = by_word.get("held", [])
    kept = [*by_word.get("bounced", []), *(task for task in held if task["status"] == "completed")]
    waits = [task for task in held if task["status"] != "completed"]
    bad = sum(len(by_word.get(word, ())) for word in BAD)
    nothing = by_word.get("changed_nothing", [])
    if matter.view["state"] == "stopped":
        yield "its processes are gone: let it go on", "resume"
    if waits:
        yield f"{_name_few(waits)} held: let {_them(waits)} start", "release"
    if kept:
        few = [short_id(task) for task in kept] if len(kept) <= MOST_NAMED // 10 else []
        yield f"{_name_few(kept)} did not land: mend the work on its branch, then land it", "merge", *few
    if bad:
        yield (
            f"{bad} failed: read why below, then try again",
            "retry",
            *([] if by_word.get("lost") else ["--failed"]),
        )
    if nothing:
        few = [short_id(task) for task in nothing] if len(nothing) <= MOST_NAMED // 10 else []
        what = "is there nothing to do, or did the agent give up?"
        yield f"{_name_few(nothing)} changed nothing: {what}", "results", *few


def _name_few(tasks: Sequence[Task]) -> str:
    return ", ".join(map(short_id, tasks)) if len(tasks) <= 3 else f"{len(tasks)} tasks"


def _them(tasks: Sequence[Task]) -> str:
    return "it" if len(tasks) == 1 else "them"


# --- why ---


def _tell_failures(matter: Matter, links: Mapping[str, Markup]) -> list[Part]:
    cards: list[Part] = [_make_card(matter, failure, links) for failure in matter.failures[:MOST_CARDS]]
    rest = sum(len(failure.group.tasks) for failure in matter.failures[MOST_CARDS:])
    if rest:
        cards.append(tag("p", f"and {rest} more, each for another reason: they stand below", class_="dim"))
    by_id = name_tasks(matter.view)
    skipped = [shown.task for shown in matter.tasks if shown.task["word"] == "skipped"]
    if cards and skipped:
        why = [f"{short_id(task)} ({tell_reason(task, by_id, matter.now)})" for task in skipped[: MOST_NAMED // 6]]
        more = f" and {len(skipped) - len(why)} more" if len(skipped) > len(why) else ""
        cards.append(tag("p", f"Skipped in consequence: {', '.join(why)}{more}", class_="dim"))
    return cards


def _make_card(matter: Matter, failure: Failure, links: Mapping[str, Markup]) -> Markup:
    group = failure.group
    word, first = group.word, group.tasks[0]
    alone = len(group.tasks) == 1
    if alone:
        title = join(
            [
                tag("strong", f"{SIGNS[word]} {tell_word(word)}", class_=word),
                " ",
                links[first["id"]],
                " ",
                name_apart(first),
            ]
        )
        facts = tag("span", " · ".join(tell_facts(first)), class_="dim")
        where: Part = tag("p", group.reason, class_=word)
    else:
        title = tag("strong", f"{SIGNS[word]} {group.head}", class_=word)
        facts = None
        shown = [links[task["id"]] for task in group.tasks[:MOST_NAMED]]
        more = f" and {len(group.tasks) - MOST_NAMED} more" if len(group.tasks) > MOST_NAMED else None
        where = tag("p", [part for name in shown for part in (", ", name)][1:], more)
    blocks = [
        make_block(
            f"{name_source(section.source)}{'' if alone else ', the same in all'}", "\n".join(section.lines)
        )
        for section in failure.sections
    ]
    kept = f"Its work is kept on {first['branch']}" if alone and word == "bounced" and first["branch"] else None
    command = tag("code", f"sessionrun explain {matter.name} {short_id(first)}", class_="dim") if alone else None
    kind = "card" if word in ("bounced", "held") else "card red"
    return tag(
        "article",
        tag("header", title, facts),
        where,
        tag("p", kept) if kept else None,
        blocks,
        command,
        class_=kind,
    )


def _tell_running(matter: Matter, names: Mapping[str, Markup]) -> list[Part]:
    """The tasks that run, with what they printed last; of many only those of which that was read."""
    running = [shown for shown in matter.tasks if shown.task["word"] == "running"]
    printed = [shown for shown in running if shown.sections] or running[:1]
    blocks = [
        join([tag("h3", names[shown.task["id"]]), [tag("pre", "\n".join(one.lines)) for one in shown.sections]])
        for shown in printed
    ]
    rest = len(running) - len(printed)
    return [*blocks, tag("p", f"and {rest} more", class_="dim") if rest > 0 else None] if running else []


# --- what landed ---


def _tell_target(tasks: Sequence[Task]) -> str:
    targets = {task["landing"]["target"] for task in tasks if task["landing"] and task["landing"]["target"]}
    return f"on {', '.join(sorted(targets))}" if targets else ""


def _tell_landing(tasks: Sequence[Task], names: Mapping[str, Markup]) -> list[Part]:
    """The commits with which work landed, in their order; beside them what is in a gate now, and what did not."""
    landed: dict[str, list[Task]] = {}
    for task in sorted(
        (one for one in tasks if one["word"] == "landed"), key=lambda one: one["landing"]["at"] or ""
    ):
        landed.setdefault(task["landing"]["commit"] or "", []).append(task)
    steps = [
        tag(
            "div",
            tag("strong", ", ".join(map(short_id, group))),
            tag("div", tag("code", commit[:10])) if commit else None,
            tag("div", "; ".join(filter(None, map(tell_changes, group))), class_="dim"),
            class_="landed",
        )
        for commit, group in landed.items()
    ]
    on_its_way = [
        task for task in tasks if (task["landing"] or {}).get("status") in ("landing", "mending", "ready")
    ]
    now = [tag("p", names[task["id"]], f": {tell_word(task['landing']['status'])}") for task in on_its_way]
    aside = [
        tag(
            "p",
            names[task["id"]],
            f": {tell_reason(task, {}, 0.0)}. Branch {task['branch']} keeps the work.",
            class_="aside",
        )
        for task in tasks
        if task["landing"] and task["word"] in ("bounced", "held") and task["status"] == "completed"
    ]
    return [tag("div", *steps, class_="lane") if steps else None, *now, *aside]


# --- all tasks ---


def _make_table(matter: Matter, links: Mapping[str, Markup]) -> list[Part]:
    tasks = [shown.task for shown in matter.tasks]
    if not tasks:
        return []
    by_id = name_tasks(matter.view)
    columns = {
        "Why": [tell_reason(task, by_id, matter.now) for task in tasks],
        "Agent": ["/".join(filter(None, (task["agent"], task["model"]))) for task in tasks],
        "Tries": [_count_tries(task) for task in tasks],
        "Time": ["" if task["duration_s"] is None else tell_span(task["duration_s"]) for task in tasks],
        "Changed": [tell_changes(task) for task in tasks],
        "Cost": [tell_cost(task["usage"]) for task in tasks],
    }
    if not _has_costs(matter.view):
        del columns["Cost"]  # all unknown: the block on costs says so once
    alike = {name for name in ("Agent", "Tries") if len(set(columns[name])) == 1}
    shown = {name: column for name, column in columns.items() if any(column) and name not in alike}
    rows = [
        tag(
            "tr",
            tag("td", str(task["num"])),
            tag("td", f"{SIGNS[task['word']]} {tell_word(task['word'])}"),
            tag("td", links[task["id"]], " ", name_apart(task)),
            [
                tag("td", column[place], data_sort=_find_order(task) if name == "Time" else None)
                for name, column in shown.items()
            ],
            class_=task["word"],
        )
        for place, task in enumerate(tasks)
    ]
    heads = ("#", "Outcome", "Task", *shown)
    numbers = [f"n{place}" for place, head in enumerate(heads, 1) if head in NUMBERS]
    made = table(heads, rows, class_=" ".join(["tasks", *numbers]))
    return [_make_filter(matter.view), tag("div", made, class_="long" if len(rows) > LONG else "wide")]


def _has_costs(view: View) -> bool:
    """Whether the cost of anything in a session is known."""
    return bool(view["usage"] and view["usage"]["cost_usd"] is not None)


def _find_order(task: Task) -> float | None:
    """What a script orders a time by whose words do not say it."""
    long = task["duration_s"] is not None and task["duration_s"] >= 59
    return round(task["duration_s"], 1) if long else None


def _count_tries(task: Task) -> str:
    rounds = f" × {task['round']} rounds" if task["round"] > 1 else ""
    return f"{task['attempt']}{rounds}"


def _make_filter(view: View) -> Markup:
    """Buttons that work without a script, by the looks alone, and a field that the script shows."""
    counts = list_counts(view)
    choices = [("all", f"all {view['total']}", "")]
    choices += [(word, f"{SIGNS[word]} {tell_word(word)} {number}", word) for word, number in counts]
    buttons = [
        [
            tag("input", type="radio", name="word", id=f"w-{name}", checked="" if name == "all" else None),
            tag("label", text, for_=f"w-{name}", class_=word or None),
        ]
        for name, text, word in choices
    ]
    search = tag(
        "input",
        id="find",
        type="search",
        placeholder="Filter by any word",
        aria_label="Filter by any word",
        hidden="",
    )
    return tag("fieldset", buttons if len(counts) > 1 else None, search, class_="filter")


def _tell_costs(view: View) -> list[Part]:
    """What each model cost; one whose price is not known is told, and not left out."""
    used = {name: usage for name, usage in (view["usage_by_model"] or {}).items() if usage}
    if not used:
        return []
    most = max((usage["cost_usd"] or 0.0 for usage in used.values()), default=0.0)
    rows = []
    for name, usage in sorted(used.items(), key=lambda pair: -(pair[1]["cost_usd"] or 0.0)):
        unknown = usage["cost_usd"] is None
        share = 100.0 if unknown else 100 * (usage["cost_usd"] or 0.0) / (most or 1.0)
        bar = tag("rect", width=f"{max(0.5, share):.1f}%", height="11", class_="dash" if unknown else "work")
        tokens = sum(usage[key] or 0 for key in ("input_tokens", "output_tokens"))
        at_least = "at least " if usage["unpriced_jobs"] and not unknown else ""
        words = f"{at_least}{tell_cost(usage)}, {tokens:,} tokens"
        rows.append(cells([name, tag("svg", bar, class_="interval", aria_hidden="true"), words]))
    return [table(("Model", "", "Cost"), rows)]


# --- each task ---


def _tell_each(matter: Matter) -> list[Part]:
    chosen = [shown for shown in matter.tasks if _is_told(matter, shown.task)]
    if len(matter.tasks) <= FEW:
        return [tell_task(shown, matter) for shown in chosen]
    wrong = [tell_task(shown, matter) for shown in chosen if is_wrong(shown.task)]
    good = [tell_task(shown, matter) for shown in chosen if not is_wrong(shown.task)]
    fold = tag("details", tag("summary", f"{len(good)} others"), *good) if good else None
    rest = len(matter.tasks) - len(chosen)
    words = f"The {rest} others are not in this file: sessionrun results {matter.name} ID"
    return [*wrong, fold, tag("p", words, class_="dim") if rest else None]

"""The page of a session: what came out, what needs a person, and why, before all that is there.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from sessionrun import __version__
from sessionrun.client.reading.telling import Failure
from sessionrun.doors.drawing import MOST_ROWS, WAYS, draw_needs, draw_timeline, make_grid
from sessionrun.doors.gathering import FEW, MOST, Matter, is_wrong
from sessionrun.doors.markup import NUMBERS, Markup, Part, cells, document, join, picture, section, table, tag
from sessionrun.doors.task import (
    has_costs,
    list_counts,
    make_block,
    make_link,
    make_sign,
    name_apart,
    tell_facts,
    tell_needed,
    tell_task,
    tell_verdict,
)
from sessionrun.model.usage import tell_cost
from sessionrun.model.wording import (
    find_took_s,
    name_agent,
    name_source,
    short_id,
    tell_changes,
    tell_result,
    tell_span,
    tell_took,
    tell_word,
    took_s,
)
from sessionrun.model.words import GOOD, IN_LANDING, SIGNS, WORDS, is_matrix, parse_time, read_landing

LONG: Final = 60
"""A table of more rows scrolls in a box of its own."""

MOST_CARDS: Final = 40
MOST_NAMED: Final = 60
_SPENT: Final = ("cost_usd", "input_tokens", "output_tokens")

Task = Mapping[str, Any]
View = Mapping[str, Any]


def make_page(matter: Matter) -> str:
    """The whole document of a report."""
    made = tag(
        "footer",
        f"Made by sessionrun {__version__} from session ",
        tag("code", matter.view["session_id"]),
        ". The same on a command line: ",
        tag("code", f"sessionrun status {matter.name}"),
        class_="dim",
    )
    main = tag("main", *make_blocks(matter), id="content")
    return document(tell_result(matter.view, matter.now), [main, made])


def make_blocks(matter: Matter, *, base: str = "#t", above: Part = None) -> list[Part]:
    """All blocks in their order; a task is at `base` and its number, and `above` stands below the head.

    Of one task there is nothing to compare: its own block says all, unless a page of its own does.
    """
    tasks = [shown.task for shown in matter.tasks]
    wrong = [task for task in tasks if is_wrong(task)]
    served = base != "#t"
    links = {
        task["id"]: make_link(task, matter.names[task["id"]], base if served or _is_told(matter, task) else None)
        for task in tasks
    }
    names = {task["id"]: join([make_sign(task), " ", links[task["id"]], " ", name_apart(task)]) for task in tasks}
    ran = [(shown.task, shown.bars) for shown in matter.tasks]
    drawn, note = draw_timeline(ran, matter.pauses, names, matter.reasons)
    graph, about = draw_needs(tasks, SIGNS)
    several = served or len(tasks) > 1
    rows = ("tasks", "Tasks", _make_table(matter, links) if several else (), "")
    timeline = ("timeline", "Timeline", drawn if several else (), note)
    landing, target = _tell_landing(matter, names)
    grid, arms = make_grid(matter.view, tasks, base) if is_matrix(tasks) else ((), "")
    contents: list[tuple[str, str, Sequence[Part], str]] = [
        ("matrix", "Tasks and arms", grid, arms),
        ("wrong", "What went wrong", _tell_failures(matter, links), f"{len(wrong)} of {len(tasks)}"),
        ("running", "Running now", _tell_running(matter, links), ""),
        ("landing", "Landing", landing, target),
        *((timeline, rows) if len(tasks) > MOST_ROWS else (rows, timeline)),
        ("needs", "Needs", [graph, tag("p", WAYS, class_="legend dim")] if graph else (), about),
        ("cost", "Cost", _tell_costs(matter.view), ""),
        ("each", "Each task" if several else "The task", () if served else _tell_each(matter), ""),
    ]
    blocks = {name: section(name, heading, *parts, note=words) for name, heading, parts, words in contents}
    ways = [tag("a", heading, href=f"#{name}") for name, heading, *_ in contents if blocks[name]]
    return [
        *tell_verdict(matter),
        above,
        tell_needed(matter),
        tag("nav", *ways) if len(ways) > 1 else None,
        *blocks.values(),
    ]


def _is_told(matter: Matter, task: Task) -> bool:
    return len(matter.tasks) <= MOST or is_wrong(task)


# --- why ---


def _tell_failures(matter: Matter, links: Mapping[str, Markup]) -> list[Part]:
    def order(failure: Failure) -> tuple[int, int]:
        return WORDS.index(failure.group.word), -len(failure.group.tasks)

    failures = sorted(matter.failures, key=order)
    cards: list[Part] = [_make_card(matter, failure, links) for failure in failures[:MOST_CARDS]]
    rest = sum(len(failure.group.tasks) for failure in failures[MOST_CARDS:])
    if rest:
        cards.append(tag("p", f"and {rest} more, each for another reason: they stand below", class_="dim"))
    skipped = [shown.task for shown in matter.tasks if shown.task["word"] == "skipped"]
    if cards and skipped:
        some = skipped[: MOST_NAMED // 6]
        why = [f"{matter.names[task['id']]} ({matter.reasons[task['id']]})" for task in some]
        more = f" and {len(skipped) - len(why)} more" if len(skipped) > len(why) else ""
        cards.append(tag("p", f"Skipped in consequence: {', '.join(why)}{more}", class_="dim"))
    return cards


def _make_card(matter: Matter, failure: Failure, links: Mapping[str, Markup]) -> Markup:
    group = failure.group
    word, first = group.word, group.tasks[0]
    alone = len(group.tasks) == 1
    if alone:
        header = _make_header(first, links)
        where: Part = tag("p", tag("strong", group.reason), class_=word)
    else:
        header = tag("header", tag("strong", f"{SIGNS[word]} {group.head}", class_=word))
        shown = [links[task["id"]] for task in group.tasks[:MOST_NAMED]]
        more = f" and {len(group.tasks) - MOST_NAMED} more" if len(group.tasks) > MOST_NAMED else None
        where = tag("p", [part for name in shown for part in (", ", name)][1:], more)
    blocks = [
        make_block(
            f"{name_source(section.source)}{'' if alone else ', the same in all'}", "\n".join(section.lines)
        )
        for section in failure.sections
    ]
    is_kept = alone and word == "bounced" and first["branch"]
    kept = tag("p", "Its work is kept on ", tag("code", first["branch"]), ".") if is_kept else None
    command = tag("code", f"sessionrun explain {matter.name} {short_id(first)}", class_="dim") if alone else None
    kind = "card" if word in ("bounced", "held") else "card red"
    return tag("article", header, where, kept, blocks, command, class_=kind)


def _make_header(task: Task, links: Mapping[str, Markup], facts: Iterable[str] | None = None) -> Markup:
    """The head of a card about one task: its word and name, and beside them what is known of it."""
    word = tag("strong", f"{SIGNS[task['word']]} {tell_word(task['word'])}", class_=task["word"])
    about = " · ".join(tell_facts(task) if facts is None else facts)
    name = tag("strong", name_apart(task)) if name_apart(task) else None
    return tag("header", word, links[task["id"]], name, tag("span", about, class_="dim"))


def _tell_running(matter: Matter, links: Mapping[str, Markup]) -> list[Part]:
    """The tasks that run, with what they printed last; of many only those of which that was read."""
    running = [shown for shown in matter.tasks if shown.task["word"] == "running"]
    printed = [shown for shown in running if shown.sections] or running[:1]
    blocks = [
        tag(
            "article",
            _make_header(shown.task, links, [tell_span(took_s(shown.task, matter.now)), *tell_facts(shown.task)]),
            [tag("pre", "\n".join(one.lines), tabindex="0") for one in shown.sections],
            class_="card blue",
            id=f"now{shown.task['num']}",
        )
        for shown in printed
    ]
    rest = len(running) - len(printed)
    return [*blocks, tag("p", f"and {rest} more", class_="dim") if rest > 0 else None] if running else []


# --- what landed ---


def _tell_landing(matter: Matter, names: Mapping[str, Markup]) -> tuple[list[Part], str]:
    """The commits with which work landed, in their order; what is in a gate now, and what did not; and where."""
    tasks = [shown.task for shown in matter.tasks]
    targets = {task["landing"]["target"] for task in tasks if task["landing"] and task["landing"]["target"]}
    target = ", ".join(sorted(targets))
    landed: dict[str, list[Task]] = {}
    for task in sorted(tasks, key=lambda task: (task["landing"] or {}).get("at") or ""):
        if task["word"] == "landed":
            landed.setdefault(task["landing"]["commit"] or "", []).append(task)
    steps = [
        tag(
            "div",
            tag("strong", ", ".join(matter.names[task["id"]] for task in group)),
            tag("div", tag("code", commit[:10])) if commit else None,
            tag("div", "; ".join(_tell_landed(matter.view, group)), class_="dim"),
            class_="landed",
        )
        for commit, group in landed.items()
    ]
    if steps:
        steps.insert(0, tag("div", tag("strong", target), tag("div", "as it was", class_="dim")))
    on_its_way = [task for task in tasks if read_landing(task) in IN_LANDING]
    now = [tag("p", names[task["id"]], f": {tell_word(task['landing']['status'])}") for task in on_its_way]
    aside = []
    for task in tasks:
        if task["landing"] and task["word"] in ("bounced", "held") and task["status"] == "completed":
            why = f": {matter.reasons[task['id']]}. Branch {task['branch']} keeps the work."
            aside.append(tag("p", names[task["id"]], why, class_="aside"))
    count = sum(map(len, landed.values()))
    note = f"on {target}" + (f": {count} landed in {len(landed)} steps" if count > 1 else "") if target else ""
    return [tag("div", *steps, class_="lane") if steps else None, *now, *aside], note


def _tell_landed(view: View, group: Sequence[Task]) -> Iterator[str]:
    at = group[0]["landing"]["at"]
    if at and view["started_at"]:
        yield f"after {tell_span(max(0.0, parse_time(at) - parse_time(view['started_at'])))}"
    yield from filter(None, map(tell_changes, group))


# --- all tasks ---


def _make_table(matter: Matter, links: Mapping[str, Markup]) -> list[Part]:
    tasks = [shown.task for shown in matter.tasks]
    if not tasks:
        return []
    columns, is_grid = _list_columns(matter, tasks), is_matrix(tasks)
    rows = []
    for place, task in enumerate(tasks):
        took = find_took_s(task, matter.now) or 0.0
        # a script orders by numbers: the words of a long time do not do for it
        looks: dict[str, dict[str, object]] = {
            "Tries": {"class_": "tries"},
            "Time": {"data_sort": round(took, 1) if took >= 59 else None},
        }
        parts = [
            tag("td", str(task["num"])),
            tag("td", f"{SIGNS[task['word']]} {tell_word(task['word'])}"),
            tag("td", links[task["id"]], None if is_grid else f" {name_apart(task)}"),
            *(tag("td", column[place], **looks.get(name, {})) for name, column in columns.items()),
        ]
        rows.append(tag("tr", *parts, class_=task["word"], id=f"r{task['num']}"))
    heads = ("#", "Outcome", "Task", *columns)
    numbers = [f"n{place}" for place, head in enumerate(heads, 1) if head in NUMBERS]
    made = table(heads, rows, class_=" ".join(["tasks", *numbers]))
    return [_make_filter(matter.view), tag("div", made, class_="long" if len(rows) > LONG else "wide")]


def _list_columns(matter: Matter, tasks: Sequence[Task]) -> dict[str, list[str]]:
    """What is told of each task, by the head of its column; what is the same of all, or of none, is left out."""
    rounds = [f" × {task['round']} rounds" if task["round"] > 1 else "" for task in tasks]
    columns = {
        "Why": [matter.reasons[task["id"]] for task in tasks],
        "Agent": [name_agent(task) for task in tasks],
        "Tries": [f"{task['attempt']}{more}" for task, more in zip(tasks, rounds, strict=True)],
        "Time": [tell_took(task, matter.now) for task in tasks],
        "Changed": [tell_changes(task) for task in tasks],
        "Cost": [tell_cost(task["usage"]) for task in tasks],
    }
    alike = {name for name in ("Agent", "Tries") if len(set(columns[name])) == 1}
    alike |= {"Agent"} if is_matrix(tasks) else set()  # the name of a cell, and the grid above, say whose it is
    alike |= set() if has_costs(matter.view) else {"Cost"}  # all unknown: the block on costs says so once
    return {name: column for name, column in columns.items() if any(column) and name not in alike}


def _make_filter(view: View) -> Markup:
    """Buttons that work without a script, by the looks alone, and a field that the script shows.

    What one may look for stands first: what is good is most of it.
    """
    counts = sorted(list_counts(view), key=lambda count: count[0] in GOOD and count[0] != "changed_nothing")
    choices = [("all", f"all {view['total']}", "")]
    choices += [(word, f"{SIGNS[word]} {tell_word(word)} {number}", word) for word, number in counts]
    buttons = [
        [
            tag("input", type="radio", name="word", id=f"w-{name}", checked="" if name == "all" else None),
            tag("label", text, for_=f"w-{name}", class_=word or None),
        ]
        for name, text, word in choices
    ]
    return tag("fieldset", buttons if len(counts) > 1 else None, make_search(), class_="filter")


def make_search() -> Markup:
    """A field for any word; the script shows it, and then only the rows that have the word."""
    words = "Filter by any word"
    return tag("input", id="find", type="search", placeholder=words, aria_label=words, hidden="")


def _tell_costs(view: View) -> list[Part]:
    """What each model cost; one whose price is not known is told, and not left out."""
    used = {
        name: usage
        for name, usage in (view["usage_by_model"] or {}).items()
        if usage and any(map(usage.get, _SPENT))
    }
    if not used:
        return []
    most = max((usage["cost_usd"] or 0.0 for usage in used.values()), default=0.0)
    is_partial = False
    rows = []
    for name, usage in sorted(used.items(), key=lambda pair: -(pair[1]["cost_usd"] or 0.0)):
        unknown = usage["cost_usd"] is None
        share = 100.0 if unknown else 100 * (usage["cost_usd"] or 0.0) / (most or 1.0)
        bar = tag("rect", width=f"{max(0.5, share):.1f}%", height="11", class_="dash" if unknown else "work")
        sent, received = usage["input_tokens"] or 0, usage["output_tokens"] or 0
        is_partial = is_partial or unknown or bool(usage["unpriced_jobs"])
        price = tag("span", tell_cost(usage), class_="unknown" if unknown else None)
        drawn = picture(bar, class_="price")
        rows.append(cells([name, price, drawn, f"{sent:,} in, {received:,} out"]))
    hint = [
        "A model without a known price counts as nothing. To give it one: ",
        tag("code", '[prices."MODEL"]'),
        " in ",
        tag("code", "sessionrun.toml"),
        ".",
    ]
    costs = table(("Model", "Cost", "", "Tokens"), rows, class_="costs")
    return [costs, tag("p", *hint, class_="dim") if is_partial else None]


# --- each task ---


def _tell_each(matter: Matter) -> list[Part]:
    chosen = [shown for shown in matter.tasks if _is_told(matter, shown.task)]
    if len(matter.tasks) <= FEW:
        return [tell_task(shown, matter, unfolded=len(chosen) == 1) for shown in chosen]
    wrong = [tell_task(shown, matter) for shown in chosen if is_wrong(shown.task)]
    good = [tell_task(shown, matter) for shown in chosen if not is_wrong(shown.task)]
    fold = tag("details", tag("summary", f"{len(good)} others"), *good) if good else None
    rest = len(matter.tasks) - len(chosen)
    words = f"The {rest} others are not in this file: sessionrun results {matter.name} ID"
    return [*wrong, fold, tag("p", words, class_="dim") if rest else None]

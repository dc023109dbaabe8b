"""The head of a page: what came out of a session in words and as a bar, and what needs a person.  Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sessionrun.client.reading.money import tell_cost
from sessionrun.client.reading.steps import list_steps
from sessionrun.doors.gathering import Matter
from sessionrun.doors.markup import Markup, Part, tag
from sessionrun.model.units import parse_time
from sessionrun.model.wording import name_session, tell_span, tell_word, took_s
from sessionrun.model.words import WORDS

MOST_AGENTS: Final = 5

Task = Mapping[str, Any]
View = Mapping[str, Any]


def tell_verdict(matter: Matter) -> list[Part]:
    """The name of a session, its counts, what there is to know of it in a line, and its bar."""
    view = matter.view
    counts, words = list_counts(view), tell_counts(view)
    name = [name_session(view), tag("code", str(view["session_id"])[:8]) if view["name"] else None]
    return [
        tag("h1", *name, tag("span", str(view["state"]), class_=f"badge {name_state(view)}")),
        tag("p", *(words or ["no tasks"]), class_="verdict", role="status"),
        tag("p", " · ".join(_tell_facts(view, matter)), class_="dim"),
        draw_bar(counts, view["total"]),
    ]


def name_state(view: View) -> str | None:
    """The word in whose colour the state of a session is told; None for one that has ended."""
    words = {"running": "running", "ended": None, "stopped": "stopped"}
    return words.get(view["state"], "held")


def list_counts(view: View) -> list[tuple[str, int]]:
    """How many tasks have each word, without what there is none of."""
    return [(word, view["counts"][word]) for word in WORDS if view["counts"].get(word)]


def tell_counts(view: View) -> Sequence[Part]:
    """``4 landed, 2 failed``, each in the colour of its word."""
    counts = [tag("span", f"{number} {tell_word(word)}", class_=word) for word, number in list_counts(view)]
    return [part for count in counts for part in (", ", count)][1:]


def has_costs(view: View) -> bool:
    """Whether the cost of anything in a session is known."""
    return bool(view["usage"] and view["usage"]["cost_usd"] is not None)


def _tell_facts(view: View, matter: Matter) -> Iterator[str]:
    yield f"{view['total']} {'task' if view['total'] == 1 else 'tasks'}"
    yield f"{'in' if view['ended_at'] else 'for'} {tell_span(took_s(view, matter.now))}"
    if has_costs(view):
        unknown = view["usage"]["unpriced_jobs"]
        runs = "1 run" if unknown == 1 else f"{unknown} runs"
        more = f", {runs} without a known price" if unknown else ""
        yield f"{tell_cost(view['usage'])}{more}"
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


# --- what needs a person ---


def tell_needed(matter: Matter) -> Markup | None:
    """What a person may do, each with its command; None: there are no tasks yet."""
    steps = list_steps(matter.view, [shown.task for shown in matter.tasks])
    lines = [
        tag(
            "p",
            tag("span", step.why or "read why below, then try again"),
            tag("code", " ".join(["sessionrun", step.verb, matter.name, *step.words])),
        )
        for step in steps
        if step.needed
    ]
    if lines:
        return tag("div", tag("strong", "Needs you"), *lines, class_="needs-you")
    return tag("p", "Nothing needs you.", class_="dim") if matter.tasks else None

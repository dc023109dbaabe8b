"""A session in words and as a bar, and what needs a person; a task: sign, name, and all there is of it.  Pure."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sessionrun.client.reading.digest import Excerpt
from sessionrun.client.reading.steps import Step, list_steps
from sessionrun.doors.gathering import Matter, Shown
from sessionrun.doors.markup import Markup, Part, join, tag
from sessionrun.model.usage import tell_cost
from sessionrun.model.wording import (
    SAID,
    name_agent,
    name_session,
    name_source,
    short_id,
    tell_changes,
    tell_span,
    tell_word,
    tell_work,
    took_s,
)
from sessionrun.model.words import BAD, SIGNS, WORDS, parse_time, tell_counts

Task = Mapping[str, Any]
View = Mapping[str, Any]


def make_sign(task: Task) -> Markup:
    """The sign of how a task stands; the word stands beside it for those who hear a page."""
    return tag("span", SIGNS[task["word"]], class_=task["word"], aria_hidden="true")


def make_link(task: Task, name: str, base: str | None) -> Markup:
    """The name of a task, as a link where there is more of it."""
    return tag("a" if base else "span", name, class_="id", href=base and f"{base}{task['num']}")


def name_apart(task: Task) -> str:
    """What a task is called beside its name; empty where that is the same."""
    labels, title = task["labels"], str(task["title"])
    if title == f"{labels.get('name')} ({labels.get('model')})":  # of a cell: its name says the model
        return str(labels["name"])
    return "" if title == task["id"] else title


def tell_facts(task: Task) -> Iterator[str]:
    """How long it took, which try it was, whose, and what it changed."""
    if task["duration_s"] is not None:
        yield tell_span(task["duration_s"])
    yield f"attempt {task['attempt']}" + (f", round {task['round']}" if task["round"] > 1 else "")
    yield name_agent(task)
    yield from filter(None, [tell_changes(task)])


def make_block(heading: str, content: Part) -> Markup:
    """A text below its heading, which can be reached by keys and scrolled."""
    return join([tag("h3", heading[:1].upper() + heading[1:]), tag("pre", content, tabindex="0")])


def tell_task(shown: Shown, matter: Matter, *, unfolded: bool = False) -> Markup:
    """All there is of a task, folded unless that is not wanted."""
    task = shown.task
    return tag(
        "details",
        tag(
            "summary",
            tag("span", f"{SIGNS[task['word']]} {tell_word(task['word'])}", class_=task["word"]),
            " ",
            make_link(task, matter.names[task["id"]], None),
            f" {name_apart(task)}",
        ),
        tag("p", " · ".join(filter(None, (matter.reasons[task["id"]], *list_facts(task)))), class_="dim"),
        tell_parts(shown),
        id=f"t{task['num']}",
        open="" if unfolded else None,
    )


def tell_parts(shown: Shown, *, unfolded: bool = False) -> list[Part]:
    """What there is to read of a task; `unfolded`: also of what it changed."""
    whole = {SAID, "work", *("check" for printed in shown.check if printed.size)}
    return [
        [tag("p", f"{note['level']}: {note['where']}: {note['text']}") for note in shown.task["audit"] or ()],
        [
            make_block(name_source(one.source), "\n".join(one.lines))
            for one in shown.sections
            if one.source not in whole
        ],
        [_tell_excerpt("Check", printed) for printed in shown.check],
        _tell_excerpt("Standard error", shown.errors),
        _tell_excerpt("Answer", shown.answer),
        _tell_patch(shown.patch, unfolded=unfolded),
        _tell_acts(shown.acts),
        [make_block("Prompt", prompt) for prompt in shown.prompts],
        make_block("What ran", "\n".join(shown.rounds)) if shown.rounds else None,
    ]


def list_facts(task: Task) -> Iterator[str | None]:
    """All that is known of a task in a word or two; None among them says nothing."""
    check, landing = task["check"] or {}, task["landing"] or {}
    yield f"id {task['id']}" if short_id(task) != task["id"] else None
    yield from tell_facts(task)
    yield f"branch {task['branch']}" if task["branch"] else None
    yield f"needs {', '.join(task['needs'])}" if task["needs"] else None
    yield None if check.get("passed") is None else f"check {'passed' if check['passed'] else 'did not pass'}"
    yield f"proof: {tell_word(task['proof'])}" if task["proof"] else None
    yield f"landing: {tell_word(landing['status'])}" if landing else None
    yield from tell_work(task)


def _tell_acts(acts: Sequence[tuple[str, float | None]]) -> Markup | None:
    """What an agent did, folded; behind it the seconds until each result where the agent's stream tells them."""
    if not acts:
        return None
    is_timed = any(seconds is not None for _, seconds in acts)
    spans = ["" if seconds is None else tell_span(seconds) for _, seconds in acts]
    widest = max(map(len, spans))
    steps = zip(spans, (line for line, _ in acts), strict=True)
    lines = [f"{span:>{widest}}  {line}" if is_timed else line for span, line in steps]
    what = "its last step" if len(acts) == 1 else f"its last {len(acts)} steps"
    summary = tag("summary", f"What the agent did, {what}{', each with its time' if is_timed else ''}")
    return tag("details", summary, tag("pre", "\n".join(lines), tabindex="0"))


def _tell_excerpt(heading: str, excerpt: Excerpt) -> Markup | None:
    if not excerpt.size:
        return None
    return make_block(f"{heading} (parts of {excerpt.size:,} bytes)" if excerpt.is_cut else heading, excerpt.text)


def _tell_patch(patch: Excerpt, *, unfolded: bool) -> Markup | None:
    if not patch.size:
        return None
    files: list[list[str]] = []
    for line in patch.text.splitlines(keepends=True):
        if line.startswith("diff --git ") or not files:
            files.append([])
        if not line.startswith(("index ", "diff --git ")):
            files[-1].append(line)
    heading = f"Changes (parts of {patch.size:,} bytes)" if patch.is_cut else "Changes"
    return join([tag("h3", heading), [_tell_file(lines, unfolded=unfolded) for lines in files if lines]])


def _tell_file(lines: Sequence[str], *, unfolded: bool) -> Markup:
    names = [line[6:].strip() for line in lines if line.startswith(("--- a/", "+++ b/"))]
    begin = next((place for place, line in enumerate(lines) if line.startswith("@@")), 0)
    head = [line for line in lines[:begin] if not line.startswith(("--- ", "+++ "))]
    kinds = Counter(line[:1] for line in lines[begin:])
    summary = tag("summary", f"{names[-1] if names else 'changes'} +{kinds['+']} −{kinds['-']}")
    colours = {"+": "added", "-": "removed", "@": "place"}
    parts = [
        tag("span", line, class_=colours[line[:1]]) if line[:1] in colours else line for line in lines[begin:]
    ]
    content = tag("pre", *head, *parts, tabindex="0")
    return tag("details", summary, content, open="" if unfolded else None)


MOST_AGENTS: Final = 5


def tell_verdict(matter: Matter) -> list[Part]:
    """The name of a session, its counts, what there is to know of it in a line, and its bar."""
    view = matter.view
    counts, words = list_counts(view), mark_counts(view)
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


def mark_counts(view: View) -> Sequence[Part]:
    """``4 landed, 2 failed``, each in the colour of its word."""
    counts = [tag("span", f"{number} {tell_word(word)}", class_=word) for word, number in list_counts(view)]
    return [part for count in counts for part in (", ", count)][1:]


def has_costs(view: View) -> bool:
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


_WHOM: Final[Mapping[str, Sequence[str]]] = {
    "release": ("held",),
    "merge": ("bounced",),
    "retry": BAD,
    "results": ("changed_nothing",),
}
"""The words of the tasks for which a command is that names none."""


def _tell_step(step: Step, counts: Mapping[str, int]) -> str:
    names = ", ".join(word for word in step.words if not word.startswith("-"))
    whom = names or tell_counts({word: counts.get(word, 0) for word in _WHOM.get(step.verb, ())})
    return ": ".join(filter(None, (whom, step.why or "read why below, then try again")))


def tell_needed(matter: Matter) -> Markup | None:
    """What a person may do, each with its command; None: there are no tasks yet."""
    steps = list_steps(matter.view, [shown.task for shown in matter.tasks])
    lines = [
        tag(
            "p",
            tag("span", _tell_step(step, matter.view["counts"])),
            tag("code", " ".join(["sessionrun", step.verb, matter.name, *step.words])),
        )
        for step in steps
        if step.needed
    ]
    if lines:
        return tag("div", tag("strong", "Needs you"), *lines, class_="needs-you")
    return tag("p", "Nothing needs you.", class_="dim") if matter.tasks else None

"""A task on a page: its sign and name, what is known of it, and all there is to read.  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sessionrun.client.reading.digest import Excerpt
from sessionrun.doors.drawing import Bar
from sessionrun.doors.gathering import FEW, Matter, Shown, is_wrong
from sessionrun.doors.markup import Markup, Part, join, tag
from sessionrun.model.wording import (
    SAID,
    name_agent,
    name_source,
    name_tasks,
    short_id,
    tell_changes,
    tell_reason,
    tell_span,
    tell_word,
)
from sessionrun.model.words import SIGNS

Task = Mapping[str, Any]


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
        tag("p", " · ".join(filter(None, (tell_why(task, matter), *list_facts(task)))), class_="dim"),
        tell_parts(shown),
        # of many tasks those that are good have no room for it
        tell_runs(shown.bars) if len(matter.tasks) <= FEW or is_wrong(task) else None,
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
    ]


def tell_why(task: Task, matter: Matter) -> str:
    """Why a task stands as it does."""
    return tell_reason(task, name_tasks(matter.view), matter.now)


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
    left = [str(one["command"]) for one in task["leftovers"] or ()]
    yield f"left running: {', '.join(left)}" if left else None


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


def tell_runs(bars: Sequence[Bar]) -> Markup | None:
    """What ran, a line for each round: its phases in order, with their times and what did not pass."""
    turns: dict[str, list[str]] = {}
    for bar in bars:
        if bar.phase:
            words = f"{bar.phase} {tell_span(bar.end - bar.begin)} {bar.verdict}".rstrip()
            turns.setdefault(bar.turn, []).append(words)
    lines = [f"{turn}: {', '.join(phases)}" for turn, phases in turns.items()]
    return make_block("What ran", "\n".join(lines)) if lines else None


def _tell_excerpt(heading: str, excerpt: Excerpt) -> Markup | None:
    if not excerpt.size:
        return None
    return make_block(f"{heading} (parts of {excerpt.size:,} bytes)" if excerpt.is_cut else heading, excerpt.text)


def _tell_patch(patch: Excerpt, *, unfolded: bool) -> Markup | None:
    """The changes, a fold for each file, without the names of blobs."""
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
    content = tag("pre", *head, map(_colour, lines[begin:]), tabindex="0")
    return tag("details", summary, content, open="" if unfolded else None)


def _colour(line: str) -> Part:
    kinds = {"+": "added", "-": "removed", "@": "place"}
    kind = kinds.get(line[:1])
    return line if kind is None else tag("span", line, class_=kind)

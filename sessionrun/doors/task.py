"""A task on a page: its sign and name, what is known of it, and all there is to read.  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sessionrun.client.reading.digest import Excerpt
from sessionrun.client.reading.telling import SAID
from sessionrun.doors.gathering import Matter, Shown
from sessionrun.doors.markup import Markup, Part, join, tag
from sessionrun.model.wording import name_tasks, short_id, tell_reason, tell_span, tell_word
from sessionrun.model.words import SIGNS

Task = Mapping[str, Any]


def make_sign(task: Task) -> Markup:
    """The sign of how a task stands; the word stands beside it for those who hear a page."""
    return tag("span", SIGNS[task["word"]], class_=task["word"], aria_hidden="true")


def make_link(task: Task, base: str | None) -> Markup:
    """The id of a task, as a link where there is more of it."""
    return tag("a" if base else "span", short_id(task), class_="id", href=base and f"{base}{task['num']}")


def name_apart(task: Task) -> str:
    """What a task is called beside its id; empty where that is the same."""
    return "" if task["title"] == task["id"] else str(task["title"])


def tell_facts(task: Task) -> Iterator[str]:
    """How long it took, which try it was, whose, and what it changed."""
    if task["duration_s"] is not None:
        yield tell_span(task["duration_s"])
    yield tell_tries(task)
    yield "/".join(filter(None, (task["agent"], task["model"])))
    if tell_changes(task):
        yield tell_changes(task)


def tell_tries(task: Task) -> str:
    """``attempt 1, round 2``, without what says nothing."""
    return f"attempt {task['attempt']}" + (f", round {task['round']}" if task["round"] > 1 else "")


def tell_changes(task: Task) -> str:
    """``1 file +3 −0``, empty if nothing is known."""
    stat = task["diff_stat"]
    if stat is None or not any(stat.values()):
        return "" if stat is None else "no change"
    return (
        f"{stat['files']} {'file' if stat['files'] == 1 else 'files'} +{stat['insertions']} −{stat['deletions']}"
    )


def tell_cost(usage: Mapping[str, Any] | None) -> str:
    """``$0.2500``, ``unknown``, or nothing where no model was asked."""
    if usage is None:
        return ""
    return "unknown" if usage["cost_usd"] is None else f"${usage['cost_usd']:.4f}"


def name_source(source: str) -> str:
    """What the last lines of a source are called."""
    words = {SAID: "The agent said", "work": "Standard error, last lines"}
    return words.get(source, f"{source.capitalize()}, last lines")


def make_block(heading: str, content: Part) -> Markup:
    """A text below its heading, which can be reached by keys and scrolled."""
    return join([tag("h3", heading), tag("pre", content, tabindex="0")])


def tell_task(shown: Shown, matter: Matter, *, unfolded: bool = False) -> Markup:
    """All there is of a task, folded unless that is not wanted."""
    task = shown.task
    return tag(
        "details",
        tag(
            "summary",
            make_sign(task),
            " ",
            make_link(task, None),
            f" {name_apart(task)} ",
            tag("span", tell_word(task["word"]), class_=task["word"]),
        ),
        tag("p", "; ".join(filter(None, (_tell_reason(task, matter), *_tell_all(task)))), class_="dim"),
        [tag("p", f"{note['level']}: {note['where']}: {note['text']}") for note in task["audit"] or ()],
        [
            make_block(name_source(one.source), "\n".join(one.lines))
            for one in shown.sections
            if one.source not in (SAID, "work")
        ],
        _tell_excerpt("Standard error", shown.errors),
        _tell_excerpt("Answer", shown.answer),
        _tell_patch(shown.patch),
        _tell_acts(shown.acts),
        [make_block("Prompt", prompt) for prompt in shown.prompts],
        id=f"t{task['num']}",
        open="" if unfolded else None,
    )


def _tell_reason(task: Task, matter: Matter) -> str:
    return tell_reason(task, name_tasks(matter.view), matter.now)


def _tell_all(task: Task) -> Iterator[str | None]:
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


def _tell_acts(acts: Sequence[str]) -> Markup | None:
    summary = tag("summary", f"What the agent did, the last {len(acts)} calls of tools")
    return tag("details", summary, tag("pre", "\n".join(acts), tabindex="0")) if acts else None


def _tell_excerpt(heading: str, excerpt: Excerpt) -> Markup | None:
    if not excerpt.size:
        return None
    return make_block(f"{heading} (parts of {excerpt.size:,} bytes)" if excerpt.is_cut else heading, excerpt.text)


def _tell_patch(patch: Excerpt) -> Markup | None:
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
    return join([tag("h3", heading), [_tell_file(lines) for lines in files if lines]])


def _tell_file(lines: Sequence[str]) -> Markup:
    names = [line[6:].strip() for line in lines if line.startswith(("--- a/", "+++ b/"))]
    kinds = Counter(line[:1] for line in lines if not line.startswith(("--- ", "+++ ")))
    summary = tag("summary", f"{names[-1] if names else 'changes'} +{kinds['+']} −{kinds['-']}")
    return tag("details", summary, tag("pre", map(_colour, lines), tabindex="0"))


def _colour(line: str) -> Part:
    kinds = {"+": "added", "-": "removed", "@": "place"}
    kind = kinds.get(line[:1])
    return line if kind is None else tag("span", line, class_=kind)

"""What there is to know of a task, as lines for people: word, reason, tests, proof, and where its work is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from sessionrun.cli.render import WIDTH, escape, escape_line, mark, wrap_line
from sessionrun.model.wording import (
    clip,
    name_agent,
    name_source,
    short_id,
    tell_reason,
    tell_word,
    tell_work,
    with_reason,
)

SIGN_COLUMNS: Final = 3

_LANDING_WORDS: Final = {"ready": "is next to land", "waiting": "waits to land"}

Task = Mapping[str, Any]


# --- how it stands ---


def word_lines(task: Task, why: str, name: str = "") -> list[str]:
    """A task with its word, and why that is so; a long reason takes several lines."""
    word = escape_line(f"{name}{tell_word(task['word'])}")
    first, *more = wrap_line(with_reason(word, why), "", WIDTH - SIGN_COLUMNS)
    return [mark(task["word"], word) + first[len(word) :], *(f"    {line}" for line in more)]


def title_lines(task: Task, tasks: Mapping[str, Task], now: float) -> list[str]:
    """A task with its id and its word, and why that is so or, if there is no reason, what it was to do."""
    name = f"{short_id(task)} "
    title = clip(escape_line(task["title"]), WIDTH - len(name) - len(task["word"]) - 2 * SIGN_COLUMNS)
    return word_lines(task, tell_reason(task, tasks, now) or title, name)


def fact_lines(task: Task, indent: str, *own: str, tests: bool = True, notes: bool = False) -> list[str]:
    """How tests and proof came out, then `own`, then what was left running, and where work is.

    Of the audit of a proof its alarms, or with `notes` all.
    """
    texts = [*_tell_tests(task)] if tests else []
    if task.get("proof") and task["outcome"] == "succeeded":  # else the reason says it
        texts.append(f"proof: {task['proof']}")
    audit = [note for note in task.get("audit") or () if notes or note["level"] == "alarm"]
    texts += [f"audit: {note['level']}: {note['where']}: {note['text']}" for note in audit]
    texts += own
    lines = indented(texts, indent)
    for text in tell_work(task):
        is_sentence = text.startswith("worktree kept") or text == task.get("worktree_remark")
        lines += wrap_line(text, indent) if is_sentence else indented([text], indent)  # a path stays in one piece
    return lines


def indented(texts: Iterable[str], indent: str) -> list[str]:
    """Foreign text as lines."""
    return [indent + escape_line(text) for text in texts]


def section_lines(source: str, lines: Sequence[str], indent: str, form: str = "[{}]") -> list[str]:
    """The last lines of one source below its name."""
    head = form.format(name_source(source))
    return [indent + line for line in (head, *(f"  {escape(line.expandtabs())}" for line in lines))]


# --- its tests ---


def _tell_tests(task: Task) -> Iterator[str]:
    """How a task's tests came out, and which round's work is kept if it is not the last one's."""
    check = task["check"] or {}
    counts, best, kept = check.get("counts"), check.get("best_counts"), check.get("best_round")
    hidden = task.get("hidden_tests")
    if hidden:  # apart: the agent could see the one kind, and not the other
        visible = f"{counts['passed']} of {counts['total']} visible, " if counts else ""
        yield f"Tests passed: {visible}{hidden['passed']} of {hidden['total']} hidden"
    elif counts:
        yield f"Tests: {_tell_counts(counts)}"
    if kept is not None and kept != task["round"] and not check["passed"]:
        tests = f" ({_tell_counts(best)})" if best else ""
        yield f"Kept: the work of round {kept}{tests}: {check['best_reason']}"


def _tell_counts(counts: Mapping[str, int]) -> str:
    others = {"failed": "failed", "errors": "with an error", "skipped": "skipped"}
    rest = [f"{counts[key]} {word}" for key, word in others.items() if counts[key]]
    return ", ".join([f"{counts['passed']} of {counts['total']} passed", *rest])


# --- its agents and its work ---


def tell_agents(task: Task) -> str:
    """What each attempt had, of a task that was tried again with another agent or model."""
    had, first = [], 1
    for ran in (*task["earlier_agents"], task):
        last = ran["attempt"]
        had.append(f"{first if first == last else f'{first}-{last}'} {name_agent(ran)}")
        first = last + 1
    return f"attempts: {', '.join(had)}"


def tell_landing(task: Task) -> Iterator[str]:
    """What became of a task's work when it was to land, or what it waits for."""
    landing = task.get("landing")
    if not landing:
        return
    commit = f" with {landing['commit'][:12]}" if landing["commit"] else ""
    status = landing["status"]
    where = f" on {landing['target']}" if landing["target"] and status not in ("bounced", "held") else ""
    why = f": {landing['reason']}" if landing["reason"] and status != "landed" else ""
    yield f"{_LANDING_WORDS.get(status, status)}{where}{commit}{why}"
    if landing["output"]:
        yield f"see {landing['output']}"
    if landing["mend"]:
        yield f"mend: {landing['mend']}"

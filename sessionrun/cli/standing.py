"""How a session and its tasks stand, on a screen or a pipe.

A session: its head, its tasks as rows or by reason, what to do next.  A task: word, reason, tests, proof, work.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import IO, Any, Final

from sessionrun.cli.argv import VERBS
from sessionrun.cli.render import (
    WIDTH,
    escape,
    escape_line,
    lay_out,
    local_time,
    mark,
    paint,
    sign,
    wrap_line,
)
from sessionrun.client.lookup import name_for_command
from sessionrun.client.reading.view import describe_shortage
from sessionrun.model.wording import (
    BRIEF_BYTES,
    REASON_WIDTH,
    Group,
    clip,
    columns,
    cut_bytes,
    fit_counts,
    group_tasks,
    list_ids,
    measure_lines,
    name_agent,
    name_session,
    name_source,
    name_tasks,
    needs_look,
    short_id,
    tell_changes,
    tell_head,
    tell_reason,
    tell_span,
    tell_took,
    tell_until,
    tell_word,
    tell_work,
    took_s,
    with_reason,
)
from sessionrun.model.words import BAD, HELD, parse_time, tell_counts
from sessionrun.store.session import DEFAULT_RESULTS_DIR, SessionDir

MOST_ROWS: Final = 20
"""With more tasks than this there are no rows, only groups of what is not fine, unless all are asked for."""

INDENT: Final = " " * 4
SIGN_COLUMNS: Final = 3
IDS_WIDTH: Final = 76
MOST_FAR: Final = 200


_BAR: Final = (
    ("succeeded", "\u2588#", ("succeeded", "landed")),
    ("failed", "\u2593x", BAD),
    ("held", "\u2592~", ("bounced", "changed_nothing", "held")),
    ("running", "\u2591>", ("running",)),
    ("waiting", "\u00b7.", ("waiting", "skipped", "cancelled")),
)
"""Parts of a bar: the word whose colour each has, a letter for it and one of ASCII, and what it counts."""

Task = Mapping[str, Any]
View = Mapping[str, Any]


# --- the session ---


def head_lines(view: View, now: float, *, left: str = "") -> list[str]:
    """The first lines of all screens: where it stands and what came out; then only what there is to say.

    `left` says how much time is left, as `tell_left` does.
    """
    counts = tell_counts(view["counts"])
    lines = [tell_head(view, now)]
    lines += [f"{counts}, {left}" if left else counts] if counts else []
    lines += place_lines(view)
    if parent := view.get("parent"):
        lines.append(f"Parent: session {parent['session_id']}, task {parent['task']}")
    lines += contact_lines(view)
    if full := view.get("disk_full"):
        lines.append(f"Disk full: {describe_shortage(full)}: nothing new starts until there is room")
    lines += [f"Warning: {problem}" for problem in view.get("view_problems") or ()]
    if feed := view.get("feed"):  # the queue that the session takes its tasks from, and how long
        which = f", group {feed['group']}" if feed["group"] else ""
        which += f", only {', '.join(feed['tasks'])}" if feed["tasks"] else ""
        until = "waits for more" if feed["watch"] else "until none is ready"
        until = f"held: {feed['held']}" if feed["held"] else until
        lines.append(f"Queue: {feed['queue']}{which}; {until if feed['open'] else 'no more come'}")
    if view.get("budget"):  # few sessions have one
        from sessionrun.model.usage import describe_budget

        lines.append(f"Budget: {describe_budget(view['budget'])}")
    if view.get("usage"):
        from sessionrun.model.usage import describe_usage, read_usage

        lines.append(f"Usage: {describe_usage(read_usage(view['usage']))}")
    return [*map(escape_line, lines)]


def place_lines(view: View) -> list[str]:
    """The results directory that a session is in, as a line; none for `./results`."""
    folder = os.path.dirname(view["results_dir"])
    is_usual = folder == os.path.abspath(DEFAULT_RESULTS_DIR)
    return [] if is_usual else [f"Results directory: {escape_line(folder)}"]


def contact_lines(view: View) -> list[str]:
    """With what of its cluster a session has no contact, for how long, and when the lease of that ends."""
    return [_tell_silence(silence, time.time()) for silence in view["no_contact"]]


def cancel_lines(view: View, tasks: Sequence[Task]) -> Iterator[str]:
    """What becomes of tasks that are to stop and whose node cannot be told."""
    for silence in view["no_contact"]:
        mute = [task for task in tasks if task["node"] is not None and silence["node"] in (None, task["node"])]
        names = [task["id"] for task in mute if task["status"] != "completed"]
        if names:
            yield _tell_silence(silence, time.time())
            yield escape_line(
                f"{', '.join(names)}: the order to stop waits for contact; without contact the node itself ends "
                f"the job when its lease ends, at the latest at {local_time(silence['lease_ends_at'])}"
            )


def _tell_silence(silence: View, now: float) -> str:
    node, left_s = silence["node"], parse_time(silence["lease_ends_at"]) - now
    since = f"{max(0.0, now - parse_time(silence['since'])):.0f} s"
    over = f"ended {-left_s:.0f} s ago" if left_s < 0 else f"ends in {left_s:.0f} s"
    if node is None:
        return f"No contact with the cluster's head for {since}; if it is gone, the lease of its nodes {over}"
    return escape_line(f"No contact with node {node} for {since}; its lease {over}")


def tell_left(view: View, now: float) -> str:
    """How much time is left, by the tasks that have ended; empty: not known."""
    from sessionrun.client.graph import estimate_left

    tasks = view["tasks"]
    # while a task is held, the time that is left is not known
    if view["ended_at"] or not view["started_at"] or view["counts"]["held"]:
        return ""
    running = [task for task in tasks if task["status"] == "running" and task["started_at"]]
    left = estimate_left(tasks, {task["id"]: took_s(task, now) for task in running}, view["max_parallel"])
    return "" if left is None else f"about {tell_span(left)} left"


def how_far_lines(view: View, now: float, tasks: Sequence[Task] | None = None, *, waits: bool) -> list[str]:
    """How far the tasks are, or all of the session, in at most `MOST_FAR` bytes.

    If more is waited for, also what holds it: of a whole session only if nothing else is left.
    """
    lines, counts, ended, total = [], view["counts"], view["completed"], view["total"]
    untils = [view["held_until"]] if view["state"] == HELD else []
    if tasks is not None:
        open_tasks = [task for task in tasks if task["status"] != "completed"]
        counts, ended, total = Counter(task["word"] for task in tasks), len(tasks) - len(open_tasks), len(tasks)
        untils = [task["held_until"] for task in open_tasks if task["word"] == HELD]
    if waits and untils:
        lines = [f"{INDENT}nothing held starts before: sessionrun release {name_for_command(view)}"]
        lines = [f"{INDENT}held {tell_until(min(untils), now)}"] if all(untils) else lines
    begin = escape_line(f"{name_session(view)}: {ended} of {total} ended")
    room = MOST_FAR - measure_lines((begin, *lines)) - 2
    return [f"{begin}: {fit_counts(counts, room)}" if total else begin, *lines]


def ended_line(task: Task, tasks: Mapping[str, Task], now: float, stream: IO[str] | None = None) -> str:
    reason = escape_line(tell_reason(task, tasks, now))
    shown = mark(task["word"], f"{escape_line(task['id'])} {tell_word(task['word'])}", stream)
    return with_reason(shown, reason)


def brief_lines(view: View, tasks: Sequence[Task], now: float) -> list[str]:
    """At most `BRIEF_BYTES` bytes: the head, tasks that need a look by their reasons, and a cursor."""
    first, *more = head_lines(view, now)
    head = [first, *more[:1], *(cut_bytes(line, 120) for line in more[1:6])]  # the others may be long and many
    groups = group_tasks(filter(needs_look, tasks), name_tasks(view), now)
    for count in range(min(8, len(groups)), -1, -1):
        left = groups[count:]
        rest = [f"and {len(left)} other reasons, {sum(len(group.tasks) for group in left)} tasks"] if left else []
        shown: list[str] = []
        for group in groups[:count]:
            shown += [escape_line(group._replace(reason=clip(group.reason, REASON_WIDTH)).head)]
            shown += [INDENT + list_ids(group.tasks, IDS_WIDTH - len(INDENT))]
        lines = [*head, *shown, *rest, f"Cursor: {view['seq']}"]
        if measure_lines(lines) <= BRIEF_BYTES:
            break
    return lines


def draw_bar(view: View, width: int, stream: IO[str] | None = None) -> Iterator[tuple[str, str]]:
    """The parts of a bar for all tasks, each as long as there are such tasks, with the word of its colour."""
    fancy = not sign("succeeded", stream).isascii()
    total, done = view["total"] or 1, 0
    for word, letters, words in _BAR:
        begin = done * width // total
        done += sum(view["counts"][each] for each in words)
        yield word, letters[not fancy] * (done * width // total - begin)


# --- tasks ---


def task_lines(view: View, tasks: Sequence[Task], now: float, width: int, *, every: bool) -> list[str]:
    """The tasks: as rows, or by reason if there are many and not `every` one is asked for."""
    by_id = name_tasks(view)
    if len(tasks) > MOST_ROWS and not every:
        shown = [task for task in tasks if task["word"] not in ("succeeded", "landed", "waiting")]
        return [line for group in group_tasks(shown, by_id, now) for line in group_lines(group, width)]
    rows = iter(row_lines(tasks, now, width))
    lines = []
    for (word, reason), alike in groupby(tasks, key=lambda task: (task["word"], tell_reason(task, by_id, now))):
        members = list(alike)
        own = list(islice(rows, len(members)))
        if reason and len(members) > 5 and not every:  # so many with one reason, one behind the other
            lines += group_lines(Group(word, reason, members), width)
            continue
        for row, task in zip(own, members, strict=True):
            mend = (task.get("landing") or {}).get("mend")
            remarks = [f"on node {task['node']}"] if task.get("node") and task["status"] == "running" else []
            remarks += [f"mend: {mend}"] if mend else []
            lines += [row, *wrap_line(reason, INDENT, width)]
            lines += [*indented(remarks, INDENT), *fact_lines(task, INDENT, tests=False)]
    return lines


def row_lines(
    tasks: Sequence[Task],
    now: float,
    width: int,
    stream: IO[str] | None = None,
    *,
    ends: Sequence[str] | None = None,
) -> list[str]:
    """A row for each task, in columns that are as wide as needed; the title gets what is left.

    With `ends`, a text for the end of each, rows are without colours.
    """
    facts = [[tell_took(task, now) for task in tasks]]
    if width >= 120:
        facts.append([_tell_cost(task) for task in tasks])
        agents = [escape_line(name_agent(task)) for task in tasks]
        facts += [agents] if len({*agents}) > 1 else []
    if ends is None:
        facts.append([tell_doing(task) if task["status"] == "running" else tell_changes(task) for task in tasks])
    facts = [column for column in facts if any(column)]
    words = [tell_word(task["word"]) for task in tasks]
    ids = [clip(short_id(task), max(20, width // 4), middle=True) for task in tasks]
    titles = [escape_line(task["title"]) for task in tasks]
    taken = sum(2 + max(map(columns, column), default=0) for column in (words, ids, *facts))
    room = max(4, (3 * width // 5 if ends else width) - taken - SIGN_COLUMNS)
    alike = len({clip(title, room) for title in titles}) < len({*titles})  # then their ends tell them apart
    titles = [clip(title, room, middle=alike) for title in titles]
    words = [f"{sign(task['word'], stream)} {word}" for task, word in zip(tasks, words, strict=True)]
    rows = [*zip(words, ids, titles, *facts, *([map(escape_line, ends)] if ends else []), strict=True)]
    lines = lay_out(rows, range(3, 3 + len(facts)))
    if ends is not None:
        return [clip(line, width) for line in lines]
    edge = max(map(len, words), default=0)
    marked = zip(tasks, lines, strict=True)
    return [paint(line[:edge], task["word"], stream) + line[edge:] for task, line in marked]


def _tell_cost(task: Task) -> str:
    cost = (task.get("usage") or {}).get("cost_usd")
    return "" if cost is None else f"${cost:.2f}"


def group_lines(group: Group, width: int) -> list[str]:
    count, reason = f"{len(group.tasks)} {tell_word(group.word)}", clip(group.reason, REASON_WIDTH)
    ids = INDENT + escape(list_ids(group.tasks, min(IDS_WIDTH, width - len(INDENT))))
    return [*_marked_lines(group.word, count, reason, width), ids]


def _marked_lines(word: str, text: str, why: str, width: int) -> list[str]:
    """A text behind the sign of a word, then why; a long reason takes several lines."""
    first, *more = wrap_line(with_reason(text, why), "", width - SIGN_COLUMNS)
    return [mark(word, text) + first[len(text) :], *(INDENT + line for line in more)]


def tell_doing(task: Task) -> str:
    """What a task, which runs, does, if that is not its work."""
    phase = task["phase"]
    return "" if phase in ("running", None) else "saving its work" if phase == "releasing" else str(phase)


# --- one task ---


def word_lines(task: Task, why: str, name: str = "") -> list[str]:
    return _marked_lines(task["word"], escape_line(f"{name}{tell_word(task['word'])}"), why, WIDTH)


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


def tell_agents(task: Task) -> str:
    """What each attempt had, of a task that was tried again with another agent or model."""
    had, first = [], 1
    for ran in (*task["earlier_agents"], task):
        last = ran["attempt"]
        had.append(f"{first if first == last else f'{first}-{last}'} {name_agent(ran)}")
        first = last + 1
    return f"attempts: {', '.join(had)}"


# --- what to do next ---


def next_lines(session: SessionDir, view: View, tasks: Sequence[Task], *, verb: str) -> list[str]:
    """What a person does next about these tasks, at most three commands; not the `verb` that shows them."""
    from sessionrun.client.reading.steps import list_steps
    from sessionrun.worktrees.diff import find_unlanded

    name = name_for_command(view)
    steps = list_steps(view, tasks, find_unlanded(session, view, tasks))
    lines = []
    for step in [step for step in steps if step.verb in VERBS and step.verb != verb][:3]:
        why = f"    # {escape_line(step.why)}" if step.why else ""
        lines.append(f"  {' '.join(['sessionrun', step.verb, name, *step.words])}{why}")
    return ["", "Next:", *lines] if lines else []

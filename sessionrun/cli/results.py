"""`results`: what the tasks of a session answered."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from sessionrun.cli.options import Answer, Count, flag, note_json, session_verb, valued
from sessionrun.cli.render import WIDTH, encode, escape, is_json, is_seed_block, versioned, warn, write_bytes
from sessionrun.cli.standing import (
    View,
    fact_lines,
    group_lines,
    head_lines,
    indented,
    next_lines,
    section_lines,
    tell_agents,
    title_lines,
    word_lines,
)
from sessionrun.client.lookup import name_for_command
from sessionrun.client.reading.digest import BYTES_PER_TOKEN, Part, describe_digest, find_room, make_excerpt, share
from sessionrun.client.reading.outputs import decode, find_tail, iterate_tail, read_text
from sessionrun.client.reading.telling import (
    LEAST_BYTES,
    Failure,
    Section,
    add_tellings,
    count_hidden,
    fit_lines,
    fold_failures,
    group_failures,
    read_sections,
)
from sessionrun.client.reading.view import choose_tasks, load_view
from sessionrun.client.reading.waiting import has_failed
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.wording import SAID, measure_lines, name_tasks, short_id, tell_changes, tell_word
from sessionrun.store.session import SessionDir


@session_verb("results", "form", "raw", "max_bytes", "max_tokens")
@valued("--tail", Count(), "Only the last N lines of each task.")
@flag("--raw", "Print only what the agents printed, unchanged.  Not with --json.")
@flag("--failed", "Why tasks failed, or their work did not land.")
@flag("--all show_all", "With --failed: all reasons, also where no terminal reads.")
@valued("--max-bytes", Count(1), "A digest of at most N bytes: a fair share for each task.")
@valued("--max-tokens", Count(1), "The same in tokens of a model: 3 bytes count as one.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "ndjson", "markdown", "junit"]),
    default="text",
    callback=note_json,
    help="The same for other programs.",
)
def command(
    session: SessionDir,
    tasks: tuple[str, ...],
    *,
    tail: int | None,
    raw: bool,
    failed: bool,
    show_all: bool,
    max_bytes: int | None,
    max_tokens: int | None,
    form: str,
) -> Answer:
    """Print the answers of session ID's tasks: the newest session if no ID is given.

    Where standard output is not a terminal, outputs are printed byte for byte.
    """
    if is_json() and form not in ("text", "json"):
        raise InputError(f"--json and --format {form}: choose one of them")
    if raw and (is_json() or form != "text"):
        raise InputError("--raw prints what the agents printed and cannot be had as --json, or with --format")
    limits = [limit for limit in (max_bytes, max_tokens and BYTES_PER_TOKEN * max_tokens) if limit is not None]
    bound = min(limits, default=None)
    if bound is not None and (raw or tail is not None):
        raise InputError("--max-bytes and --max-tokens choose what is shown: leave out --raw and --tail")
    if bound is not None and form not in ("text", "json"):
        raise InputError(f"--format {form}: --max-bytes and --max-tokens are for text and json")
    if show_all and (not failed or bound is not None):
        raise InputError("--all is for --failed, and not with --max-bytes or --max-tokens")
    view = load_view(session)
    chosen = choose_tasks(view, tasks)
    if failed:
        chosen = [task for task in chosen if has_failed(task)]
    bound = 1000 * BYTES_PER_TOKEN if bound is None and failed and not (show_all or sys.stdout.isatty()) else bound
    if is_json() and limits:
        return Answer(describe_digest(session, view, chosen, min(limits), _spell))
    if is_json():
        return Answer(make_record(session, view, chosen, tail=tail))
    if form == "text" and not raw and tail is None and (failed or bound is not None):
        return Answer(None, digest_lines(session, view, chosen, bound))
    if raw:
        for task in chosen:
            _print_file(session.path / (task["raw"] or task["output"]), tail, whole_line=False)
    elif form != "text":
        from sessionrun.cli.formats import print_format

        print_format(form, session, view, add_tellings(session, chosen), tail=tail)
    elif is_seed_block():
        _print_seed_block(session, view, chosen, tail)
    else:
        print_results(session, view, chosen, tail=tail)
    return Answer(None)


def _spell(record: Mapping[str, Any]) -> bytes:
    return encode(versioned(record)) + b"\n"


def find_summary(session: SessionDir, view: Mapping[str, Any]) -> dict[str, Any] | None:
    """The account of the job files of a session that has ended; None if it has none, or no spec to read.

    Warns of each export that is not up to date.
    """
    if view["ended_at"] is None:
        return None
    try:
        spec = session.load_spec()
    except SessionrunError:
        return None  # what the tasks answered can be shown all the same
    if not spec.exports:
        return None
    from sessionrun.client.reading.job_summary import find_export_problems, summarise_jobs

    for problem in find_export_problems(session, spec, view):
        warn(problem)
    return summarise_jobs(session, spec, view)


def print_results(
    session: SessionDir, view: dict[str, Any], tasks: list[dict[str, Any]], *, tail: int | None
) -> None:
    """Print how each task came out and what it answered, without holding any answer whole.

    Of a task that failed, the words of the step that failed stand before what the agent said.
    """
    from sessionrun.worktrees.diff import is_unchanged, locate_work

    now, by_id = time.time(), name_tasks(view)
    in_git = view["base_branch"] is not None or any(task.get("repo") for task in tasks)
    places = locate_work(session, tasks) if in_git else {}
    click.echo("\n".join(head_lines(view, now)))
    for task in ({**task, "hidden_tests": count_hidden(session, task)} for task in tasks):
        lines = ["", *title_lines(task, by_id, now)]
        branch = []
        if task["status"] == "completed" and task["branch"] and not (task["rescue_branch"] or is_unchanged(task)):
            where = f" in {places[task['id']]}" if task["id"] in places else ""
            branch = [f"branch {task['branch']}{where}: {tell_changes(task) or 'changes unknown'}"]
        lines += fact_lines(task, "  ", *branch)
        lines += indented([tell_agents(task)], "  ") if task.get("earlier_agents") else []
        sections = read_sections(session, task)
        before = [section for section in sections if section.source != SAID]
        lines += [line for section in before for line in section_lines(*section, "  ")]
        lines += ["  [the agent said]"] if before and before != sections else []
        click.echo("\n".join(lines))
        if task["status"] == "completed":
            _print_file(session.path / task["output"], tail)
    if any(task["usage"] is not None for task in tasks):
        from sessionrun.model.usage import tell_unpriced

        if unpriced := tell_unpriced(tasks):
            warn(unpriced)
    if in_git:
        for line in next_lines(session, view, tasks, verb="results"):
            click.echo(line)


def _print_seed_block(
    session: SessionDir, view: Mapping[str, Any], tasks: list[dict[str, Any]], tail: int | None
) -> None:
    click.echo(f"Session: {view['session_id']}\n{'=' * 50}")
    for task in tasks:
        word = f" {tell_word(task['word'])}" if has_failed(task) else ""
        click.echo(f"\nTask {task['num']} (ID: {task['id']}):{word}\n{'-' * 30}")
        if task["status"] == "completed":
            _print_file(session.path / task["output"], tail)
        else:
            running = task["status"] == "running"
            click.echo("[Task still running...]" if running else "[Task not started yet]")


def make_record(
    session: SessionDir, view: Mapping[str, Any], tasks: Sequence[dict[str, Any]], *, tail: int | None
) -> dict[str, Any]:
    """The object of ``results --json``: the view, and the tasks, each with all that it printed."""
    summary = find_summary(session, view)
    return {
        **view,
        **({"summary": summary} if summary else {}),
        "tasks": [
            {
                **task,
                "hidden_tests": count_hidden(session, task),
                "text": read_text(session.path / task["output"], tail),
                "stderr_text": read_text(session.path / task["stderr"], tail),
            }
            for task in add_tellings(session, tasks)
        ],
    }


def _print_file(path: Path, tail: int | None, *, whole_line: bool = True) -> None:
    """Print a file, escaped on a terminal; with `whole_line` a last line without an end gets one."""
    last = b"\n"
    terminal = sys.stdout.isatty()
    if terminal:
        for text in decode(iterate_tail(path, tail)):
            click.echo(escape(text), nl=False)
            last = text[-1:].encode() or last
    else:
        for chunk in iterate_tail(path, tail):
            write_bytes(chunk)
            last = chunk[-1:]
    if whole_line and last != b"\n":
        click.echo()


LEAST_BODY: Final = 160
"""So much is told below each reason and of each answer, if there is so much (bytes)."""


class _Block(NamedTuple):
    """What is told of tasks: the first lines, how much there is below them (bytes), and that cut to a size."""

    tasks: Sequence[View]
    frame: Sequence[str]
    need: int
    cut: Callable[[int], Sequence[str]]


def digest_lines(session: SessionDir, view: View, chosen: Sequence[View], room: int | None) -> list[str]:
    """What failed of the chosen tasks, then what the others answered, in at most `room` bytes; None: all.

    Raises:
        InputError: that is too little for anything.
    """
    now, tasks = time.time(), name_tasks(view)
    head = head_lines(view, now)
    failures = group_failures(session, filter(has_failed, chosen), tasks, now)
    answers = [_tell_answer(session, task, tasks, now) for task in chosen if not has_failed(task)]
    blocks: list[_Block] = []
    for most in (None, 8, 3, 1):  # of one reason so many different last lines, as far as there is room
        blocks = [*(_tell_failure(view, failure) for failure in fold_failures(failures, most)), *answers]
        least = sum(measure_lines(block.frame) + min(block.need, LEAST_BODY) for block in blocks)
        if room is None or least <= room - measure_lines(head):
            break
    shares = [[block.need] for block in blocks]
    if room is not None:
        find_room(room, measure_lines([*head, *_count_rest(blocks)]))
        parts = [Part(measure_lines(block.frame), (block.need,)) for block in blocks]
        left = room - measure_lines(head)
        shares = share(parts, left, LEAST_BODY, lambda place: measure_lines(_count_rest(blocks[place:])))
    fitting = zip(blocks[: len(shares)], shares, strict=True)
    shown = (line for block, (own,) in fitting for line in (*block.frame, *block.cut(own)))
    return [*head, *shown, *_count_rest(blocks[len(shares) :])]


def _count_rest(blocks: Sequence[_Block]) -> list[str]:
    bad = [len(block.tasks) for block in blocks if has_failed(block.tasks[0])]
    words = [f"{sum(bad)} more, for {len(bad)} other reason{'s' * (len(bad) > 1)}"] if bad else []
    words += [f"{len(blocks) - len(bad)} fine"] if len(blocks) > len(bad) else []
    return ["", f"and {' and '.join(words)}{': --failed --all shows them' if bad else ''}"] if words else []


def _tell_failure(view: View, failure: Failure) -> _Block:
    group = failure.group
    if len(group.tasks) > 1:
        frame = group_lines(group, WIDTH)
    else:
        (task,) = group.tasks
        kept = []
        if task["word"] == "bounced" and task["branch"]:
            show = f"sessionrun diff {name_for_command(view)} {short_id(task)}"
            kept = [f"work kept on {task['branch']}; see it: {show}"]
        frame = [*word_lines(task, group.reason, f"{short_id(task)} "), *fact_lines(task, "  ", *kept)]
    whole = [line for section in failure.sections for line in section_lines(*section, "  ")]
    return _Block(group.tasks, ["", *frame], measure_lines(whole), partial(_cut, failure.sections))


def _tell_answer(session: SessionDir, task: View, tasks: Mapping[str, View], now: float) -> _Block:
    path = session.path / task["output"]
    size = find_tail(path, 0) if task["status"] == "completed" else 0
    clean = escape if sys.stdout.isatty() else str

    def cut(room: int) -> list[str]:
        excerpt = make_excerpt(path, room, lambda text: measure_lines([clean(text)])) if room else None
        return clean(excerpt.text).removesuffix("\n").split("\n") if excerpt and excerpt.text else []

    return _Block([task], ["", *title_lines(task, tasks, now)], size + 1 if size else 0, cut)


def _cut(sections: Sequence[Section], room: int) -> list[str]:
    lines: list[str] = []
    for section in sections:
        whole = section_lines(*section, "  ")
        left = room - measure_lines(lines)
        if measure_lines(whole) > left:
            texts = left - measure_lines(whole[:1]) - 4 * len(section.lines)
            if texts < LEAST_BYTES:
                break
            shown = [escape(line.expandtabs()) for line in section.lines]  # as long as it is printed
            whole = section_lines(section.source, fit_lines(shown, texts), "  ")
        lines += whole
    return lines

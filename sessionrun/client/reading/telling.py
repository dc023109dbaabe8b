"""Why tasks failed or did not land: the telling lines of the step that failed, the end of what it printed.

Hidden tests are only counted: what they print tells what the agent must not know, and a digest may be read by an
agent.  What is told of a task stands in this order: what the step printed last at which it failed, what the agent
printed last on standard error, and the last line of its answer, which is only what it *said*.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

from sessionrun.model.landings import LANDING_FOLDER
from sessionrun.model.wording import SAID, Group, Task, cut_bytes, group_tasks, measure_lines, needs_look
from sessionrun.model.words import BAD
from sessionrun.store.jobfiles import ANSWER, load_usable, load_worktree, read_tail
from sessionrun.store.session import SessionDir

STEPS: Final[Mapping[str, str]] = {"setup": "setup", "check": "check", "proof": "prove"}
"""Steps whose output is in the folder of a job, with the job's phase."""

MOST_LINES: Final = 6
LINE_BYTES: Final = 200
LEAST_BYTES: Final = 40
"""With less room for a task no line of it is shown."""

_HIDDEN: Final = ("unresolved", "tests_not_run", "no_tests")
_STEP_OF: Final[Mapping[str, str]] = {
    **dict.fromkeys(("check_failed", "check_not_run", "check_timeout", "no_patch", "bad_patch"), "check"),
    **dict.fromkeys(("setup_failed", "setup_timeout"), "setup"),
    **dict.fromkeys(("not_red", "weakened", "flaky", "unproved", *_HIDDEN), "proof"),
    **dict.fromkeys(("cancelled", "workspace_failed", "repository_failed", "environment_failed"), ""),
    **dict.fromkeys(("sandbox_failed", "needs_conflict", "not_parked", "start_failed", "infra", "internal"), ""),
}
"""The step in which a task fails for a reason of this class, "" for none that prints; of others it is the work."""

_LATE: Final = ("timeout", "round_timeout")
"""The time of an attempt or a round can end in its check, too."""

_TRACE: Final = re.compile(r'\s*File ".+", line \d+')
_TRACE_LINES: Final = 12
"""A traceback whose last `File` line is among so many lines at the end is shown from there on."""

_RULE: Final = re.compile(r"\s*([-=_*#+.─━═])\1{2,}\s*")
_COLOUR: Final = re.compile(r"\x1b\[[0-?]{0,20}[ -/]{0,5}[@-~]")
_ROOM: Final = re.compile(r"(?:/[^\s/'\":]+)*/\.(?:gate-[0-9a-f]{8}-|room-)[0-9a-f]+/")
"""Where gates and proofs run; see `landing.records.room_path` and `git.rooms.room_path`."""

_TOOK: Final = re.compile(r"\b\d+(\.\d+)?\s?m?s\b")
"""How long something took, which differs between lines that mean the same."""

_ERROR: Final = re.compile("error|exception|fail|fatal|panic|assert|denied|not found", re.IGNORECASE)


class Section(NamedTuple):
    """The last lines of one source: of a step, or what the agent said."""

    source: str
    lines: Sequence[str]


def add_tellings(
    session: SessionDir, tasks: Sequence[dict[str, Any]], room: int | None = None
) -> list[dict[str, Any]]:
    """The tasks, those that need a look with `telling`; in the `room` (bytes) for all each has an equal part."""
    share = None if room is None else room // max(1, sum(map(needs_look, tasks)))
    if share is not None and share < LEAST_BYTES:
        return list(tasks)
    shown = []
    for task in tasks:
        if needs_look(task):
            section = tell(session, task)
            lines = section and (section.lines if share is None else fit_lines(section.lines, share))
            task = {**task, "telling": section and {"step": section.source, "lines": lines}}
        shown.append(task)
    return shown


def tell(session: SessionDir, task: Task) -> Section | None:
    """The step whose output says why a task failed or did not land, and its telling lines; None: there is none."""
    if (task.get("landing") or {}).get("output"):
        step = "gate"
    elif task["status"] != "completed" or task["outcome"] in ("succeeded", "skipped"):
        step = ""
    elif task["reason_class"] in _LATE and list_step(session, task, "check", task["round"]):
        step = "check"
    else:
        step = _STEP_OF.get(task["reason_class"] or "", "work")
    if not step or task["reason_class"] in _HIDDEN:
        return None
    worktree = load_worktree(session, task["id"], task["attempt"])
    return read_section(step, list_step(session, task, step), worktree)


def read_section(step: str, paths: Iterable[Path], worktree: str | None = None) -> Section | None:
    """The telling lines of a step whose output is in files; None: there are none."""
    texts = (read_tail(path).decode("utf-8", "backslashreplace") for path in paths)
    lines = choose_lines("\n".join(texts), worktree)
    return Section(step, lines) if lines else None


def list_step(
    session: SessionDir,
    task: Mapping[str, Any],
    step: str,
    round_number: int | None = None,
    *,
    whole: bool = False,
) -> list[Path]:
    """The files with what a step printed: in the newest attempt, and in the newest round unless one is given.

    With `whole` also those of the checks that a proof did, in full.
    """
    if step == "work":
        return [session.path / task["stderr"]]
    if step == "gate":
        output = Path((task.get("landing") or {}).get("output") or "")
        # by its names below the session's directory, which may have been moved since
        return [session.path / LANDING_FOLDER / output.parent.name / output.name] if output.name else []
    folder = next(session.find_jobs(task["id"], task["attempt"], STEPS[step], round_number), None)
    if folder is None:
        return []
    return [*(sorted(folder.glob("*.txt")) if whole else ()), folder / "stdout", folder / "stderr"]


def choose_lines(text: str, worktree: str | None = None) -> list[str]:
    """The last lines that say something; of a traceback among them, from its last `File` line on. Pure."""
    lines = [line for line in _clean(text, worktree) if line.strip() and not _RULE.fullmatch(line)]
    # a check of ours begins the output of each command with a line "$ COMMAND"
    began = max((place for place, line in enumerate(lines[:-1], 1) if line.startswith("$ ")), default=0)
    lines = lines[began:][-_TRACE_LINES:]
    trace = max((place for place, line in enumerate(lines) if _TRACE.match(line)), default=None)
    return [cut_bytes(line, LINE_BYTES) for line in (lines[-MOST_LINES:] if trace is None else lines[trace:])]


def count_hidden(session: SessionDir, task: Mapping[str, Any]) -> dict[str, int] | None:
    """How many hidden tests there are and passed; None: the task was not judged by any."""
    if not task.get("proof"):
        return None
    from sessionrun.model.checks import ProveReport

    folder = next(session.find_jobs(task["id"], task["attempt"], "prove"), None)
    report = None if folder is None else load_usable(folder / ANSWER, ProveReport)
    if report is None or report.tests is None:
        return None
    tests = report.tests
    return {"passed": tests.total - len(tests.failed) - len(tests.broken), "total": tests.total}


def _clean(text: str, worktree: str | None) -> Iterator[str]:
    """The lines without colours and what was overwritten on a terminal; paths begin in the worktree."""
    for line in _COLOUR.sub("", text).split("\n"):
        shown = _ROOM.sub("", line.rstrip().rpartition("\r")[2])
        yield shown.replace(f"{worktree}{os.sep}", "") if worktree else shown


def fit_lines(lines: Sequence[str], room: int) -> list[str]:
    """The lines that have room: those go first that name no error, then the last ones.  One stays, perhaps cut."""
    left = list(lines[:MOST_LINES])  # a traceback has more, and what it ends with stands near its beginning
    while measure_lines(left) > room:
        if len(left) == 1:
            return [cut_bytes(left[0], room - 1)]
        plain = (place for place, line in enumerate(left) if not (_ERROR.search(line) or _TRACE.match(line)))
        del left[next(plain, len(left) - 1)]
    return left


# --- of several tasks ---


class Failure(NamedTuple):
    """Tasks with the same word, reason and last lines."""

    group: Group
    sections: Sequence[Section]


def read_sections(session: SessionDir, task: Task) -> list[Section]:
    """What a task that has ended printed last, source by source; none of what is empty."""
    sections = [tell(session, task)]
    if task["word"] in BAD and not (sections[0] and sections[0].source == "work"):
        sections.append(read_section("work", [session.path / task["stderr"]]))
    last = choose_lines(read_tail(session.path / task["output"]).decode("utf-8", "backslashreplace"))[-1:]
    if last and task["word"] != "bounced":
        sections.append(Section(SAID, last))
    return [*filter(None, sections)]


def group_failures(
    session: SessionDir, chosen: Iterable[Task], tasks: Mapping[str, Task], now: float
) -> list[Failure]:
    """The chosen tasks by what failed; `tasks` are all of the session by id, `now` is wall time."""
    failures = []
    for group in group_tasks(chosen, tasks, now):
        alike: dict[tuple[Section, ...], tuple[list[Task], list[Sequence[Section]]]] = {}
        for task in group.tasks:
            sections = read_sections(session, task)
            # two tasks are told as one whatever took how long, and whatever the agents say
            steps = (section for section in sections if section.source != SAID)
            key = tuple(Section(source, tuple(_TOOK.sub("", line) for line in lines)) for source, lines in steps)
            members, read = alike.setdefault(key, ([], []))
            members.append(task)
            read.append(sections)
        for members, read in alike.values():
            common = [one for one in read[0] if one.source != SAID or all(one in other for other in read)]
            failures.append(Failure(group._replace(tasks=members), common))
    return failures


def fold_failures(failures: Iterable[Failure], most: int | None) -> list[Failure]:
    """The same, of each reason at most so many; the others of it are told as one, without what they printed."""
    folded: list[Failure] = []
    for _, alike in groupby(failures, key=lambda failure: (failure.group.word, failure.group.reason)):
        members = list(alike)
        rest = [task for failure in members[most:] for task in failure.group.tasks] if most else []
        folded += members[: most or None]
        if rest:
            group = members[0].group
            why = ", ".join(filter(None, (group.reason, "each with other last lines")))
            folded.append(Failure(group._replace(tasks=rest, reason=why), ()))
    return folded

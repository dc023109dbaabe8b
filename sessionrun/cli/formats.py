"""`results --format`: the answers of a session for other programs: NDJSON, Markdown, JUnit XML.

Tasks are printed one after the other; only one answer is held at a time.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias
from xml.sax import saxutils

from sessionrun.cli.render import encode, escape, escape_line, versioned, write_bytes
from sessionrun.cli.standing import section_lines
from sessionrun.client.reading.outputs import read_text
from sessionrun.client.reading.waiting import has_failed
from sessionrun.model.wording import tell_reason, tell_word
from sessionrun.model.words import tell_counts
from sessionrun.store.session import SessionDir

Task: TypeAlias = Mapping[str, Any]
Read: TypeAlias = Callable[[Task, str], str]
"""Reads what is in the `output` or `stderr` of a task."""

_NOT_DONE: Final = (None, "skipped", "cancelled")
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML file may have, not even as an entity (XML 1.0, section 2.2)."""


def print_format(
    name: str, session: SessionDir, view: Mapping[str, Any], tasks: Sequence[Task], *, tail: int | None
) -> None:
    """Print the tasks in one of `FORMATS`; of each answer the last `tail` lines, or all."""

    def read(task: Task, key: str) -> str:
        return read_text(session.path / task[key], tail)

    clean = escape if sys.stdout.isatty() else str
    for piece in FORMATS[name](view, tasks, read):
        write_bytes(clean(piece).encode("utf-8", "backslashreplace"))


def _iterate_ndjson(view: Mapping[str, Any], tasks: Sequence[Task], read: Read) -> Iterator[str]:
    for task in tasks:
        texts = {"text": read(task, "output"), "stderr_text": read(task, "stderr")}
        yield encode(versioned({"session_id": view["session_id"], **task, **texts})).decode() + "\n"


def _iterate_markdown(view: Mapping[str, Any], tasks: Sequence[Task], read: Read) -> Iterator[str]:
    name = f" {_plain(view['name'])}" if view.get("name") else ""
    yield f"# Session{name}\n\n`{view['session_id']}`: {tell_counts(view['counts'])}\n"
    by_id = {task["id"]: task for task in tasks}
    for task in tasks:
        yield f"\n## {task['num']}. {_plain(task['title'])}\n\n`{escape_line(task['id'])}`: "
        reason = _plain(tell_reason(task, by_id, time.time()))
        yield f"{tell_word(task['word'])}\n" + (f"\n{reason}\n" if reason else "")
        yield _fence("\n".join(_tell(task, but="work")))
        yield _fence(read(task, "output"))
        errors = read(task, "stderr") if has_failed(task) else ""
        yield f"\nStandard error:\n{_fence(errors)}" if errors else ""


def _tell(task: Task, but: str = "") -> list[str]:
    """What the step printed last at which a task failed; nothing of the step `but`, which is shown anyway."""
    telling = task.get("telling")
    return section_lines(telling["step"], telling["lines"], "") if telling and telling["step"] != but else []


def _plain(text: str) -> str:
    """A line that Markdown shows as it is."""
    return re.sub(r"([\\`*_{}\[\]<>#|!&])", r"\\\1", escape_line(text))


def _fence(text: str) -> str:
    """A block of text; the fence is longer than any in the text."""
    if not text:
        return ""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"\n{fence}text\n{text}{'' if text.endswith(chr(10)) else chr(10)}{fence}\n"


def _iterate_junit(view: Mapping[str, Any], tasks: Sequence[Task], read: Read) -> Iterator[str]:
    """JUnit's XML as build servers read it: https://github.com/testmoapp/junitxml has its elements."""
    failed = sum(map(has_failed, tasks))
    skipped = sum(task["outcome"] in _NOT_DONE for task in tasks)
    seconds = sum(task["duration_s"] or 0.0 for task in tasks)
    name = view.get("name") or view["session_id"]
    yield '<?xml version="1.0" encoding="UTF-8"?>\n'
    yield f'<testsuites><testsuite name={_quote(name)} tests="{len(tasks)}" failures="{failed}" errors="0"'
    yield f' skipped="{skipped}" time="{seconds:.3f}" timestamp={_quote(view["started_at"])}>\n'
    for task in tasks:
        yield f"<testcase name={_quote(task['id'])} classname={_quote(task['agent'])}"
        yield f' time="{task["duration_s"] or 0.0:.3f}">'
        reason = task["reason"] or tell_word(task["word"])
        if task["outcome"] in _NOT_DONE:
            yield f"<skipped message={_quote(reason)}/>"
        elif has_failed(task):
            yield f"<failure type={_quote(task['reason_class'] or task['word'])} message={_quote(reason)}>"
            yield _xml("\n".join(_tell(task)))
            yield "</failure>"
        for key, element in (("output", "system-out"), ("stderr", "system-err")):
            text = read(task, key)
            yield f"<{element}>{_xml(text)}</{element}>" if text else ""
        yield "</testcase>\n"
    yield "</testsuite></testsuites>\n"


def _quote(text: object) -> str:
    return saxutils.quoteattr(_NOT_XML.sub("\ufffd", str(text)))


def _xml(text: str) -> str:
    return saxutils.escape(_NOT_XML.sub("\ufffd", text))


FORMATS: Final[Mapping[str, Callable[[Mapping[str, Any], Sequence[Task], Read], Iterator[str]]]] = {
    "ndjson": _iterate_ndjson,
    "markdown": _iterate_markdown,
    "junit": _iterate_junit,
}
"""What `--format` offers beside text and json."""

"""The words that an agent is given: a task's prompt, the files of its brief, and what came of the work before.

A prompt goes out byte for byte as it was written, unless there is something to add: the files of a brief, the
envelope of `--envelope`, the output of a check, or a line that an earlier run was broken off.  A conversation that
goes on is not given its prompt again.  What came before is read in the folders of jobs.  All paths of a brief stay
inside of the task's directory, whatever links lie there.  This module must not know processes.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from sessionrun.model.checks import Brief
from sessionrun.model.frozen import frozen
from sessionrun.model.keys import JobKey
from sessionrun.model.repositories import resets_hard
from sessionrun.model.spec import AgentSpec, SessionSpec, TaskSpec
from sessionrun.model.words import LEFT_RUNNING, goes_on
from sessionrun.store.files import NotRegular, read_regular, replace_file
from sessionrun.store.jobfiles import FEEDBACK, read_tail
from sessionrun.store.session import SessionDir

if TYPE_CHECKING:  # a CHECK needs no engine
    from sessionrun.engine.task import TaskState

_TOLD_BYTES: Final = 4096
"""How much of an earlier answer a new conversation is told."""


def word_task(
    tasks: Mapping[str, TaskState], task: TaskSpec, agent: AgentSpec, directory: str, *, again: bool
) -> str:
    """What the task asks of an agent, with the files of its brief as they are now; `again`: it is no first round.

    Raises:
        BriefProblem: a file cannot be shown.
    """
    prompt = "\n\n".join(task.prompts)
    if task.mend is not None and task.mend.output is not None:
        printed = read_tail(Path(task.mend.output)).decode("utf-8", "replace").strip()
        prompt += f"\nThe end of what the gates printed:\n\n{printed}\n" if printed else ""
    if task.brief is None or agent.prompt_kind == "script":
        return prompt
    shown = load_shown(task.brief, directory, list_earlier(tasks, task), again=again)
    return word_edit(task.brief, prompt, shown) if agent.edits else word_answer(task.brief, prompt, shown)


def list_earlier(tasks: Mapping[str, TaskState], task: TaskSpec) -> Iterator[str]:
    """The files that all tasks before this one, by needs, were to write: nearest first, each once."""
    seen, paths, queue = {task.id}, set(), deque(task.needs)
    while queue:
        need = queue.popleft()
        if need in seen or need not in tasks:
            continue
        seen.add(need)
        spec = tasks[need].spec
        queue.extend(spec.needs)
        for path in spec.brief.outputs if spec.brief else ():
            if path not in paths:
                paths.add(path)
                yield path


def word_prompt(
    session: SessionSpec,
    task: TaskState,
    agent: AgentSpec,
    *,
    prompt: str,
    feedback: bytes,
    conversation: str | None,
    answer: str = "",
) -> bytes:
    """The prompt of the task's next WORK job, for the agent whose turn it is.

    `feedback` is what it is told of the round before, `conversation` the one that goes on (None: a new one begins)
    and `answer` what a new one is told of the answer of the attempt before a follow-up.
    """
    if task.follow_ups:
        text = _word_follow_up(task, agent, prompt, conversation, answer)
    else:
        text = prompt
        # one that begins anew after the first turn gets the earlier ones, too
        if task.spec.prompt_mode == "continue":
            turns = task.spec.prompts[: task.thread.turn]
            is_turn = conversation is not None or agent.prompt_kind == "script"
            text = turns[-1] if is_turn else "\n\n".join(turns)
    if agent.prompt_kind == "script":
        return text.encode()
    if conversation is not None and task.thread.broken_off:
        asked = f" You were asked:\n\n{text}" if task.thread.turn > 1 or task.follow_ups else ""
        why = _word_broken_off(task.thread.broken_off)
        return f"Your last run was broken off {why} Go on where you stopped.{asked}".encode()
    if conversation is not None and feedback:
        return feedback
    if session.envelope:
        branch = f"Working branch: {task.place.branch}\nCommit your work to it.\n" if task.place else ""
        marker = f"Begin your answer with this marker: [ID: {task.spec.id}]"
        text = f"Transaction ID: {task.spec.id}\n{branch}\n{text}\n\n{marker}"
    if feedback:
        return text.encode() + b"\n\n" + feedback
    return (text + _tell_evidence(task)).encode()


def _word_follow_up(task: TaskState, agent: AgentSpec, prompt: str, conversation: str | None, answer: str) -> str:
    """The last follow-up; a conversation that begins anew also gets the prompt, and what became of it."""
    *earlier, text = task.follow_ups
    if conversation is not None or agent.prompt_kind == "script":
        return text
    parts = [prompt, *(f"Then you were asked:\n\n{one}" for one in earlier)]
    reason = f" ({task.reason})" if task.reason else ""
    ended = f" It ended: {task.last_outcome}{reason}." if task.last_outcome else ""
    parts.append(f"You have worked on this before, in another conversation.{ended} Your work is here.")
    if answer:
        parts.append(f"The end of your answer was:\n\n{answer}")
    return "\n\n".join((*parts, f"Now you are asked:\n\n{text}"))


def _word_broken_off(reason: str) -> str:
    """Why a run was broken off, and how the next one keeps from that."""
    is_left = reason.startswith(f"{LEFT_RUNNING}:")
    advice = " Run such work in the foreground, or wait for its end before you end your turn." if is_left else ""
    return f"({reason}).{advice}"


def _tell_evidence(task: TaskState) -> str:
    """What a new conversation has to be told about earlier work; empty if no work was done before."""
    if task.thread.broken_off:
        place = " What it did may be in the working directory."
        return f"\n\nAn earlier run of this task was broken off {_word_broken_off(task.thread.broken_off)}{place}"
    if task.attempt > task.follow_up_attempt and task.reason and goes_on(task.reason_class):
        return f"\n\nAn earlier attempt at this task was broken off ({task.reason})."
    return ""


def find_feedback(session: SessionDir, state: TaskState, key: JobKey) -> tuple[Path | None, bytes]:
    """What this round is told of the one before, and the file that holds it; None and nothing in the first one."""
    if key.round == 1:
        return None, b""
    head, text, path = "Your last attempt did not pass its check.", b"", None
    if state.overdue:
        head = f"Your last attempt was stopped: no result after {state.spec.round_timeout_s:g} s."
    if resets_hard(state.spec):
        head += " The working directory was set back to what it was before your work."
    before = key._replace(round=key.round - 1)
    proofs = session.find_starts(before._replace(phase="prove"))
    checks = session.find_starts(before._replace(phase="check"))
    if (folder := next(chain(proofs, checks), None)) is not None:
        path, text = folder / FEEDBACK, read_tail(folder / FEEDBACK)  # words of ours, or what the check printed
        if not text:
            path = folder / "stdout"
            text = read_tail(path) + read_tail(folder / "stderr")
            head += " The end of the check's output:" if text else ""
    content = head.encode() + (b"\n\n" + text if text else b"\n")
    if state.overdue:
        path = session.make_job_path(key) / FEEDBACK
        replace_file(path, content, durable=False)
    return path, content if path is not None else b""


def read_earlier_answer(session: SessionDir, state: TaskState) -> str:
    """The end of what the last attempt before a follow-up that answered said; '' for any other task."""
    if not state.follow_ups:
        return ""
    for attempt in range(state.attempt - 1, 0, -1):  # one that could not begin has said nothing
        for folder in session.find_jobs(state.spec.id, attempt, "work"):  # where they were put away
            if answer := read_tail(folder / "stdout")[-_TOLD_BYTES:]:
                return answer.decode("utf-8", "replace").strip()
    return ""


# --- the files of a brief ---

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
"""More of one file fits no prompt."""

Role = Literal["context", "target", "changed", "written"]

_HEADS: Final[dict[Role, str]] = {
    "context": "Context: files that you need not change",
    "changed": "Context: files that were written earlier in this session",
    "target": "Files that are to be changed, as they are now",
    "written": "Files that your last attempt wrote, as they are now",
}


class BriefProblem(Exception):
    """The file `path` cannot be shown, or written, as the brief wants it; the message names the file, too."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(problem)
        self.path = path


@frozen
class Shown:
    """One file that an agent is shown."""

    path: str
    role: Role
    text: str


def resolve_inside(directory: str, path: str) -> str:
    """The absolute path, links resolved, of what lies (or will) inside of a directory.

    Raises:
        BriefProblem: the path leads outside, or into a directory of git's.
    """
    if not path or "\0" in path or os.path.isabs(path) or "\\" in path:
        raise BriefProblem(path, f"{path!r} is not a path inside of the project")
    top = os.path.realpath(directory)
    real = os.path.realpath(os.path.join(top, path))
    if os.pardir in path.split("/") or not real.startswith(top.rstrip(os.sep) + os.sep):
        raise BriefProblem(path, f"{path} leads out of the project")
    if ".git" in (part.lower() for part in os.path.relpath(real, top).split(os.sep)):
        raise BriefProblem(path, f"{path} belongs to git")
    return real


def read_inside(directory: str, path: str) -> str:
    """The text of a file inside of a directory; what is not UTF-8 is replaced.

    Raises:
        BriefProblem: the file lies outside, does not exist, is not a regular file or is too large.
    """
    try:
        raw = read_regular(Path(resolve_inside(directory, path)), MAX_FILE_BYTES)
    except NotRegular:
        raise BriefProblem(path, f"{path} is not a regular file") from None
    except OSError as error:
        raise BriefProblem(path, f"{path}: {error.strerror}") from None
    return raw.decode("utf-8", "replace")


def count_lines(text: str) -> int:
    """How many lines a text has; a last line without a line end counts."""
    return text.count("\n") + bool(text and not text.endswith("\n"))


def load_shown(brief: Brief, directory: str, earlier: Iterable[str], *, again: bool) -> list[Shown]:
    """The files to be shown when the work begins; `again`: an earlier round has written files.

    `earlier` are paths that the needed tasks may have written, nearest first.

    Raises:
        BriefProblem: a file that the brief names cannot be shown.
    """
    shown = [_load(brief, directory, path, "context") for path in brief.context if path not in brief.targets]
    shown += [_load(brief, directory, path, "target") for path in brief.targets]
    named = {*brief.context, *brief.targets}
    if again:
        rest = [path for path in brief.outputs if path not in named]
        shown += [file for path in rest if (file := _try(brief, directory, path, "written"))]
    others = (_try(brief, directory, path, "changed") for path in earlier if path not in {*named, *brief.outputs})
    return shown + [file for _, file in zip(range(brief.room), filter(None, others), strict=False)]


def _load(brief: Brief, directory: str, path: str, role: Role) -> Shown:
    text = read_inside(directory, path)
    limit = brief.max_context_lines if role in ("context", "changed") else None
    if limit is not None and count_lines(text) > limit:
        raise BriefProblem(path, f"{path} has {count_lines(text)} lines, and at most {limit} may be shown")
    return Shown(path, role, text)


def _try(brief: Brief, directory: str, path: str, role: Role) -> Shown | None:
    """A file that the brief does not name; None if it cannot be shown."""
    try:
        return _load(brief, directory, path, role)
    except BriefProblem:
        return None


def check_brief(brief: Brief, directory: str, foreseen: frozenset[str]) -> None:
    """Check what can be known of the files before the session starts; `foreseen` are to be written by other tasks.

    Raises:
        BriefProblem: a path leads out, or a file is missing or too long, and no task writes it.
    """
    for path in (*brief.outputs, *brief.context, *brief.targets):
        resolve_inside(directory, path)
    roles: dict[Role, tuple[str, ...]] = {"context": brief.context, "target": brief.targets}
    for role, paths in roles.items():
        for path in paths:
            if path not in foreseen:
                _load(brief, directory, path, role)


def count_tokens(brief: Brief, directory: str, prompt: str) -> int:
    """About how many tokens the prompt of an agent that only answers has: one for four characters.

    Files that are not there yet do not count.
    """
    shown = [file for path in (*brief.context, *brief.targets) if (file := _try(brief, directory, path, "target"))]
    return len(word_answer(brief, prompt, shown)) // 4


def word_answer(brief: Brief, prompt: str, shown: list[Shown]) -> str:
    """The whole prompt of an agent that only answers."""
    parts = [brief.system.strip(), *_word_files(shown), f"# Your task\n\n{prompt}"]
    outputs = ", ".join(brief.outputs)
    if brief.mode != "edit" and outputs:
        parts.append(f"# What to write\n\n{outputs}")
    return "\n\n".join(part for part in parts if part) + "\n"


def word_edit(brief: Brief, prompt: str, shown: list[Shown]) -> str:
    """The whole prompt of an agent that edits files itself: it names the files, and the agent reads them."""
    lists = {
        "Read first": [file.path for file in shown if file.role in ("context", "changed")],
        "Change": [file.path for file in shown if file.role == "target"],
        "Write": [path for path in brief.outputs if path not in brief.targets],
    }
    lines = [f"{what}: {', '.join(paths)}" for what, paths in lists.items() if paths]
    where = "Paths count from the current directory. Leave other files as they are unless the task asks for more."
    return "\n\n".join([prompt, "\n".join([*lines, where])]) + "\n"


def word_judgement(system: str, prompt: str, shown: list[Shown]) -> str:
    """The whole prompt by which an agent judges what was written."""
    parts = [system.strip(), f"# What was asked\n\n{prompt}", *_word_files(shown, "# What there is")]
    return "\n\n".join(parts) + "\n"


def _word_files(shown: list[Shown], head: str | None = None) -> Iterator[str]:
    last = None
    for file in shown:
        title = head or f"# {_HEADS[file.role]}"
        if title != last:
            yield title
        last = title
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`{3,}", file.text)), default=0))
        yield f"## {file.path}\n\n{fence}\n{file.text}{'' if file.text.endswith(chr(10)) else chr(10)}{fence}"

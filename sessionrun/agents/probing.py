"""Asks programs short questions, all at once: their version, or whether an agent is ready.

A question is a command with an end: standard input is empty, what is printed goes into files that no other process
sees.  A command without an answer when the time is up is killed with all that belongs to its group.  Must not know
what is done with the answers, nor where sessions keep their files.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import BinaryIO, Final, TypeVar

from sessionrun.agents.callers import find_callers
from sessionrun.agents.reading import one_line
from sessionrun.agents.table import version_argv
from sessionrun.model.frozen import frozen
from sessionrun.model.spec import AgentSpec

READY_TIMEOUT_S: Final = 30.0
MAX_VERSION: Final = 30
"""Characters of the first line that a program prints about its version."""

MODEL_TOKEN: Final = "{model}"

_Name = TypeVar("_Name")
_KEPT_BYTES: Final = 8192
_MAX_LINE: Final = 200


@frozen
class Question:
    """A command, and the environment it is asked in."""

    argv: Sequence[str]
    env: Mapping[str, str]


@frozen
class Answer:
    """What came of a question: `problem` is why it could not be asked, or None.

    `exit_code` is negative for a signal, and None where there is none or the time was up.  `stdout` is the
    beginning, `stderr` the end of what was printed.
    """

    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    problem: str | None = None


def ask(questions: Mapping[_Name, Question], *, timeout_s: float) -> dict[_Name, Answer]:
    """Ask all questions at once and wait for the answers, `timeout_s` in all."""
    deadline = time.monotonic() + timeout_s
    with ExitStack() as stack:
        begun = {name: _Asked(question, stack) for name, question in questions.items()}
        return {name: asked.answer(deadline, timeout_s) for name, asked in begun.items()}


def find_versions(
    agents: Mapping[str, AgentSpec], programs: Mapping[str, str], *, timeout_s: float
) -> dict[str, str | None]:
    """What the programs (absolute paths, by agent) say of their version; None: nothing."""
    questions = {
        name: Question((program, *argv[1:]), _environment_of(agents[name]))
        for name, program in programs.items()
        if (argv := version_argv(agents[name]))
    }
    answers = ask(questions, timeout_s=timeout_s)
    return {name: _first_line(answer.stdout) for name, answer in answers.items()}


def _environment_of(agent: AgentSpec) -> dict[str, str]:
    """What its tasks get, too."""
    callers = find_callers(os.environ)
    return {**{name: value for name, value in os.environ.items() if name not in callers}, **agent.env}


def _first_line(text: str) -> str | None:
    return next((line.strip()[:MAX_VERSION] for line in text.split("\n") if line.strip()), None)


def asks_about_model(agent: AgentSpec) -> bool:
    """Whether its `ready` command is a question about one model, and not about the agent alone."""
    return any(MODEL_TOKEN in element for element in agent.ready)


def find_unready(
    agents: Iterable[AgentSpec],
    models: Mapping[str, Collection[str | None]] | None = None,
    *,
    timeout_s: float = READY_TIMEOUT_S,
) -> dict[str, str]:
    """Run the `ready` commands there are; what is wrong, as one line each, by the names of those that are not.

    A command that asks about a model is run for each of the `models` of its agent, by name; None is a task that
    names none.  Without `models` it is not run.
    """
    asked: dict[tuple[str, str | None], tuple[str, ...]] = {}
    questions: dict[tuple[str, str | None], Question] = {}
    reasons: dict[tuple[str, str | None], str | None] = {}
    for agent in agents:
        wanted: Collection[str | None] = (None,) if agent.ready else ()
        if asks_about_model(agent):
            wanted = (models or {}).get(agent.name, ())
        for model in wanted:
            key = (agent.name, model)
            asked[key] = tuple(element.replace(MODEL_TOKEN, model or "") for element in agent.ready)
            if model is None and asks_about_model(agent):
                reasons[key] = "a task names no model: add --model"
            else:
                questions[key] = Question(asked[key], _environment_of(agent))
    reasons |= {key: _describe_unready(answer) for key, answer in ask(questions, timeout_s=timeout_s).items()}
    problems: dict[str, list[str]] = {}
    for key, why in reasons.items():
        if why is not None:
            problems.setdefault(key[0], []).append(one_line(f"{shlex.join(filter(None, asked[key]))}: {why}"))
    return {name: "; ".join(lines) for name, lines in problems.items()}


def _describe_unready(answer: Answer) -> str | None:
    if answer.exit_code == 0:
        return None
    why = answer.problem or _describe_end(answer.exit_code)
    lines = [line.strip() for line in answer.stderr.splitlines() if line.strip()]
    return f"{why}: {one_line(lines[-1])[:_MAX_LINE]}" if lines else why


def _describe_end(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"killed by signal {-exit_code}"
    return f"exit code {exit_code}"


class _Asked:
    """One question under way; `stack` ends it, whatever happens."""

    def __init__(self, question: Question, stack: ExitStack) -> None:
        self._stdout: BinaryIO = stack.enter_context(tempfile.TemporaryFile())
        self._stderr: BinaryIO = stack.enter_context(tempfile.TemporaryFile())
        self._problem: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                question.argv,
                env=question.env,
                stdin=subprocess.DEVNULL,
                stdout=self._stdout,
                stderr=self._stderr,
                start_new_session=True,
            )
        except OSError as error:
            self._problem = f"cannot be started: {error.strerror}"
        else:
            stack.callback(self._kill)

    def answer(self, deadline: float, timeout_s: float) -> Answer:
        """Wait for the end, or kill it when the time is up."""
        if self._process is None:
            return Answer(problem=self._problem)
        exit_code: int | None
        try:
            exit_code, problem = self._process.wait(max(0.0, deadline - time.monotonic())), None
        except subprocess.TimeoutExpired:
            exit_code, problem = None, f"no answer after {timeout_s:g} s"
            self._kill()
        return Answer(exit_code, _read(self._stdout, end=False), _read(self._stderr, end=True), problem)

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _read(stream: BinaryIO, *, end: bool) -> str:
    size = os.fstat(stream.fileno()).st_size
    stream.seek(max(0, size - _KEPT_BYTES) if end else 0)
    return stream.read(_KEPT_BYTES).decode("utf-8", "replace")

"""Asks programs short questions, all at once: their version, or whether an agent is ready.

A question is a command with an end: standard input is empty, what is printed goes into files that no other process
sees.  A command without an answer when the time is up is killed with all that belongs to its group.  Must not know
what is done with the answers, nor where sessions keep their files.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from subprocess import TimeoutExpired
from typing import BinaryIO, Final, NamedTuple, TypeVar

from sessionrun.agents.programs import find_callers
from sessionrun.agents.reading import one_line
from sessionrun.agents.table import version_argv
from sessionrun.model.spec import AgentSpec
from sessionrun.store.programs import run, run_abreast

READY_TIMEOUT_S: Final = 30.0
MODEL_TOKEN: Final = "{model}"

_MAX_VERSION: Final = 30
"""Characters of the first line that a program prints about its version."""

_KEPT_BYTES: Final = 8192
_MAX_LINE: Final = 200

_Name = TypeVar("_Name")


class Question(NamedTuple):
    """A command, and the environment it is asked in."""

    argv: Sequence[str]
    env: Mapping[str, str]


class Answer(NamedTuple):
    """The exit code (negative: of a signal; None: there is none), the first line printed, and what went wrong."""

    exit_code: int | None
    first_line: str | None
    problem: str | None


def ask(questions: Mapping[_Name, Question], *, timeout_s: float) -> dict[_Name, Answer]:
    """Ask all questions at once and wait for the answers, `timeout_s` in all."""
    jobs = [partial(_ask, question, timeout_s) for question in questions.values()]
    return dict(zip(questions, run_abreast(jobs, len(jobs) or 1), strict=True))


def _ask(question: Question, timeout_s: float) -> Answer:
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        exit_code = None
        try:
            ended = run(question.argv, environ=question.env, limit_s=timeout_s, stdout=stdout, stderr=stderr)
            exit_code = ended.returncode
            problem = f"killed by signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        except OSError as error:
            problem = f"cannot be started: {error.strerror}"
        except TimeoutExpired:
            problem = f"no answer after {timeout_s:g} s"
        complaints = _read_lines(stderr, end=True)
        if complaints:
            problem = f"{problem}: {one_line(complaints[-1])[:_MAX_LINE]}"
        first = next(iter(_read_lines(stdout, end=False)), None)
        return Answer(exit_code, first, None if exit_code == 0 else problem)


def _read_lines(stream: BinaryIO, *, end: bool) -> list[str]:
    """The lines at the beginning of a file, or at its end, that are not empty."""
    size = os.fstat(stream.fileno()).st_size
    stream.seek(max(0, size - _KEPT_BYTES) if end else 0)
    text = stream.read(_KEPT_BYTES).decode("utf-8", "replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


def find_versions(
    agents: Mapping[str, AgentSpec], programs: Mapping[str, str], *, timeout_s: float
) -> dict[str, str | None]:
    """What the programs (absolute paths, by agent) say of their version; None: nothing."""
    questions = {
        name: Question((program, *argv[1:]), _environment_of(agents[name]))
        for name, program in programs.items()
        if (argv := version_argv(agents[name]))
    }
    lines = {name: answer.first_line for name, answer in ask(questions, timeout_s=timeout_s).items()}
    return {name: line and line[:_MAX_VERSION] for name, line in lines.items()}


def _environment_of(agent: AgentSpec) -> dict[str, str]:
    callers = find_callers(os.environ)
    return {**{name: value for name, value in os.environ.items() if name not in callers}, **agent.env}


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
    questions: dict[tuple[str, str | None], Question] = {}
    problems: dict[tuple[str, str | None], str | None] = {}
    words: dict[tuple[str, str | None], list[str]] = {}
    for agent in agents:
        asks = asks_about_model(agent)
        wanted: Collection[str | None] = (models or {}).get(agent.name, ()) if asks else [None] * bool(agent.ready)
        for key in ((agent.name, model) for model in wanted):
            words[key] = [element.replace(MODEL_TOKEN, key[1] or "") for element in agent.ready]
            if asks and key[1] is None:
                problems[key] = "a task names no model: add --model"
            else:
                questions[key] = Question(words[key], _environment_of(agent))
    problems |= {key: answer.problem for key, answer in ask(questions, timeout_s=timeout_s).items()}
    lines: dict[str, list[str]] = {}
    for key, problem in problems.items():
        if problem is not None:
            lines.setdefault(key[0], []).append(one_line(f"{shlex.join(filter(None, words[key]))}: {problem}"))
    return {name: "; ".join(several) for name, several in lines.items()}

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
from concurrent.futures import ThreadPoolExecutor
from subprocess import TimeoutExpired
from typing import BinaryIO, Final, TypeVar

from sessionrun.agents.callers import find_callers
from sessionrun.agents.reading import one_line
from sessionrun.agents.table import version_argv
from sessionrun.model.frozen import frozen
from sessionrun.model.spec import AgentSpec
from sessionrun.store.programs import Programs, run

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
    asked = Programs()
    with ThreadPoolExecutor(len(questions) or 1) as pool:
        try:
            begun = {name: pool.submit(_ask, one, timeout_s, asked) for name, one in questions.items()}
            return {name: answer.result() for name, answer in begun.items()}
        except BaseException:
            asked.kill()
            raise


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


def _ask(question: Question, timeout_s: float, asked: Programs) -> Answer:
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr, asked.collect():
        exit_code, problem = None, None
        try:
            exit_code = run(
                question.argv, environ=question.env, limit_s=timeout_s, stdout=stdout, stderr=stderr
            ).returncode
        except OSError as error:
            problem = f"cannot be started: {error.strerror}"
        except TimeoutExpired:
            problem = f"no answer after {timeout_s:g} s"
        return Answer(exit_code, _read(stdout, end=False), _read(stderr, end=True), problem)


def _read(stream: BinaryIO, *, end: bool) -> str:
    size = os.fstat(stream.fileno()).st_size
    stream.seek(max(0, size - _KEPT_BYTES) if end else 0)
    return stream.read(_KEPT_BYTES).decode("utf-8", "replace")

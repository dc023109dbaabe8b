"""What can be found out about agent CLIs before they get a task: versions, signs of a log-in, readiness, refusals.

Programs are asked short questions, all at once.  A question is a command with an end: standard input is empty, and
what is printed goes into files that no other process sees.  A command without an answer when the time is up is
killed with all that belongs to its group.

Signed in is told from the outside: by the names of environment variables and by whether a file is there.  No file
of an account is opened, and no value is looked at but for being empty.  A "no" keeps a session from starting, so
it is said only where nothing speaks against it: a settings file may hold a key, or name a command that knows one;
a model may be local, an argument may choose another provider, and a script in the place of the program may set all
of that.  Then the answer is that it cannot be told.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import BinaryIO, Final, Literal, NamedTuple, TypeVar

from sessionrun.agents import table
from sessionrun.agents.programs import Program, find_callers, find_file, find_program
from sessionrun.agents.reading import one_line
from sessionrun.model.errors import SessionrunError
from sessionrun.model.frozen import frozen
from sessionrun.model.spec import AgentSpec

SignedIn = Literal["yes", "no", "cannot tell", "not needed"]

_MAJOR_MINOR: Final = re.compile(r"(?<![\d.])(\d+\.\d+)(?!\d)")
_FOR_SHELL: Final = re.compile(rb"#!.*[/ ](ba|da|k|z|fi)?sh\b")
_ENV_FILE: Final = ".env"
_KEYS: Final = ("_API_KEY", "_API_TOKEN", "_API_BASE")
"""How the names of variables end that hold keys and addresses of providers."""

READY_TIMEOUT_S: Final = 30.0
VERSION_TIMEOUT_S: Final = 10.0
MODEL_TOKEN: Final = "{model}"

_MAX_VERSION: Final = 30
"""Characters of the first line that a program prints about its version."""

_KEPT_BYTES: Final = 8192
_MAX_LINE: Final = 200

_Name = TypeVar("_Name")


@frozen
class Use:
    """How an agent is to be used: with which models and further arguments, and in which directories."""

    models: Sequence[str | None] = ()
    args: Sequence[str] = ()
    directories: Sequence[str] = ()


def find_known(agent: AgentSpec) -> Program | None:
    """What is known of the program that an agent runs, if it is known how that signs in."""
    known = find_program(agent.argv[0])
    return known if known is not None and known.version else None


def is_wrapper(agent: AgentSpec) -> bool:
    """Whether its program is a script for a shell, which may set a key before it starts the agent itself."""
    try:
        with open(agent.argv[0], "rb") as program:
            return _FOR_SHELL.match(program.readline(200)) is not None
    except OSError:
        return False


def find_sign_in(
    agent: AgentSpec, environ: Mapping[str, str], platform: str, use: Use | None = None
) -> tuple[SignedIn, str | None]:
    """Whether an agent is signed in, and what shows it: a variable's name or a file's.

    Args:
        environ: the environment that it will get, its own `env` included.
        platform: as `sys.platform`; macOS keeps credentials in a keychain that is not looked at.
        use: what it is to be used for, where that is known.
    """
    if agent.prompt_kind == "script":
        return "not needed", None
    known = find_known(agent)
    if known is None:
        return "cannot tell", None
    variable = next((name for name in known.keys if environ.get(name)), None)
    if variable is not None:
        return "yes", variable
    credentials = find_file(known, known.login, environ)
    if os.path.exists(credentials):
        return "yes", credentials
    use = use or Use()
    settings = next(filter(os.path.exists, _list_settings(known, environ, use)), None)
    if (
        settings is not None
        or platform == "darwin"
        or known.free
        or is_wrapper(agent)
        or _is_used_otherwise(agent, known, environ, use)
    ):
        return "cannot tell", settings
    return "no", None


def _list_settings(known: Program, environ: Mapping[str, str], use: Use) -> Iterator[str]:
    """The files in which a key may be, where they are there."""
    yield from (find_file(known, name, environ) for name in known.may_hold_key)
    yield from known.system
    for directory in dict.fromkeys(use.directories):
        while True:
            yield from (os.path.join(directory, name) for name in (*known.project, _ENV_FILE))
            above = os.path.dirname(directory)
            if above == directory:
                break
            directory = above


def _is_used_otherwise(agent: AgentSpec, known: Program, environ: Mapping[str, str], use: Use) -> bool:
    """Whether it may ask another provider than it does by itself, or one that needs no key."""
    plain = table.BUILTIN.get(os.path.basename(agent.argv[0]))
    if use.args or plain is None or agent.argv[1:] != plain.argv[1:]:
        return True
    has_key = any(value and name.endswith(_KEYS) for name, value in environ.items())
    return known.local and (has_key or any(use.models))


# --- questions ---


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
    from sessionrun.store.programs import run_abreast  # most launches ask nothing, and do without it

    jobs = [partial(_ask, question, timeout_s) for question in questions.values()]
    return dict(zip(questions, run_abreast(jobs, len(jobs) or 1), strict=True))


def _ask(question: Question, timeout_s: float) -> Answer:
    import tempfile
    from subprocess import TimeoutExpired

    from sessionrun.store.programs import run

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


def is_known_version(known: Program, version: str) -> bool | None:
    """Whether a program that says this of its version is like the one we know; None: it says no version."""
    match = _MAJOR_MINOR.search(version)
    return None if match is None else match.group(1) == known.version


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
    lines: defaultdict[str, list[str]] = defaultdict(list)
    for agent in agents:
        asks = asks_about_model(agent)
        wanted: Collection[str | None] = (models or {}).get(agent.name, ()) if asks else [None] * bool(agent.ready)
        for model in wanted:
            argv = [element.replace(MODEL_TOKEN, model or "") for element in agent.ready]
            if asks and model is None:
                why = f"{shlex.join(filter(None, argv))}: a task names no model: add --model"
                lines[agent.name].append(one_line(why))
            else:
                questions[agent.name, model] = Question(argv, _environment_of(agent))
    for key, answer in ask(questions, timeout_s=timeout_s).items():
        if answer.problem is not None:
            lines[key[0]].append(one_line(f"{shlex.join(filter(None, questions[key].argv))}: {answer.problem}"))
    return {name: "; ".join(several) for name, several in lines.items()}


# --- all that is known of each ---


@frozen
class Examined:
    """One agent as it was found.

    `known` is whether we tried such a version (None: unknown).  `refusal` is why it would not start; `ready` is
    None if it was not asked, `unready` what it answered.  `hint` is one line on what matters most.
    """

    name: str
    builtin: bool
    provider: str
    path: str | None
    version: str | None
    known: bool | None
    known_version: str | None
    signed_in: SignedIn
    signed_in_by: str | None
    refusal: str | None
    ready: bool | None
    unready: str | None
    hint: str | None

    @property
    def startable(self) -> bool:
        """Whether it could start; whether its provider accepts it is another question."""
        return self.path is not None and self.refusal is None and self.ready is not False


def examine(known: Mapping[str, AgentSpec], *, approve: bool) -> list[Examined]:
    """Examine all agents, as they would start with all permissions or not; programs are asked side by side."""
    path = os.environ.get("PATH")
    programs = {name: table.find_program(agent, path) for name, agent in known.items()}
    there = {name: program for name, program in programs.items() if program}
    questions = {
        name: Question((program, "--version"), _environment_of(known[name]))
        for name, program in there.items()
        if known[name].prompt_kind != "script"  # as `sh`, which has none
    }
    answers = ask(questions, timeout_s=VERSION_TIMEOUT_S)
    versions = {name: answer.first_line for name, answer in answers.items()}
    unready = find_unready(known[name] for name in there)
    return [
        _examine(agent, programs[name], versions.get(name), unready.get(name), approve=approve)
        for name, agent in known.items()
    ]


def _examine(
    agent: AgentSpec, program: str | None, version: str | None, why: str | None, *, approve: bool
) -> Examined:
    about, refusal, hint = find_known(agent), None, None
    use = Use(directories=(os.getcwd(),))
    signed_in, shown = find_sign_in(agent, {**os.environ, **agent.env}, sys.platform, use)
    known = None if about is None or version is None else is_known_version(about, version)
    try:
        table.check_agent(agent)
        table.check_startable(agent, approve=approve, euid=os.geteuid(), environ=os.environ)
    except SessionrunError as error:
        refusal = str(error)
    if program is None:
        hint = f"not found; {table.how_to_install(agent)}"
    elif refusal is not None:
        hint = refusal
    elif why is not None:
        hint = f"not ready: {why}"
    elif about is not None and signed_in == "no":
        hint = f"not signed in, as far as can be seen: {about.sign_in}"
    elif about is not None and known is False:
        hint = f"not tested with this version, but with {about.version}: its output may be misread"
    is_asked = bool(agent.ready) and not asks_about_model(agent) and program is not None
    return Examined(
        name=agent.name,
        builtin=agent.name in table.BUILTIN,
        provider=agent.provider or agent.name,
        path=program,
        version=version and version[:_MAX_VERSION],
        known=known,
        known_version=about.version if about else None,
        signed_in=signed_in,
        signed_in_by=shown,
        refusal=refusal,
        ready=why is None if is_asked else None,
        unready=why,
        hint=hint,
    )

"""The agent CLIs: how each is started and how what it prints is read.  One small module each, one table.

An agent is an `AgentSpec`, ours or the user's own, and an output format.  Ours set no environment variables:
what the user's environment says holds, and an `env` in a user's own agent is what the user asked for.

**Tokens.**  Eight names are ours.  ``{model_args}``, ``{approve_args}``, ``{continue_args}`` and ``{budget_args}``
are elements of `argv` that stand alone and are replaced by those lists; ``{prompt_file}`` is replaced anywhere
inside an element, and so are ``{model}`` inside `model_args` and `ready`, ``{conversation}`` inside
`continue_args` and ``{budget}`` inside `budget_args`.  All other text is left alone, braces too, so that an
element may hold JSON or another program's template.  One exception catches slips of the pen: an element that is
nothing but ``{word}`` and none of ours is refused by `check_agent`, as is one of ours in a place where it has no
meaning.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from sessionrun.agents import aider, claude, codex, gemini, opencode
from sessionrun.agents.markers import find_in_errors
from sessionrun.agents.programs import PROGRAMS
from sessionrun.agents.reading import (
    WITHOUT_RESULT,
    AgentResult,
    Logged,
    Problem,
    Step,
    one_line,
    parse_event,
    read_lines,
)
from sessionrun.model.errors import AgentNotFound, InputError
from sessionrun.model.spec import AgentSpec, OutputFormat
from sessionrun.model.words import effect_of
from sessionrun.store.files import open_regular, read_end

BUILTIN: Final[Mapping[str, AgentSpec]] = {
    "claude": claude.AGENT,
    "codex": codex.AGENT,
    "qwen": claude.QWEN,
    "gemini": gemini.AGENT,
    "opencode": opencode.AGENT,
    "aider": aider.AGENT,
    # A local model that answers and edits nothing.  It reads the prompt from a standard input that is no terminal.
    # `ollama show` fails where the server is down or the model was not pulled, and costs nothing.
    "ollama": AgentSpec(
        name="ollama",
        argv=("ollama", "run", "{model_args}"),
        model_args=("{model}",),
        output="text",
        edits=False,
        ready=("ollama", "show", "{model}"),
    ),
    # Its prompt is a script, its answer what the script prints.
    "shell": AgentSpec(
        name="shell", argv=("sh", "{prompt_file}"), stdin="none", prompt_kind="script", output="text"
    ),
}

FIRST_FOUND: Final = ("claude", "codex", "qwen", "gemini", "opencode", "aider")
"""The order in which an agent is looked for when none was asked for."""

_Read = Callable[[Iterable[dict[str, Any]]], AgentResult]
_ReadText = Callable[[dict[str, Any]], str]
_ListSteps = Callable[[dict[str, Any]], Iterator[Step]]

_STREAMS: Final[Mapping[OutputFormat, tuple[_Read, _ReadText, _ListSteps]]] = {
    "claude": (claude.read, claude.read_text, claude.list_steps),
    "codex": (codex.read, codex.read_text, codex.list_steps),
    "qwen": (claude.read, claude.read_text, claude.list_steps),
    "gemini": (gemini.read, gemini.read_text, gemini.list_steps),
    "opencode": (opencode.read, opencode.read_text, opencode.list_steps),
}

_FindError = Callable[[str | None, Mapping[str, str], str, str | None], Logged | None]

_OWN_LOGS: Final[Mapping[OutputFormat, _FindError]] = {
    "opencode": opencode.find_last_error,
    "qwen": claude.find_qwen_error,
}
"""Agents that print nothing of a request that fails and is tried again: what their own logs say of it."""

SAYS_COST: Final = frozenset(("claude", "opencode", "aider"))
"""Output formats in which the agent itself says what a run cost, at least where it knows its model."""

COUNTS_ALL: Final = frozenset(("codex", "qwen"))
"""Output formats in which a run that goes on with a conversation reports the tokens of all its runs so far.  The
others report their own alone, as was seen with three runs of each."""

_LISTS: Final = ("model_args", "approve_args", "continue_args", "budget_args")
_MEANINGS: Final = {
    "argv": ("prompt_file",),
    "model_args": ("prompt_file", "model"),
    "approve_args": ("prompt_file",),
    "continue_args": ("prompt_file", "conversation"),
    "budget_args": ("prompt_file", "budget"),
    "ready": ("model",),
}
"""The tokens that have a meaning inside of an element, by the list that it is in."""

_TOKEN: Final = re.compile(rf"\{{(prompt_file|model|conversation|budget|{'|'.join(_LISTS)})\}}")
_LONE_WORD: Final = re.compile(r"\{([A-Za-z_]\w*)\}")

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]{0,20}m")
_CHATTER: Final = re.compile(r"(?i)\s*(warning\b|\[startup\]|ripgrep |yolo mode )|\s+at \S|[^a-z]*$")
"""Lines on standard error that agents print in good runs too, and the places in a trace."""

_STDERR_TAIL_BYTES: Final = 8192
_WAITS_BYTES: Final = 4096
"""How much of the end of standard error may tell what an agent waits for."""


def build_argv(
    agent: AgentSpec,
    *,
    model: str | None,
    approve: bool,
    prompt_file: str,
    conversation: str | None = None,
    budget: float | None = None,
    extra: Sequence[str] = (),
) -> tuple[str, ...]:
    """The argument list of one run.

    Args:
        agent: has passed `check_agent`.
        model: as the agent CLI names it; None leaves the choice to the CLI.
        prompt_file: absolute path of the file that holds the prompt.
        conversation: the agent's own id of the conversation to go on with; None begins a new one.
        budget: what the run may cost, in US dollars; None means no limit.
        extra: what the task adds, as it is; it comes last.
    """
    tokens = {"prompt_file": prompt_file}
    lists: dict[str, tuple[str, ...]] = {
        "model_args": () if model is None else _fill(agent.model_args, {**tokens, "model": model}),
        "approve_args": _fill(agent.approve_args, tokens) if approve else (),
        "continue_args": ()
        if conversation is None
        else _fill(agent.continue_args, {**tokens, "conversation": conversation}),
        "budget_args": ()
        if budget is None
        else _fill(agent.budget_args, {**tokens, "budget": f"{budget:.9f}".rstrip("0").rstrip(".")}),
    }
    argv: list[str] = []
    for element in agent.argv:
        name = element[1:-1] if element.startswith("{") else ""
        argv += lists[name] if element == f"{{{name}}}" and name in lists else _fill((element,), tokens)
    for name in _LISTS:
        if f"{{{name}}}" not in agent.argv:
            argv += lists[name]
    return (*argv, *extra)


def check_agent(agent: AgentSpec) -> None:
    """Check an agent that a user wrote.

    Raises:
        InputError: it names no program, or has a token where that has no meaning.
    """
    if not agent.argv or not agent.argv[0] or agent.argv[0].startswith("{"):
        raise InputError(f"agent {agent.name!r}: argv must begin with a program")
    for where, inside in _MEANINGS.items():
        for element in getattr(agent, where):
            lone = _LONE_WORD.fullmatch(element)
            names = [lone.group(1)] if lone else [match.group(1) for match in _TOKEN.finditer(element)]
            alone = _LISTS if lone and where == "argv" else ()
            wrong = next((name for name in names if name not in (*inside, *alone)), None)
            if wrong is not None:
                raise InputError(f"agent {agent.name!r}: {where} holds {{{wrong}}}, which has no meaning there")


def find_program(agent: AgentSpec, path: str | None) -> str | None:
    """The absolute path of an agent's program, or None.

    Args:
        path: a PATH; None means the system's default.  Entries that are not absolute are passed over: in
            them every working directory would have a program of its own.
    """
    program = agent.argv[0]
    folders = (os.defpath if path is None else path).split(os.pathsep)
    absolute = os.pathsep.join(filter(os.path.isabs, folders))
    return shutil.which(os.path.abspath(program) if "/" in program else program, path=absolute)


def check_startable(agent: AgentSpec, *, approve: bool, euid: int, environ: Mapping[str, str]) -> str:
    """The absolute path of an agent's program, after what would make every task fail has been ruled out.

    Args:
        euid: the effective user id that will run it.
        environ: the environment that it will get, before the agent's own `env`.

    Raises:
        AgentNotFound: its program is not installed.
        InputError: it would refuse to start as this user.
    """
    program = find_program(agent, environ.get("PATH"))
    if program is None:
        wanted = agent.argv[0]
        where = "is not an executable file" if "/" in wanted else "is not on PATH"
        searched = "" if "/" in wanted else describe_path(environ.get("PATH"))
        raise AgentNotFound(f"agent {agent.name!r}: {wanted!r} {where} ({how_to_install(agent)}){searched}")
    option = "--dangerously-skip-permissions"
    argv = build_argv(agent, model=None, approve=approve, prompt_file="")
    if euid == 0 and os.path.basename(argv[0]) == "claude" and option in argv:
        given = {**environ, **agent.env}
        if "1" not in (given.get("IS_SANDBOX"), given.get("CLAUDE_CODE_BUBBLEWRAP")):  # nothing but 1 counts
            raise InputError(
                f"agent {agent.name!r} refuses {option} as root: use another user or --no-yolo, "
                "or set IS_SANDBOX=1 if this machine is a sandbox"
            )
    return program


def how_to_install(agent: AgentSpec) -> str:
    """What helps where an agent's program is not there, in a few words."""
    known = PROGRAMS.get(agent.argv[0])
    return f"to install it: {known.install}" if known else "'sessionrun doctor agents' lists what is installed"


def describe_path(path: str | None) -> str:
    """The PATH that was searched, as the end of a message: that of cron or of a service is short."""
    return f"; PATH is {path or os.defpath} here: if your shell finds the agent, set PATH to what it is there"


def has_stream(agent: AgentSpec) -> bool:
    """Whether its standard output is a stream of events, and not the text for a person itself."""
    return agent.output in _STREAMS


def is_whole(agent: AgentSpec, raw: Path, errors: Path) -> bool:
    """Whether its stream has come to its own end, and says that all went well."""
    return has_stream(agent) and read_result(agent.output, raw, errors).problem is None


def is_final(agent: AgentSpec, raw: Path) -> bool:
    """Whether its stream, as far as it is written, ends with its last word, and nothing is open or to come.

    Then the agent has nothing left to do but to end.  It reads the whole file: ask when the file has been silent
    for a while, not each second.  False for an agent without a stream, and for a file that is gone.
    """
    return has_stream(agent) and read_result(agent.output, raw, raw).is_final


def list_ended(
    agent: AgentSpec, conversation: str | None, environ: Mapping[str, str], folder: str | None
) -> Set[str]:
    """The background jobs that came to their end though the stream does not say so; arguments as below."""
    return claude.list_ended(folder, environ, conversation) if agent.output == "qwen" else frozenset()


def find_silent_limit(
    agent: AgentSpec, stdout: Path, stderr: Path, environ: Mapping[str, str], cwd: str, folder: str | None = None
) -> Problem | None:
    """What an agent that prints nothing waits for, if the last that it printed or logged says so.

    Only a failed request counts after which it has printed nothing: it may have asked again, with success, before.

    Args:
        folder: where it keeps its state; None: where its variables say.
    """
    result = read_result(agent.output, stdout, stderr)
    if result.reason_class not in WITHOUT_RESULT:
        return result.problem if effect_of(result.reason_class) != "none" else None
    try:
        since, printed_at = stdout.stat().st_mtime, stderr.stat().st_mtime
    except OSError:
        return None
    find = _OWN_LOGS.get(agent.output)
    log = None if find is None else find(folder, environ, cwd, result.conversation)
    if log is not None and log.at >= since:
        return log.problem
    errors = read_errors(stderr)[-_WAITS_BYTES:] if printed_at >= since else ""
    phrase = find_in_errors(errors, waits=True)
    return Problem(*phrase, errors) if phrase is not None and effect_of(phrase[0]) != "none" else None


def leavings(specs: Iterable[AgentSpec]) -> tuple[str, ...]:
    """What these agents write for themselves into the repository they work in: rules for git to ignore it."""
    return aider.LEAVES if any(agent.output == "aider" for agent in specs) else ()


def read_result(output: OutputFormat, stdout: Path, stderr: Path, ended: Set[str] = frozenset()) -> AgentResult:
    """What the output of a finished run says.  Output that does not parse as its format is a failure.

    Never raises because of what the files hold, or because they are gone.  For `text` the file itself is
    the answer, and everything is a success.  `ended` is what `list_ended` found.
    """
    if output == "text":
        return AgentResult()
    try:
        # an agent may have put a link, FIFO or device in its place
        with open(stdout, "rb", opener=open_regular) as stream:
            if output == "aider":
                result = aider.read(read_lines(stream))
            else:
                result = _read_stream(partial(claude.read, ended=ended) if ended else _STREAMS[output][0], stream)
    except OSError as error:
        result = AgentResult(Problem("bad_output", f"the output cannot be read: {error.strerror}"))
    if result.problem is None or result.reason_class not in WITHOUT_RESULT:
        return result
    # what standard error says at its end: the last line with "error", else the last two
    lines = [line for line in read_errors(stderr).splitlines() if line.strip() and not _CHATTER.match(line)]
    named = [line for line in lines if "error" in line.lower()]
    words = one_line(" ".join(named[-1:] or lines[-2:]))
    text = one_line(f"{result.problem.text}; standard error: {words}") if words else result.problem.text
    return replace(result, problem=result.problem._replace(text=text))


def read_errors(stderr: Path) -> str:
    """The end of a run's standard error, without colours; '' where there is none."""
    return _COLOUR.sub("", read_end(stderr, _STDERR_TAIL_BYTES).decode("utf-8", "replace"))


def render_events(output: OutputFormat, line: bytes) -> str:
    """What a person who follows a run sees of one line of its raw stream; '' for nothing.

    The pieces are to be written one behind the other as they are: most end in a newline, but a piece of an
    answer does not.  What is not an event is shown as it is.  The text is the agent's: not safe for a terminal.
    """
    event = parse_event(line) if output in _STREAMS else None
    if event is None:
        return line.decode("utf-8", "replace")
    _, read_text, list_steps_of = _STREAMS[output]
    return read_text(event) + "".join(step.line for step in list_steps_of(event))


def list_steps(output: OutputFormat, line: bytes) -> list[Step]:
    """The calls of tools, and the errors, in one line of a raw stream."""
    event = parse_event(line) if output in _STREAMS else None
    return [] if event is None else list(_STREAMS[output][2](event))


def _fill(elements: tuple[str, ...], tokens: Mapping[str, str]) -> tuple[str, ...]:
    """Replace tokens in one pass: what a value brings along is never looked at again."""
    return tuple(
        _TOKEN.sub(lambda match: tokens.get(match.group(1), match.group(0)), element) for element in elements
    )


def _read_stream(read: _Read, stream: BinaryIO) -> AgentResult:
    """The reader's result, or what is wrong when there was nothing for it to read."""
    lines = parsed = 0

    def events() -> Iterator[dict[str, Any]]:
        nonlocal lines, parsed
        for line in read_lines(stream):
            lines += 1
            event = parse_event(line)
            if event is not None:
                parsed += 1
                yield event

    result = read(events())
    if parsed:
        return result
    if lines:
        return AgentResult(Problem("bad_output", "no line of the output is an event"))
    return AgentResult(Problem("incomplete_output", "no output"))

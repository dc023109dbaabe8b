"""What verbs share: options and arguments, the answer that is printed, the choice of sessions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from sessionrun.cli.render import JSON, escape_line, hint, is_json, print_json, session_head, unversioned
from sessionrun.client.lookup import LAST, STATES, Chosen, Wanted, choose_sessions
from sessionrun.client.reading.view import load_summary_view
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.units import parse_age, parse_coming, parse_duration, parse_size
from sessionrun.store.session import SessionDir

_Value = TypeVar("_Value", covariant=True)

Decorator = Callable[[Any], Any]


class Parsed(click.ParamType[_Value]):
    """What a function makes of a word, and of `more`; its `ValueError` says what is wrong.

    `name` is what help calls the word.
    """

    def __init__(self, name: str, parse: Callable[..., _Value], *more: Any) -> None:
        self.name, self._parse, self._more = name, parse, more

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> _Value:
        try:
            return self._parse(str(value), *self._more)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _parse_count(text: str, least: int = 0) -> int:
    if not (text.isascii() and text.isdigit()) or not least <= int(text[:19]) < 10**18:
        raise ValueError(f"{text!r} is not a whole number of {least} or more")
    return int(text)


def _parse_duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ValueError(f"{error}, not {text!r}") from None


def _parse_command(text: str) -> str:
    """A command that is not empty: an empty one succeeds and proves nothing."""
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _parse_since(text: str) -> float:
    from datetime import datetime

    text = text.strip()
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    try:
        return time.time() - parse_age(text)
    except ValueError as error:
        raise ValueError(f"{error}, and not a date such as 2026-11-30 or 2026-11-30T18:00") from None


def _parse_words(text: str, known: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Words with commas between them, and perhaps blanks: names of any fields, or of what is `known`."""
    words = tuple(word.strip() for word in text.split(","))
    unknown = next((word for word in words if known and word not in known), None)
    if unknown is not None:
        from sessionrun.model.errors import suggest

        raise ValueError(f"{unknown!r} is not one of {', '.join(known)}{suggest(unknown, known)}")
    if not all(words):
        raise ValueError(f"{text!r}: write names with commas between them, such as id,outcome,reason")
    return words


def _parse_label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ValueError(f"{text!r}: write KEY=VALUE")
    return key, value


Count: Final = partial(Parsed, "N", _parse_count)
"""A whole number, not below the argument, or 0."""

Duration: Final = partial(Parsed, "TIME", _parse_duration)
"""A time span in seconds: a number of them, or text such as ``90s``, ``15m``, ``1h30m``."""

Age: Final = partial(Parsed, "AGE", lambda text: parse_age(text.strip()))
"""How long ago, in seconds; it needs a unit: ``7d``, ``12h``, ``1h30m``."""

ShellCommand: Final = partial(Parsed, "COMMAND", _parse_command)
Size: Final = partial(Parsed, "SIZE", parse_size)
"""Bytes, with or without a unit: ``500M``, ``20G``, ``1.5T``."""

Since: Final = partial(Parsed, "DATE", _parse_since)
"""A moment as seconds since the epoch: a date, perhaps with a time and an offset, or an age such as ``7d``."""

SinceOrCursor: Final = partial(
    Parsed,
    "SEQ|DATE",
    lambda text: int(text[:19]) if text.isascii() and text.isdigit() else _parse_since(text),
)
"""The same, or a cursor of `wait --any`: an `int`."""

Moment: Final = partial(Parsed, "TIME", lambda text: parse_coming(text.strip(), time.time()))
"""A moment to come as seconds since the epoch: a time of day, a date with a time, or ``+`` and a duration."""

Fields: Final = partial(Parsed, "NAME,...", _parse_words)
Words: Final = partial(Parsed, "STATE,...", _parse_words)
"""Of the words of the argument."""

Label: Final = partial(Parsed, "KEY=VALUE", _parse_label)


def add_options(*options: Decorator) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """All of these as one, in the order in which help shows them."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def flag(names: str, text: str, **more: Any) -> Decorator:
    """An option without a value: `names` are its spellings and perhaps its parameter, with blanks between."""
    return click.option(*names.split(), is_flag=True, help=text, **more)


def valued(
    names: str,
    shown: str | Parsed[Any],
    text: str,
    kind: click.ParamType[Any] | type[int] | None = None,
    **more: Any,
) -> Decorator:
    """An option with a value, which help calls `shown`; a text, unless `shown` or `kind` says how it is read."""
    kind, shown = (kind, shown) if isinstance(shown, str) else (shown, shown.name)
    return click.option(*names.split(), type=kind, metavar=shown, help=text, **more)


def note_json(context: click.Context, _: click.Parameter, value: Any) -> Any:
    """A callback of options: from now on `is_json` says so, if the value of the option means that."""
    if value in (True, "json"):
        context.meta[JSON] = True
    return value


json_option = flag("--json as_json", "Print JSON; errors too.", expose_value=False, callback=note_json)

_FOLDER: Final = click.Path(file_okay=False, path_type=Path)
results_dir_option = valued("--results-dir", "DIR", "Where sessions are kept.  [default: ./results]", _FOLDER)

cache_dir_option = valued(
    "--cache-dir",
    "DIR",
    "Where mirrors and environments are kept.  [default: the user's cache directory]",
    _FOLDER,
)

sync_option = flag("--sync", "Follow the session to its end, then print the results.")

quiet_option = flag("-q --quiet", "Print the session id alone.")

ready_option = flag(
    "--no-ready ready",
    "Do not check first whether agents are signed in and ready.",
    default=True,
    flag_value=False,
)

session_argument = click.argument("session_id", metavar="[ID]", default=LAST)


def list_params(*options: Decorator) -> list[click.Parameter]:
    """What these decorators give to a command."""
    return click.command()(add_options(*options)(lambda: None)).params


class Answer(NamedTuple):
    """What a verb found: for `--json`, and in lines for people; `aside` are lines on standard error.

    Without a record it was printed already.
    """

    record: Mapping[str, Any] | None
    lines: Iterable[str] = ()
    code: int = 0
    aside: Iterable[str] = ()

    def print(self) -> int:
        """Print it, as the JSON object or as lines; the exit code."""
        if not is_json():
            for line in self.lines:
                click.echo(line)
            for line in self.aside:
                hint(line)
        elif self.record is not None:
            print_json(self.record)
        return self.code


def verb(
    name: str, *ends: Decorator, parent: click.Group | None = None
) -> Callable[[Callable[..., Answer | int]], click.Command]:
    """A verb, with `ends` behind its own options: `--json` and `--results-dir` unless others are named.

    Its answer is printed here; one that printed it already returns the exit code.
    """

    def make(function: Callable[..., Answer | int]) -> click.Command:
        @wraps(function)
        def run(**options: Any) -> int:
            answer = function(**options)
            return answer.print() if isinstance(answer, Answer) else answer

        command = (parent.command if parent else click.command)(name)(run)
        command.params += list_params(*(ends or (json_option, results_dir_option)))
        return command

    return make


# --- sessions ---

label_option = valued("--label labels", Label(), "Only sessions with this label; repeatable.", multiple=True)

state_option = valued(
    "--state states",
    Words(STATES),
    "Only sessions in one of these states, such as running or failed (with failed tasks).",
)

since_option = valued("--since", Since(), "Only sessions started since then: 2026-11-30, 7d, 12h.")


def selector_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """`--label`, `--state` and `--since`: the verb gets them as `wanted`."""

    @wraps(verb)
    def run(labels: Any, states: Any, since: float | None, **options: Any) -> Any:
        return verb(wanted=Wanted(labels, states or (), since), **options)

    return add_options(label_option, state_option, since_option)(run)


EXIT_FAILED: Final = 1
EXIT_HELD: Final = 75
EXIT_TIMEOUT: Final = 124
"""Exit codes that several verbs have; see also `model.errors`."""

words_argument = click.argument("words", nargs=-1, metavar="[ID] [TASK]...")
"""A session and tasks of it, or several sessions."""


def session_verb(
    name: str, *lone: str, reads: bool = True, headed: bool = True, words: Decorator = words_argument
) -> Callable[[Callable[..., Answer]], click.Command]:
    """A verb about one session and tasks of it, which does several sessions one by one.

    `lone` names its options that make sense for one session alone.  What a `headed` one prints begins with its
    session; else a line on standard error says which.  `reads` is that of `choose_sessions`.
    """

    def decorate(function: Callable[..., Answer]) -> click.Command:
        @wraps(function)
        def run(words: tuple[str, ...], results_dir: Path | None, **options: Any) -> int:
            chosen = choose_sessions(results_dir, words, reads=reads)
            context = click.get_current_context()
            for param in context.command.params if chosen.several else ():
                if param.name in lone and context.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
                    raise InputError(f"{name}: {param.opts[-1]} is about one session: name one")

            def act(session: SessionDir) -> Answer:
                if chosen.several and not (is_json() or headed):
                    click.echo(f"{session_head(load_summary_view(session))}:", err=True)
                elif session is not chosen.sessions[0] and not is_json():
                    click.echo()
                return function(session, chosen.tasks, **options)

            return act_on_each(chosen, act)

        command = verb(name)(run)
        command.params[:0] = list_params(words)
        return command

    return decorate


def act_on_each(chosen: Chosen, act: Callable[[SessionDir], Answer]) -> int:
    """Do something to each session and print what became of it; the exit code.

    An error of one of several sessions is told with it, and the others go on.
    """
    if not chosen.several:
        return act(chosen.sessions[0]).print()
    ends = []
    for session in chosen.sessions:
        try:
            end = act(session)
        except SessionrunError as error:
            problem = {"code": error.exit_code, "message": " ".join(str(error).split())}
            whose = "" if session.session_id in str(error) else f"session {session.session_id}: "
            line = f"sessionrun: error: {whose}{escape_line(str(error))}"
            end = Answer({"session_id": session.session_id, "error": problem}, (), error.exit_code, [line])
        ends.append(end)
        if not is_json():
            end.print()
    if is_json():
        print_json({"sessions": [unversioned(end.record or {}) for end in ends]})
    return max(ends, key=lambda end: _RANKS.get(end.code, end.code)).code


_RANKS: Final = {EXIT_TIMEOUT: 1, EXIT_HELD: 1, EXIT_FAILED: 0.5}
"""Errors go before what is only unfinished, and that before a failed task."""

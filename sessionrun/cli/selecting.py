"""The options that choose sessions, and what a verb prints that is about several."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from sessionrun.cli.options import Answer, Decorator, Label, Since, Words, add_options, list_params, valued, verb
from sessionrun.cli.render import escape_line, print_json, session_head, unversioned
from sessionrun.client.lookup import STATES, Chosen, Wanted, choose_sessions
from sessionrun.client.reading.view import load_summary_view
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.store.session import SessionDir

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
        def run(words: tuple[str, ...], as_json: bool, results_dir: Path | None, **options: Any) -> int:
            chosen = choose_sessions(results_dir, words, reads=reads)
            context = click.get_current_context()
            for param in context.command.params if chosen.several else ():
                if param.name in lone and context.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
                    raise InputError(f"{name}: {param.opts[-1]} is about one session: name one")

            def act(session: SessionDir) -> Answer:
                if chosen.several and not (as_json or headed):
                    click.echo(f"{session_head(load_summary_view(session))}:", err=True)
                elif session is not chosen.sessions[0] and not as_json:
                    click.echo()
                return function(session, chosen.tasks, as_json=as_json, **options)

            return act_on_each(chosen, act, as_json=as_json)

        command = verb(name)(run)
        command.params[:0] = list_params(words)
        return command

    return decorate


def act_on_each(chosen: Chosen, act: Callable[[SessionDir], Answer], *, as_json: bool) -> int:
    """Do something to each session and print what became of it; the exit code.

    An error of one of several sessions is told with it, and the others go on.
    """
    if not chosen.several:
        return act(chosen.sessions[0]).print(as_json=as_json)
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
        if not as_json:
            end.print(as_json=False)
    if as_json:
        print_json({"sessions": [unversioned(end.record or {}) for end in ends]})
    return max(ends, key=lambda end: _RANKS.get(end.code, end.code)).code


_RANKS: Final = {EXIT_TIMEOUT: 1, EXIT_HELD: 1, EXIT_FAILED: 0.5}
"""Errors go before what is only unfinished, and that before a failed task."""

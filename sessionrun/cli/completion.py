"""`completion`: what a shell reads to complete words; and what it is offered: files, ids, names, tasks, agents.

A verb that polls does not load this.  An error offers nothing.  Must not know what verbs do: the name of
an argument says what it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

import click
from click.shell_completion import CompletionItem

from sessionrun.model.errors import SessionrunError

Items = list[CompletionItem[str]]
Source = Callable[[click.Context], Iterable[str]]


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print what SHELL has to read to complete words.  For bash and zsh a line in ~/.bashrc or ~/.zshrc:

    \b
        eval "$(sessionrun completion bash)"
    """
    from click.shell_completion import shell_complete

    shell_complete(context.find_root().command, {}, "sessionrun", "_SESSIONRUN_COMPLETE", f"{shell}_source")


def equip(command: click.Command) -> None:
    """Tell the parameters of a verb what they offer."""
    for param in command.params:
        if param.name in _SOURCES:
            source = _SOURCES[param.name]
            setattr(param, "shell_complete", partial(_complete, source))  # noqa: B010 - it is a method


def offer_files(incomplete: str) -> Items:
    """What makes the shell complete names of files."""
    return [CompletionItem(incomplete, type="file")]


def _complete(source: Source | None, context: click.Context, incomplete: str) -> Items:
    if source is None:
        return offer_files(incomplete)
    try:
        found = list(dict.fromkeys(source(context)))
    except (SessionrunError, OSError):
        return []
    return [CompletionItem(word) for word in found if word.startswith(incomplete)]


def _find_agents(_: click.Context) -> Iterable[str]:
    from sessionrun.client.installation import load_known

    return sorted(load_known().agents)


def _find_sessions(context: click.Context) -> Iterable[str]:
    from sessionrun.client.lookup import LAST, find_results_dir, load_summaries

    views = load_summaries(find_results_dir(context.params.get("results_dir")), everywhere=False)
    names = [view["name"] for view in views if view["name"]]
    return [LAST, *names, *(view["session_id"] for view in views)]


def _find_tasks(context: click.Context) -> Iterable[str]:
    from sessionrun.client.lookup import LAST, open_session
    from sessionrun.client.reading.view import load_view

    session_id = context.params.get("session_id") or next(iter(context.params.get("words") or ()), LAST)
    session = open_session(context.params.get("results_dir"), session_id)
    return [task["id"] for task in load_view(session)["tasks"]]


_SOURCES: Final[Mapping[str, Source | None]] = {
    **dict.fromkeys(("file", "files")),  # the shell knows them
    "session_id": _find_sessions,
    "session_ids": _find_sessions,
    "into": _find_sessions,
    "tasks": _find_tasks,
    "task": _find_tasks,
    "words": lambda context: (_find_tasks if context.params.get("words") else _find_sessions)(context),
    "agent": _find_agents,
    "fallback": _find_agents,
}

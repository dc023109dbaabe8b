"""The command line: one group of verbs, loaded when used, and the one place where errors become exit codes."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

import click

from sessionrun import __version__
from sessionrun.cli import interrupts
from sessionrun.cli.argv import (
    BY_FLAG,
    KNOWN,
    VERBS,
    expand_alias,
    find_first,
    hint_option,
    load_verb,
    refuse_mistyped_verb,
    rewrite_argv,
)
from sessionrun.cli.interrupts import EXIT_INTERRUPTED
from sessionrun.client.notices import SessionWarning, begin
from sessionrun.house import describe_lack
from sessionrun.model.errors import SessionrunError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

EXIT_BUG: Final = 3

_HELP: Final = """\
sessionrun runs AI coding agents in the background and says what came out.

{examples}

{verbs}

To look, no ID means the newest session.  An ID may be a name, `last`, a start.
Help: sessionrun VERB -h; sessionrun help TOPIC (checks, landing, money, ...),
      help examples, help all (each verb)      Manual: sessionrun man [VERB]
Exit: 0 ok  1 a task failed  2 bad input  3 internal  4 session's processes gone
      75 all that is left is held  124 time is up  130 Ctrl+C
"""
_EXAMPLES: Final = (
    ("landing", "  sessionrun demo                                    see it work; needs no agent"),
    ("", '  sessionrun -p "Fix the login" -p "Write tests"     start; returns at once'),
    ("landing", '  sessionrun plan.yaml --worktree --check "make test" --land --gate "make test"'),
    ("", "  sessionrun --sync tasks.json                       start, follow, print"),
)
"""The business that each needs, and its line."""

_HEADINGS: Final = {
    "Start": ("run (needs no name)", "retry", "continue", "resume"),
    "Look": ("status", "list", "watch", "results", "logs", "diff", "report"),
    "Why": ("explain", "cost", "doctor [agents]"),
    "Wait": ("wait ID --timeout 90       exit code 124: call again",),
    "Steer": ("cancel", "hold", "release", "set"),
    "Land": ("merge", "clean"),
    "Queue": ("queue add | list | work | split | take | ...",),
    "Other": ("serve", "mcp", "cluster", "precache", "config", "schema", "completion"),
}


class VerbGroup(click.Group):
    """Imports a verb's module when the verb is used, so that a poll starts fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the order of the manual."""
        return [*VERBS]  # `list` is here the module of a verb, once that is imported

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in KNOWN:
            return None
        command = load_verb(cmd_name)
        interrupts.watch()
        if ctx.resilient_parsing:
            from sessionrun.cli.completion import equip

            equip(command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As Click, but a shell that completes a word sees the verb that is left out."""
        completes = args and ctx.resilient_parsing
        return super().parse_args(ctx, rewrite_argv(expand_alias(args)) if completes else args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """What may be the first word: verbs, options of the default verb, files."""
        from sessionrun.cli.completion import offer_files

        items = super().shell_complete(ctx, incomplete)
        run = self.get_command(ctx, "run")
        if run is not None and incomplete.startswith("-"):
            with click.Context(run, parent=ctx, info_name="run", resilient_parsing=True) as context:
                return items + run.shell_complete(context, incomplete)
        return offer_files(incomplete) + items

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One small screen, without loading a verb, and without what needs a business that was taken out."""
        examples = (line for business, line in _EXAMPLES if not describe_lack(business))
        verbs = []
        for heading, entries in _HEADINGS.items():
            there = [words for words in entries if words.split()[0] in VERBS]
            verbs += [f"{heading:<8}{'  '.join(there)}"] if there else []
        formatter.write(_HELP.format(examples="\n".join(examples), verbs="\n".join(verbs)))


@click.group(cls=VerbGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
@click.version_option(__version__, "-v", "--version", message="sessionrun %(version)s")
def group() -> None:
    """Run AI coding agents in detached sessions: get an id, poll with `status`."""


def main(argv: Sequence[str] | None = None) -> int:
    gc.freeze()  # what was imported lives to the end: without this its destruction alone takes 4 ms of a poll
    given = expand_alias(sys.argv[1:] if argv is None else argv)
    words = rewrite_argv(given)
    _open_standard_streams()
    warnings.showwarning = _show_warning
    warnings.simplefilter("always", SessionWarning)
    begin()
    try:
        if words[:1] == ["run"]:
            refuse_mistyped_verb(given)
        place = 0 if given[:1] == words[:1] else find_first(given)  # which may have to load all verbs
        asked_by = BY_FLAG if given[place : place + 1] != words[:1] else None
        code = group.main(args=words, prog_name="sessionrun", standalone_mode=False, obj=asked_by)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (BrokenPipeError, SystemExit):  # Click makes a SystemExit of a broken pipe, and of nothing else
        return _leave_quietly()
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        return _tell(_usage_message(error, given, words), error.exit_code, words)
    except SessionrunError as error:
        return _tell(str(error), error.exit_code, words)
    except OSError as error:
        try:
            os.getcwd()
        except FileNotFoundError:
            return _tell("the current directory was deleted; cd to another one", 2, words)
        where = os.fsdecode(error.filename) if error.filename else "reading or writing"
        return _tell(f"{where}: {error.strerror or error}", EXIT_BUG, words)
    except MemoryError:
        return _tell("out of memory: raise its limit (ulimit -v), or name fewer tasks", EXIT_BUG, words)
    except Exception as error:
        if interrupts.was_pressed():
            return EXIT_INTERRUPTED
        import traceback

        traceback.print_exc()
        return _tell(f"this is a bug in sessionrun: {error!r}", EXIT_BUG, words)


def _open_standard_streams() -> None:
    """Callers may close 0, 1 or 2: whatever we open next would take their place.  No one reads us then."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, mode, closefd=False))
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """In the place of `warnings.showwarning`: one line, without the place in our code."""
    from sessionrun.cli.render import warn

    with suppress(OSError):  # as Python does: that no one can hear a warning changes nothing
        warn(str(message))


def _tell(message: str, code: int, words: Sequence[str]) -> int:
    from sessionrun.cli.render import escape, print_json

    line = " ".join(message.split())
    if "--json" in takewhile(lambda word: word != "--", words):  # Click may have parsed none of them
        try:
            print_json({"error": {"code": code, "message": line}})
            return code
        except OSError:
            _leave_quietly()  # then it is told as without --json
    try:
        click.echo(f"sessionrun: error: {escape(line)}", err=True)
        sys.stdout.flush()
    except OSError:
        _leave_quietly()  # it cannot be heard; the exit code remains
    return code


def _usage_message(error: click.ClickException, given: Sequence[str], words: Sequence[str]) -> str:
    message = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption):
        hint = hint_option(given, words, error)
        message = f"No such option '{error.option_name}'{hint}" if hint else message
    if message.startswith("Got unexpected extra argument"):
        message += "; put quotes around a value of several words"
        if isinstance(error, click.UsageError) and error.ctx is not None and error.ctx.command.name == "run":
            message += ", and -p before a prompt"
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{message} (see: {error.ctx.command_path} --help)"
    return message


def _leave_quietly() -> int:
    """The reader of our output left, which is its right; what is still buffered goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0

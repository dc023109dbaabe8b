"""What a setting is: one row says all of it, and all who take it from somewhere read that row.

`rows` is the table.  From it come the options of `run` and their help, keys of configuration files, variables,
arguments of the Python interface, which of them hold for a whole session, and which have no effect on an input.
Must not know where values come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args

from sessionrun.input.kinds import Kind, Misfit
from sessionrun.input.text import has_half_character
from sessionrun.model.errors import InputError, suggest
from sessionrun.model.frozen import frozen
from sessionrun.model.spec import SessionSpec

T = TypeVar("T")

Check = Callable[[SessionSpec, Any], "str | None"]
"""Why a value that was given has no effect on a spec; None: it has."""

Topic = Literal[
    "tasks", "worktrees", "agents", "checks", "landing", "limits", "money", "output", "cluster", "swebench"
]
TOPICS: Final[tuple[Topic, ...]] = get_args(Topic)


class Setting(NamedTuple):
    """One setting.

    Attributes:
        name: that of the field of a task, of a limit or of a session that it gives.
        kind: what it may be.
        help: a sentence for people, and its default.
        metavar: what its value is called in help; "" for a flag.
        topic: the page of help that has it.
        option: how the command line spells it, with spaces between; "": as the name; None: there is no option.
        also: other spellings, such as those of other programs, which help does not list.
        many: the option is repeated, and the value is a list; of "pairs" each word is KEY=VALUE.
        scope: of the whole "session", so that `run --into` refuses it; a default of each "task"; or "input": it
            says what is read, and how.
        keyed: a default of tasks that only formats take whose tasks have the keys of the native one.
        config: configuration files may say it.
        variables: those that may say it; of two the later one counts.
        format: the one input format that has it.
        first: the heading below which the first page of help has it; "": only the page of its topic.
        idle: says of a value that was given why it has no effect on a spec; None: it has.
        business: whose it is; "": the core's.  Where that was taken out, the setting is refused.
    """

    name: str
    kind: Kind[Any]
    help: str = ""
    metavar: str = ""
    topic: Topic = "tasks"
    option: str | None = ""
    also: tuple[str, ...] = ()
    many: Literal["", "words", "pairs"] = ""
    scope: Literal["session", "task", "input"] = "session"
    keyed: bool = False
    config: bool = False
    variables: tuple[str, ...] = ()
    format: str = ""
    first: str = ""
    idle: Check | None = None
    business: str = ""

    @property
    def shown(self) -> list[str]:
        """The spellings of its option that help lists, of a flag perhaps ``--yes/--no``."""
        own = f"--{self.name.removesuffix('_s').removesuffix('_usd').replace('_', '-')}"
        return [] if self.option is None else (self.option or own).split(" ")

    def spell(self, value: Any = None) -> str:
        """The option that says this value."""
        yes, _, no = next((word for word in self.shown if "--" in word), self.name).partition("/")
        return no if no and value is False else yes or no

    def read_word(self, word: str) -> Any:
        """What a word of the command line says, as a file would have it; of pairs, the key and its value.

        Whether that fits is for `read` to say.  Misfit: it is no text, or no pair.
        """
        if has_half_character(word):
            raise Misfit("is not text (UTF-8)")
        if self.many != "pairs":
            return self.kind.word(word)
        key, equals, value = word.partition("=")
        if not key or not (equals or "[=" in self.metavar):
            raise Misfit(f"{word!r}: write KEY=VALUE")
        return key, value

    def read(self, value: Any) -> Any:
        """The value, converted.

        Raises:
            InputError: it does not fit.
        """
        try:
            return self.kind(value)
        except Misfit as misfit:
            keys = (step for step in misfit.path if isinstance(step, str))
            raise InputError(": ".join((self.spell(value), *keys, misfit.problem))) from None


def read_values(known: Mapping[str, Setting], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that were given, converted; `known` are all settings.

    None, an empty list or map, and the False of a flag that has no word for it were not given.

    Raises:
        InputError: there is no such setting, or a value does not fit.
    """
    unknown = next((name for name in values if name not in known), None)
    if unknown is not None:
        raise InputError(f"there is no setting {unknown!r}{suggest(unknown, known)}")
    return {
        name: known[name].read(value)
        for name, value in values.items()
        if value not in (None, (), [], {}) and (value is not False or "/" in (known[name].option or ""))
    }


@frozen
class Options:
    """What is said beside the input, by the names of the settings.

    `given` are those of the command line or of a caller: they beat what the input says for all of its tasks,
    and give way to what one task says for itself.  `config` counts only where the input is silent.  `others` are
    ids of tasks of a running session to which these are added: a task may need them, too.  `stamp` is the moment
    of the launch, as a part of names.
    """

    given: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    others: frozenset[str] = frozenset()
    stamp: str = ""

    def choose(self, name: str, *of_input: T | None) -> T | Any | None:
        """The value that counts: the option, else the first that the input says, else the configuration's."""
        return first(self.given.get(name), *of_input, self.config.get(name))


def first(*values: T | None) -> T | None:
    """The first value that was said."""
    return next((value for value in values if value is not None), None)

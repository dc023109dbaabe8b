"""What people may write as one value, and what it becomes.

A converter takes a plain value (what JSON can say, never null) and returns the model's value or raises
`Misfit`.  Shared by dialects and configuration; must not know field names, files or formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar, get_args

from sessionrun.dialects.limits import quote
from sessionrun.model.keys import describe_id_problem
from sessionrun.model.kinds import MAX_MONEY
from sessionrun.model.reasons import OF_WORK
from sessionrun.model.spec import Alternative, Workspace, WorkspaceKind
from sessionrun.model.units import check_duration, parse_duration
from sessionrun.model.upstreams import check_ref, parse_repo

T = TypeVar("T")
Path = tuple[str | int, ...]

MIN_BUDGET: Final = 0.000001
"""US dollars; what is less would be 0 somewhere."""

_MAX_CHOICES: Final = 40
"""If another word was written, the message names so many of the words to choose from."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_FLAG_WORDS: Final = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


class Misfit(ValueError):
    """A value does not fit its field; `path` leads from the field's record to the value."""

    def __init__(self, problem: str, *path: str | int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path: Path = path

    def within(self, *outer: str | int) -> Misfit:
        """The same, seen from further out."""
        return Misfit(self.problem, *outer, *self.path)


def describe(value: Any) -> str:
    """Name a plain value in a message."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return f"the text {quote(value)}"
    if isinstance(value, (int, float)):
        return f"the number {_shown(value)}"
    if isinstance(value, (list, tuple)):
        return "a list"
    return "an object" if isinstance(value, Mapping) else f"a {type(value).__name__}"


def _shown(number: float) -> str:
    try:
        text = str(number)
    except ValueError:  # more digits than the interpreter converts
        return "of very many digits"
    return text if len(text) <= 40 else text[:40] + "..."


def as_line(value: Any) -> str:
    """Text on one line without control characters: a title, a name, a directory, a model."""
    if not isinstance(value, str):
        raise Misfit(f"must be text, not {describe(value)}")
    if not value.strip():
        raise Misfit("must not be empty")
    if _CONTROL.search(value):
        raise Misfit("must be one line without control characters")
    return value


def as_prompt(value: Any) -> str:
    """A prompt: any text but white space alone."""
    if not isinstance(value, str):
        raise Misfit(f"must be text, not {describe(value)}")
    if not value or value.isspace():
        raise Misfit("must not be empty")
    return value


def as_sole_prompt(value: Any) -> tuple[str, ...]:
    """One prompt, as the tuple that the model holds."""
    return (as_prompt(value),)


def as_prompts(value: Any) -> tuple[str, ...]:
    """A prompt, or a list of prompts that are given one after the other."""
    return _one_or_more(value, as_prompt)


def as_id(value: Any) -> str | None:
    """A task id; a whole number is taken as its digits; "" and 0 ask for a generated one (None)."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if value else ""
    if not isinstance(value, str):
        raise Misfit(f"must be text, not {describe(value)}")
    problem = describe_id_problem(value) if value else None
    if problem:
        raise Misfit(f"{quote(value)} {problem}")
    return value or None


def as_need(value: Any) -> str:
    """The id of another task."""
    task_id = as_id(value)
    if task_id is None:
        raise Misfit("must be the id of a task")
    return task_id


def as_needs(value: Any) -> tuple[str, ...]:
    """One id or a list of ids, each counted once."""
    return tuple(dict.fromkeys(_none_or_more(value, as_need)))


def as_alternatives(value: Any) -> tuple[Alternative, ...]:
    """Agents that may take over: ``agent`` or ``agent/model``, one or a list of them."""
    return tuple(_none_or_more(value, _as_alternative))


def _as_alternative(value: Any) -> Alternative:
    agent, _, model = as_line(value).partition("/")
    if not agent or value.endswith("/"):
        raise Misfit(f"must be an agent or agent/model, not {describe(value)}")
    return Alternative(agent, model or None)


def as_reason_classes(value: Any) -> tuple[str, ...]:
    """One reason class or a list of them, of those for which work can fail."""
    return tuple(_none_or_more(value, as_choice(OF_WORK)))


def as_command(value: Any) -> str:
    """A shell command: text without NUL."""
    command = as_prompt(value)
    if "\0" in command:
        raise Misfit("must not hold a NUL character")
    return command


def as_commands(value: Any) -> tuple[str, ...]:
    """One shell command or a list of them; an empty list means none."""
    return _none_or_more(value, as_command)


def as_links(value: Any) -> tuple[str, ...]:
    """One path or a list of paths; an empty list means none."""
    return _none_or_more(value, as_line)


def as_whole(minimum: int) -> Callable[[Any], int]:
    """Make a converter for whole numbers that are not below `minimum`."""
    return partial(to_whole, minimum)


def to_whole(minimum: int, value: Any) -> int:
    """A whole number that is not below `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise Misfit(f"must be a whole number, not {describe(value)}")
    if value < minimum:
        raise Misfit(f"must be {minimum} or more, not {_shown(value)}")
    return value


def as_limit(value: Any) -> int:
    """A number of tasks at a time; 0 means unlimited."""
    number = as_whole(-(2**53))(value)
    if number < 0:
        raise Misfit(f"must be 0 (unlimited) or more, not {_shown(number)}")
    return number


def as_duration(value: Any) -> float:
    """Seconds, from a number or from text such as "90s", "15m", "1h30m", "2d"; 0 means no limit."""
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return check_duration(value)
        return parse_duration(value if isinstance(value, str) else "")
    except ValueError as error:
        raise Misfit(f"{error}, not {describe(value)}") from None


def as_money(value: Any) -> float:
    """An amount of US dollars from 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Misfit(f"must be an amount in US dollars, not {describe(value)}")
    if not 0 <= value <= MAX_MONEY:
        raise Misfit(f"must lie between 0 and {MAX_MONEY} US dollars, not {describe(value)}")
    return float(value)


def as_budget(value: Any) -> float:
    """An amount of US dollars over 0 that may be spent."""
    amount = as_money(value)
    if amount < MIN_BUDGET:
        raise Misfit(f"must be {MIN_BUDGET} US dollars or more; leave it out for no limit")
    return amount


def as_amounts(value: Any) -> dict[str, int]:
    """Token names with amounts: a map, a list of names (one each), or one name."""
    if isinstance(value, Mapping):
        return {_token(name): _at(name, as_whole(1), amount) for name, amount in value.items()}
    amounts: dict[str, int] = {}
    for name in _none_or_more(value, _token):
        amounts[name] = amounts.get(name, 0) + 1
    return amounts


def as_capacities(value: Any) -> dict[str, int]:
    """Token names with how many of each there are."""
    return {_token(name): _at(name, as_whole(1), capacity) for name, capacity in as_record(value).items()}


def _token(value: Any) -> str:
    name = as_line(value)
    if name == "slot":
        raise Misfit('"slot" is what max_parallel counts, and every task holds one; use max_parallel')
    if name == "budget":
        raise Misfit('"budget" is what tasks wait for that find no money; give another name')
    return name


def as_environment(value: Any) -> dict[str, str]:
    """Environment variables: a map of text to text that the system can hold."""
    for name, text in as_record(value).items():
        if not name or "=" in name or "\0" in name:
            raise Misfit("is not a name for an environment variable", name)
        if not isinstance(text, str):
            raise Misfit(f"must be text, not {describe(text)}; quote it", name)
        if "\0" in text:
            raise Misfit("must not hold a NUL character", name)
    return dict(value)


def as_labels(value: Any) -> dict[str, str]:
    """Labels: a map of text to text; a key is not empty and holds no "="."""
    for name, text in as_record(value).items():
        if not name or "=" in name or _CONTROL.search(name):
            raise Misfit('is not a label: a key is one line of text without "="', name)
        if not isinstance(text, str):
            raise Misfit(f"must be text, not {describe(text)}; quote it", name)
        if _CONTROL.search(text):
            raise Misfit("must be one line without control characters", name)
    return dict(value)


def as_workspace(value: Any) -> Workspace:
    """A kind of workspace, or an object that holds one as ``kind``."""
    kinds = get_args(WorkspaceKind)
    kind = _nested("kind", as_record(value).get("kind"), as_line) if isinstance(value, Mapping) else as_line(value)
    if kind not in kinds:
        raise Misfit(f"must be one of {', '.join(kinds)}, not {quote(kind)}")
    return Workspace(kind)  # type: ignore[arg-type]


def as_repo(value: Any) -> str:
    """A repository: owner/name of GitHub, a URL, a path or a bundle."""
    text = as_line(value)
    try:
        return parse_repo(text)
    except ValueError as error:
        raise Misfit(f"{error}, not {describe(value)}") from None


def as_ref(value: Any) -> str:
    """A branch, tag or commit."""
    text = as_line(value)
    try:
        return check_ref(text)
    except ValueError as error:
        raise Misfit(f"{error}, not {describe(value)}") from None


def as_flag(value: Any) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise Misfit(f"must be true or false, not {describe(value)}")
    return value


def as_choice(choices: Sequence[str]) -> Callable[[Any], str]:
    """Make a converter for one of a few words."""
    return partial(to_choice, choices)


def to_choice(choices: Sequence[str], value: Any) -> str:
    """One of these words."""
    if value not in choices:
        shown = choices if len(choices) <= _MAX_CHOICES else (*choices[:_MAX_CHOICES], "...")
        raise Misfit(f"must be one of {', '.join(shown)}, not {describe(value)}")
    return str(value)


def as_argv(value: Any) -> tuple[str, ...]:
    """Arguments of a program: a list of text; none is a shell's business."""
    if not isinstance(value, list):
        raise Misfit(f"must be a list of text, not {describe(value)}")
    for index, element in enumerate(value):
        if not isinstance(element, str):
            raise Misfit(f"must be text, not {describe(element)}", index)
        if "\0" in element:
            raise Misfit("must not hold a NUL character", index)
    return tuple(value)


def as_command_line(value: Any) -> tuple[str, ...]:
    """Arguments that begin with a program."""
    argv = as_argv(value)
    if not argv or not argv[0].strip():
        raise Misfit("must begin with a program")
    return argv


def as_flag_word(text: str) -> bool:
    """A flag in an environment variable."""
    if text.lower() not in _FLAG_WORDS:
        raise Misfit(f"must be 1 or 0, not {quote(text)}")
    return _FLAG_WORDS[text.lower()]


def as_limit_word(text: str) -> int:
    """A number of tasks in an environment variable; 0 means unlimited."""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise Misfit(f"must be a whole number, 0 (unlimited) or more, not {quote(text)}")
    return int(text)


def as_record(value: Any) -> Mapping[str, Any]:
    """An object, whatever it holds."""
    if not isinstance(value, Mapping):
        raise Misfit(f"must be an object, not {describe(value)}")
    return value


def _at(step: str | int, convert: Callable[[Any], T], value: Any) -> T:
    try:
        return convert(value)
    except Misfit as misfit:
        raise misfit.within(step) from None


def _nested(key: str, value: Any, convert: Callable[[Any], T]) -> T:
    if value is None:
        raise Misfit(f'needs "{key}"')
    return _at(key, convert, value)


def _none_or_more(value: Any, convert: Callable[[Any], T]) -> tuple[T, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(_at(i, convert, element) for i, element in enumerate(value))
    if isinstance(value, Mapping):
        raise Misfit("must be text or a list of text, not an object")
    return (convert(value),)


def _one_or_more(value: Any, convert: Callable[[Any], T]) -> tuple[T, ...]:
    values = _none_or_more(value, convert)
    if not values:
        raise Misfit("must not be an empty list")
    return values

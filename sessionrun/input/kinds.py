"""What people may write as one value, what it becomes, and the JSON Schema of what is taken.

A `Kind` takes a plain value (what JSON can say, never null) and returns the model's value or raises `Misfit`.  The
schema is wider: what one value alone does not show (ids, needs, paths) is the reader's to refuse.  Shared by
input and configuration; must not know field names, files or formats.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, TypeVar, get_args

from sessionrun.input.text import quote, shorten
from sessionrun.model.keys import describe_id_problem
from sessionrun.model.kinds import MAX_MONEY
from sessionrun.model.places import check_ref, is_path, parse_repo
from sessionrun.model.spec import Alternative
from sessionrun.model.units import MAX_LOAD, check_duration, parse_duration, parse_size
from sessionrun.model.words import END_OF_TIME, OF_WORK

T = TypeVar("T")
U = TypeVar("U")
Path = tuple[str | int, ...]
Schema = dict[str, Any]

MIN_BUDGET: Final = 0.000001
"""US dollars; what is less would be 0 somewhere."""

_MAX_CHOICES: Final = 40
"""If another word was written, the message names so many of the words to choose from."""

MOST_DIGITS: Final = 15
_NUMBER: Final = re.compile(rf"-?\d{{1,{MOST_DIGITS}}}(\.\d{{0,{MOST_DIGITS}}})?", re.ASCII)

_FLAG_WORDS: Final = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}

_CONTROL: Final = r"[\x00-\x1f\x7f]"
_ONE_LINE: Final = "must be one line without control characters"


class Misfit(ValueError):
    """A value does not fit its field; `path` leads from the field's record to the value."""

    def __init__(self, problem: str, *path: str | int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path: Path = path

    def within(self, *outer: str | int) -> Misfit:
        """The same, seen from further out."""
        return Misfit(self.problem, *outer, *self.path)


@dataclass(frozen=True)
class Kind(Generic[T]):
    """Reads a value, or raises Misfit; `schema` tells other programs what is taken.

    `table` are the fields of an object, and `name` is that of its schema, where the value may be one.  `word`
    makes the value of a word of the command line or of a variable, which is text, whatever is meant.
    """

    read: Callable[[Any], T]
    schema: Schema
    name: str = ""
    table: Mapping[str, Any] = field(default_factory=dict)
    word: Callable[[str], Any] = str

    def __call__(self, value: Any) -> T:
        return self.read(value)

    def then(self, make: Callable[[T], U]) -> Kind[U]:
        return Kind(lambda value: make(self.read(value)), self.schema)


def takes(schema: Schema, word: Callable[[str], Any] = str) -> Callable[[Callable[[Any], T]], Kind[T]]:
    """Make a kind of a function that reads it."""
    return lambda read: Kind(read, schema, word=word)


def read_number(word: str) -> Any:
    """The number that a word spells, else the word: what is wrong with it the kind says."""
    if not _NUMBER.fullmatch(word):
        return word
    return float(word) if "." in word else int(word)


def _read_dollars(word: str) -> Any:
    return read_number(word.removeprefix("$"))


def read_flag(word: str) -> bool:
    """true or false, as people write it into a variable."""
    if word.lower() not in _FLAG_WORDS:
        raise Misfit(f"must be 1 or 0, not {quote(word)}")
    return _FLAG_WORDS[word.lower()]


def reference(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def one_or_more(schema: Schema, least: int = 0) -> Schema:
    """The schema of one such value, or a list of them."""
    return {"anyOf": [schema, {"type": "array", "items": schema, "minItems": least}]}


def map_of(schema: Schema) -> Schema:
    """The schema of an object with any keys and such values."""
    return {"type": "object", "additionalProperties": schema}


TEXT: Final[Schema] = {"type": "string", "minLength": 1}
NUMBER: Final[Schema] = {"type": "number", "minimum": 0}
_AMOUNT: Final[Schema] = {"type": "integer", "minimum": 1}
_ID: Final[Schema] = {"anyOf": [{"type": "string", "maxLength": 128}, {"type": "integer"}]}


def several(kind: Kind[T], least: int = 0, *, once: bool = False) -> Kind[tuple[T, ...]]:
    """One value of a kind, or a list of at least so many; with `once` each counts once."""

    def read(value: Any) -> tuple[T, ...]:
        if isinstance(value, Mapping):
            raise Misfit("must be text or a list of text, not an object")
        if not isinstance(value, (list, tuple)):
            return (kind(value),)
        values = tuple(at(index, kind, element) for index, element in enumerate(value))
        if len(values) < least:
            raise Misfit("must not be an empty list")
        return tuple(dict.fromkeys(values)) if once else values

    return Kind(read, one_or_more(kind.schema, least))


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
        return shorten(str(number))
    except ValueError:  # more digits than the interpreter converts
        return "of very many digits"


def _of_type(kind: type[Any], words: str, schema: Schema, word: Callable[[str], Any] = str) -> Kind[Any]:
    """Any value of a type, which `words` name."""

    @takes(schema, word)
    def read(value: Any) -> Any:
        if not isinstance(value, kind):
            raise Misfit(f"must be {words}, not {describe(value)}")
        return value

    return read


as_text: Final[Kind[str]] = _of_type(str, "text", {"type": "string"})
as_flag: Final[Kind[bool]] = _of_type(bool, "true or false", {"type": "boolean"}, read_flag)
as_record: Final[Kind[Mapping[str, Any]]] = _of_type(Mapping, "an object", {"type": "object"})


@takes(TEXT)
def as_prompt(value: Any) -> str:
    """A prompt: any text but white space alone."""
    text = as_text(value)
    if not text.strip():
        raise Misfit("must not be empty")
    return text


@takes(TEXT)
def as_line(value: Any) -> str:
    """Text on one line without control characters: a title, a name, a directory, a model."""
    text = as_prompt(value)
    if re.search(_CONTROL, text):
        raise Misfit(_ONE_LINE)
    return text


as_sole_prompt: Final = as_prompt.then(lambda prompt: (prompt,))
"""One prompt, as the tuple that the model holds."""

as_prompts: Final = several(as_prompt, 1)
"""A prompt, or a list of prompts that are given one after the other."""


@takes(_ID)
def as_id(value: Any) -> str | None:
    """A task id; a whole number is taken as its digits; "" and 0 ask for a generated one (None)."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if value else ""
    text = as_text(value)
    problem = describe_id_problem(text) if text else None
    if problem:
        raise Misfit(f"{quote(text)} {problem}")
    return text or None


@takes(_ID)
def as_need(value: Any) -> str:
    """The id of another task."""
    task_id = as_id(value)
    if task_id is None:
        raise Misfit("must be the id of a task")
    return task_id


@takes(TEXT)
def as_alternative(value: Any) -> Alternative:
    """An agent that may take over: ``agent`` or ``agent/model``."""
    agent, _, model = as_line(value).partition("/")
    if not agent or value.endswith("/"):
        raise Misfit(f"must be an agent or agent/model, not {describe(value)}")
    return Alternative(agent, model or None)


@takes({"type": "string"})
def _as_argument(value: Any) -> str:
    if "\0" in (text := as_text(value)):
        raise Misfit("must not hold a NUL character")
    return text


as_command: Final = as_prompt.then(_as_argument)
"""A shell command: text without NUL."""

as_needs: Final = several(as_need, once=True)
as_alternatives: Final = several(as_alternative)
as_commands: Final = several(as_command)
as_links: Final = several(as_line)


def as_whole(minimum: int, means: str = "") -> Kind[int]:
    """Whole numbers that are not below `minimum`; what that one `means` is told."""

    @takes({"type": "integer", "minimum": minimum}, read_number)
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise Misfit(f"must be a whole number, not {describe(value)}")
        if value >= 10**MOST_DIGITS:  # Python writes no number of thousands of digits
            raise Misfit(f"must be a whole number of at most {MOST_DIGITS} digits")
        if value < minimum:
            raise Misfit(f"must be {minimum}{means} or more, not {_shown(value)}")
        return value

    return read


as_limit: Final = as_whole(0, " (unlimited)")
"""A number of tasks at a time; 0 means unlimited."""


@takes({"anyOf": [NUMBER, TEXT]})
def as_duration(value: Any) -> float:
    """Seconds, from a number or from text such as "90s", "15m", "1h30m", "2d"; 0 means no limit."""
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return check_duration(value)
        return parse_duration(value if isinstance(value, str) else "")
    except ValueError as error:
        raise Misfit(f"{error}, not {describe(value)}") from None


def as_number(
    what: str, least: float, most: float, schema: Schema, word: Callable[[str], Any] = read_number
) -> Kind[float]:
    """Numbers within these bounds; `what` they are is told where another value was written."""

    @takes(schema, word)
    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
            raise Misfit(f"must be {what}, not {describe(value)}")
        return float(value)

    return read


as_moment: Final = as_number("seconds since the epoch, up to the year 9998", 0, END_OF_TIME - 1, NUMBER)
as_load: Final = as_number("a load such as 8 or 7.5", 0, MAX_LOAD, NUMBER)
"""A load of the machine; 0 means that any is right."""


as_money: Final = as_number(f"an amount from 0 to {MAX_MONEY} US dollars", 0, MAX_MONEY, NUMBER, _read_dollars)


@takes({"type": "number", "exclusiveMinimum": 0}, _read_dollars)
def as_budget(value: Any) -> float:
    """An amount of US dollars over 0 that may be spent."""
    amount = as_money(value)
    if amount < MIN_BUDGET:
        raise Misfit(f"must be {MIN_BUDGET} US dollars or more; leave it out for no limit")
    return amount


@takes({"anyOf": [map_of(_AMOUNT), *one_or_more(TEXT)["anyOf"]]})
def as_amounts(value: Any) -> dict[str, int]:
    """Token names with amounts: a map, a list of names (one each), or one name."""
    return as_capacities(value) if isinstance(value, Mapping) else dict(Counter(several(_token)(value)))


@takes(map_of(_AMOUNT))
def as_capacities(value: Any) -> dict[str, int]:
    """Token names with how many of each there are."""
    return {_token(name): at(name, as_whole(1), capacity) for name, capacity in as_record(value).items()}


@takes(TEXT)
def _token(value: Any) -> str:
    name = as_line(value)
    if name == "slot":
        raise Misfit('"slot" is what max_parallel counts, and every task holds one; use max_parallel')
    if name == "budget":
        raise Misfit('"budget" is what tasks wait for that find no money; give another name')
    return name


def _texts(bad_name: str, name_problem: str, bad_text: str, text_problem: str) -> Kind[dict[str, str]]:
    """Maps of text to text, without names and texts in which these patterns are found."""

    @takes(map_of({"type": "string"}))
    def read(value: Any) -> dict[str, str]:
        for name, text in as_record(value).items():
            if not name or re.search(bad_name, name):
                raise Misfit(name_problem, name)
            if not isinstance(text, str):
                raise Misfit(f"must be text, not {describe(text)}; quote it", name)
            if re.search(bad_text, text):
                raise Misfit(text_problem, name)
        return dict(value)

    return read


as_environment: Final = _texts(
    r"[=\0]", "is not a name for an environment variable", r"\0", "must not hold a NUL character"
)
as_labels: Final = _texts(
    rf"=|{_CONTROL}", 'is not a label: a key is one line of text without "="', _CONTROL, _ONE_LINE
)


def _read_line(parse: Callable[[str], str], value: Any) -> str:
    text = as_line(value)
    try:
        return parse(text)
    except ValueError as error:
        raise Misfit(f"{error}, not {describe(value)}") from None


as_repo: Final = Kind(partial(_read_line, parse_repo), TEXT)
"""A repository: owner/name of GitHub, a URL, a path or a bundle."""

as_ref: Final = Kind(partial(_read_line, check_ref), TEXT)
"""A branch, tag or commit."""


def as_choice(choices: Sequence[str]) -> Kind[Any]:
    @takes({"enum": list(choices)})
    def read(value: Any) -> str:
        if value not in choices:
            shown = choices if len(choices) <= _MAX_CHOICES else (*choices[:_MAX_CHOICES], "...")
            raise Misfit(f"must be one of {', '.join(shown)}, not {describe(value)}")
        return str(value)

    return read


def as_word(words: Any) -> Kind[Any]:
    """One of the words of a literal type."""
    return as_choice(get_args(words))


as_reason_classes: Final = several(as_choice(OF_WORK))
"""One reason class or a list of them, of those for which work can fail."""


@takes({"type": "array", "items": {"type": "string"}})
def as_argv(value: Any) -> tuple[str, ...]:
    """Arguments of a program: a list of text; none is a shell's business."""
    if not isinstance(value, list):
        raise Misfit(f"must be a list of text, not {describe(value)}")
    return tuple(at(index, _as_argument, element) for index, element in enumerate(value))


@takes({"type": "array", "items": {"type": "string"}, "minItems": 1})
def as_command_line(value: Any) -> tuple[str, ...]:
    """Arguments that begin with a program."""
    argv = as_argv(value)
    if not argv or not argv[0].strip():
        raise Misfit("must begin with a program")
    return argv


def as_list(least: int = 0, **schema: Any) -> Kind[list[Any]]:
    """A list of at least so many values, not looked into."""

    @takes({"type": "array", **schema, "minItems": least})
    def read(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise Misfit(f"must be a list, not {describe(value)}")
        if len(value) < least:
            raise Misfit("must not be an empty list")
        return list(value)

    return read


def at(step: str | int, convert: Callable[[Any], T], value: Any) -> T:
    """The model's value of one value of a list or an object."""
    try:
        return convert(value)
    except Misfit as misfit:
        raise misfit.within(step) from None


@takes({"anyOf": [{"type": "integer", "minimum": 0}, TEXT]})
def as_size(value: Any) -> int:
    """An amount of bytes: a whole number, or text with a unit; 0 means that any is right."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    try:
        return parse_size(value if isinstance(value, str) else "")
    except ValueError:
        raise Misfit(f'must be bytes or text such as "500M", "20G", not {describe(value)}') from None


@takes(TEXT)
def as_project_path(value: Any) -> str:
    """A path that stays inside of the project, without detours."""
    path = as_line(value)
    if path.startswith(("/", "~")):
        raise Misfit(f"must be a path inside of the project, not {describe(value)}")
    normal = posixpath.normpath(path)
    if normal == ".." or normal.startswith("../"):
        raise Misfit(f"leads out of the project: {describe(value)}")
    return normal


as_project_paths: Final = several(as_project_path, once=True)


def resolve(directory: str, path: str) -> str:
    """A path made absolute; it counts from a directory."""
    return os.path.normpath(os.path.join(directory, os.path.expanduser(path)))


def resolve_repo(directory: str, repo: str) -> str:
    """The name of a repository (see `model.places.parse_repo`) that can be used from anywhere."""
    return resolve(directory, repo) if is_path(repo) else repo


def resolve_paths(directory: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a task, with those made absolute that name a place; they count from a directory."""
    known = {"cwd": resolve, "repo": resolve_repo}
    return {name: known[name](directory, value) if name in known else value for name, value in values.items()}

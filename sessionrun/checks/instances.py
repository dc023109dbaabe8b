"""Instances of SWE-bench: one issue of one repository each, and which of them are to run.

Owns the keys of an instance and the choice among instances.  Must not know what an instance becomes, nor files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from sessionrun.input.formats import keep_letters
from sessionrun.input.kinds import Misfit, as_command, as_id, as_prompt, as_ref, as_repo, as_text, describe
from sessionrun.input.parse import Document
from sessionrun.input.reading import Field, Reading, Spot
from sessionrun.input.text import Breach, parse_json, plain, quote
from sessionrun.model.errors import InputError, suggest
from sessionrun.model.frozen import frozen

HEAD: Final = "HEAD"


@frozen
class Instance:
    """One instance; texts that it lacks are empty.  Its own fix is not kept."""

    instance_id: str
    repo: str
    problem_statement: str = field(repr=False)
    base_commit: str = HEAD
    hints_text: str = field(default="", repr=False)
    test_patch: str = field(default="", repr=False)
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    version: str = ""
    test_cmd: str | None = None


def as_patch(value: Any) -> str:
    """A patch of git, or none; as git needs it: its headers end as lines do here, and so does its last line."""
    text = as_text(value)
    if not text.strip():
        return ""
    head = re.search(r"^(?:diff --git |--- ).*(?:\n|\Z)", text, re.MULTILINE)
    if head is None:
        raise Misfit('must be a patch: no line of it begins with "diff --git" or "---"')
    if head[0].endswith("\r\n"):  # of a patch to such a file only the content does
        text = text.replace("\r\n", "\n")
    return text if text.endswith("\n") else f"{text}\n"


def as_test_ids(value: Any) -> tuple[str, ...]:
    """A list of ids of tests, or the same in a text: as JSON, or as Python writes it."""
    if isinstance(value, str):
        try:
            value = parse_json(value) if value.strip() else []
        except Breach as breach:
            from ast import literal_eval

            try:
                value = literal_eval(value)
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                raise Misfit(f"must be a list of text, or one as JSON in a text: {breach.problem}") from None
    if not isinstance(value, list):
        raise Misfit(f"must be a list of text, or one as JSON in a text, not {describe(value)}")
    for index, test_id in enumerate(value):
        if not isinstance(test_id, str) or not test_id.strip() or "\0" in test_id:
            raise Misfit(f"must be the id of a test, not {describe(test_id)}", index)
    return tuple(dict.fromkeys(value))


def as_instance_id(value: Any) -> str:
    """An id that may be a task's."""
    instance_id = as_id(value)
    if instance_id is None:
        raise Misfit("must not be empty")
    if instance_id in ("summary", "predictions"):
        raise Misfit(f"{quote(instance_id)} is the name of another file of results")
    return instance_id


def as_repo_name(value: Any) -> str:
    """A repository's name, as it was written."""
    as_repo(value)
    return str(value)


def as_version(value: Any) -> str:
    """A version: text, or a number that was meant as text."""
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else as_text(value)


FIELDS: Final[Mapping[str, Field]] = {
    "instance_id": Field("instance_id", as_instance_id),
    "repo": Field("repo", as_repo_name),
    "base_commit": Field("base_commit", as_ref),
    "problem_statement": Field("problem_statement", as_prompt),
    "hints_text": Field("hints_text", as_text),
    "patch": Field("patch", as_text),
    "test_patch": Field("test_patch", as_patch),
    "FAIL_TO_PASS": Field("fail_to_pass", as_test_ids),
    "PASS_TO_PASS": Field("pass_to_pass", as_test_ids),
    "version": Field("version", as_version),
    "environment_setup_commit": Field("environment_setup_commit", as_text),
    "created_at": Field("created_at", as_version),
    "difficulty": Field("difficulty", as_version),
    "test_cmd": Field("test_cmd", as_command),
}
"""The keys of an instance; of some nothing is kept."""


_BY_LETTERS: Final[Mapping[str, str]] = {keep_letters(key): key for key in FIELDS}
"""A key may be in whatever letters, with whatever between its words."""


def read_instances(reading: Reading, document: Document) -> list[Instance]:
    """All instances of a document, in order.

    Raises:
        InputError: a value that does not fit, a key that is missing, or an id that is used twice; with its place.
    """
    value = document.value
    entries = value if isinstance(value, list) else [value]
    if not entries:
        raise reading.error(Spot(), Misfit("there is no instance in it"))
    instances, seen = [], dict[str, Spot]()
    for index, entry in enumerate(entries):
        spot = Spot((), document.lines[index]) if document.lines else Spot((index,) if entries is value else ())
        instance = _read_instance(reading, spot, entry)
        twin = seen.setdefault(instance.instance_id.casefold(), spot)
        if twin is not spot:
            problem = f"{quote(instance.instance_id)} is used twice, first by {twin.text()}"
            raise reading.error(spot, Misfit(problem, "instance_id"))
        instances.append(instance)
    return instances


def _read_instance(reading: Reading, spot: Spot, entry: Any) -> Instance:
    if not isinstance(entry, dict):
        raise reading.error(spot, Misfit(f"must be an instance, an object, not {describe(entry)}"))
    named: dict[str, Any] = {}
    for key, value in entry.items():
        name = _BY_LETTERS.get(keep_letters(key), key)
        if name in named:
            raise reading.error(spot, Misfit(f"{quote(key)} is {quote(name)} again: leave one of them out"))
        named[name] = value
    # without these an agent would work, and nothing could judge it as the file says
    judging = ("FAIL_TO_PASS", "PASS_TO_PASS", "test_patch", "base_commit")
    lacking = [key for key in judging if key not in named]
    for key in named:
        if key not in FIELDS and (hint := suggest(key, lacking)):
            raise reading.error(spot, Misfit(f"unknown key {quote(key)}{hint}"))
    values = reading.read(spot, named, FIELDS)
    for key in ("instance_id", "repo", "problem_statement"):
        if key not in values:
            raise reading.error(spot, Misfit(f'has no "{key}"'))
    for key in ("patch", "environment_setup_commit", "created_at", "difficulty"):
        values.pop(key, None)
    return Instance(**values)


def choose_instances(instances: Sequence[Instance], own: Mapping[str, Any], name: str) -> list[Instance]:
    """Those that are to run by the options, in their order, which a seed `shuffle` changes.

    Raises:
        InputError: an id that there is not, a pattern that is not one, or nothing is left.
    """
    by_id = {instance.instance_id: instance for instance in instances}
    ids = own.get("instance", ())
    for wanted in ids:
        if wanted not in by_id:
            raise InputError(f"{plain(name)}: no instance {quote(wanted)}{suggest(wanted, by_id)}")
    try:
        pattern = re.compile(own.get("filter") or "")
    except re.error as error:
        raise InputError(f"--filter {quote(own['filter'])} is not a regular expression: {error}") from None
    chosen = [one for one in instances if not ids or one.instance_id in ids]
    chosen = [one for one in chosen if pattern.search(one.instance_id)]
    if own.get("shuffle") is not None:
        from random import Random

        Random(own["shuffle"]).shuffle(chosen)
    chosen = chosen[own.get("start") or 0 :][: own.get("sample")]
    if not chosen:
        what = "--start, --sample, --instance and --filter leave none" if instances else "there is none"
        raise InputError(f"{plain(name)}: no instance to run: {what} of {len(instances)}")
    return chosen

"""Markdown job files: YAML front matter between two lines ``---``, what is to be done, which waits for which.

A file waits as it states, and by the files that it and others read and write.

Owns the keys of the front matter and where in the file a problem lies.  Must not know other job files.

Explicit edges hold.  An edge that follows from files is taken only where it closes no circle, so such edges never
make one; of two job files that each read what the other writes, the one whose id comes first goes first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sessionrun.input.kinds import (
    Misfit,
    Path,
    as_choice,
    as_flag,
    as_line,
    as_needs,
    as_project_path,
    as_project_paths,
    as_ref,
    as_repo,
    describe,
)
from sessionrun.input.limits import Breach
from sessionrun.input.parse import decode
from sessionrun.input.reading import Field, Spot, read_fields
from sessionrun.input.strict_yaml import parse_yaml
from sessionrun.model.errors import InputError, suggest
from sessionrun.model.frozen import frozen

MODES: Final = ("replace", "edit", "split", "replace_pattern", "update_fixtures")

_FENCE: Final = "---"
_HEADING: Final = re.compile(r"#{1,6}\s+(.*?)\s*#*\s*$")


@frozen
class JobFile:
    """What a job file says; `name` begins messages, `lines` says where each key stands."""

    id: str
    name: str
    fields: Mapping[str, Any]
    body: str
    lines: Mapping[str, int]

    def error(self, key: str, problem: str) -> InputError:
        """What is wrong with a key, and on which line of the file."""
        return InputError(f"{self.name}: {Spot((key,), self.lines.get(key, 1)).text()}: {problem}")

    @property
    def title(self) -> str:
        """The first heading, else the id."""
        headings = (_HEADING.match(line) for line in self.body.splitlines())
        return next((match[1] for match in headings if match and match[1].isprintable() and match[1]), self.id)


def parse_job_file(job_id: str, name: str, raw: bytes, warnings: list[str]) -> JobFile:
    """Read a job file; unknown keys are added to `warnings`.

    Raises:
        InputError: with the file and the line of the first problem.
    """
    text = decode(raw, name).replace("\r\n", "\n")
    front, body = _split(name, text)
    try:
        record = parse_yaml(front)
    except Breach as breach:
        assert breach.line is not None  # what is wrong in YAML has a place
        raise InputError(f"{name}: line {breach.line + 1}, column {breach.column}: {breach.problem}") from None
    if record is None:
        record = {}
    if not isinstance(record, dict):
        raise InputError(f"{name}: line 2: front matter must be keys with values, not {describe(record)}")
    lines = _find_lines(front, record)
    unknown: list[Path] = []
    try:
        fields = read_fields(record, FIELDS, unknown)
    except Misfit as misfit:
        line = lines.get(str(misfit.path[0]), 1) if misfit.path else 1
        raise InputError(f"{name}: {Spot(misfit.path, line).text()}: {misfit.problem}") from None
    for path in unknown:
        key = str(path[0])
        warnings.append(f"{name}: line {lines[key]}: unknown key {key}, ignored{suggest(key, FIELDS)}")
    return JobFile(job_id, name, fields, body, lines)


def _split(name: str, text: str) -> tuple[str, str]:
    first, _, rest = text.partition("\n")
    if first.rstrip() != _FENCE:
        raise InputError(f"{name}: line 1: a job file begins with front matter: a line ---, keys, and a line ---")
    lines = rest.split("\n")
    end = next((number for number, line in enumerate(lines) if line.rstrip() == _FENCE), None)
    if end is None:
        raise InputError(f"{name}: line {len(lines) + 1}: the front matter does not end: add a line ---")
    body = "\n".join(lines[end + 1 :]).strip()
    if not body:
        raise InputError(f"{name}: line {end + 3}: nothing behind the front matter says what is to be done")
    return "\n".join(lines[:end]) + "\n", body


def _find_lines(front: str, keys: Mapping[str, Any]) -> dict[str, int]:
    lines = dict.fromkeys(keys, 1)
    for number, line in enumerate(front.split("\n"), 2):
        key = line.partition(":")[0].strip("\"' ")
        if not line[:1].isspace() and lines.get(key) == 1:
            lines[key] = number
    return lines


FIELDS: Final[Mapping[str, Field]] = {
    "mode": Field("mode", as_choice(MODES)),
    "context_files": Field("context_files", as_project_paths),
    "target_files": Field("target_files", as_project_paths),
    "target_file": Field("target_file", as_project_path),
    "output_dir": Field("output_dir", as_project_path),
    "output_file": Field("output_file", as_project_path),
    "output_files": Field("output_files", as_project_paths),
    "sequential": Field("sequential", as_flag),
    "test_file": Field("test_file", as_project_path),
    "verify": Field("verify", as_flag),
    "depends_on": Field("depends_on", as_needs),
    "struct_name": Field("struct_name", as_line),
    "new_field": Field("new_field", as_line),
    "repo": Field("repo", as_repo),
    "ref": Field("ref", as_ref),
}
"""The keys of the front matter."""


@frozen
class Node:
    """One job file: the ids it names, the files it is shown or changes, and those it writes."""

    id: str
    needs: tuple[str, ...]
    reads: frozenset[str]
    writes: frozenset[str]


def derive_edges(nodes: Iterable[Node]) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """All needs by id, and a line for each edge that was not taken because others stand against it.

    Edges along the order of ids come first; of several writers of a file the last one, for it mostly waits for the
    others.  An edge that follows from other edges is left out: many job files that write one file would need each
    other.
    """
    by_id = {node.id: node for node in nodes}
    needs = {node.id: [*node.needs] for node in by_id.values()}
    writers: dict[str, list[str]] = {}
    for name in sorted(by_id, reverse=True):
        for path in by_id[name].writes:
            writers.setdefault(path, []).append(name)
    refused = []
    for ahead in (True, False):
        for name in sorted(by_id):
            node, waits, tried = by_id[name], _find_waits(needs, name), {name}
            for path in sorted(node.reads if ahead else node.reads - node.writes):  # writers are in order by then
                for earlier in writers.get(path, ()):
                    if earlier in tried or earlier in waits or (earlier < name) is not ahead:
                        continue
                    tried.add(earlier)
                    if name not in (beyond := _find_waits(needs, earlier)):
                        needs[name].append(earlier)
                        waits |= {earlier, *beyond}
                    elif not (node.writes & by_id[earlier].reads):  # else the same edge holds the other way round
                        uses = f"{name} uses {path}, which {earlier} writes after it"
                        refused.append(f"{uses}: it gets the file as it is before")
    return {name: tuple(wanted) for name, wanted in needs.items()}, refused


def _find_waits(needs: Mapping[str, Sequence[str]], name: str) -> set[str]:
    """All that a job file waits for, through others too."""
    found: set[str] = set()
    ways = [*needs[name]]
    while ways:
        if (at := ways.pop()) not in found:
            found.add(at)
            ways += needs[at]
    return found

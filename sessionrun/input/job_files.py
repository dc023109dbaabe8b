"""Markdown job files: YAML front matter between two lines ``---``, what is to be done, which waits for which.

A file waits as it states, and by the files that it and others read and write.

Owns the keys of the front matter and where in the file a problem lies; and the files around job files:
``worksplit.toml``, the words of ``_jobstatus.json``, and system prompts.

Explicit edges hold.  An edge that follows from files is taken only where it closes no circle, so such edges never
make one; of two job files that each read what the other writes, the one whose id comes first goes first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Final

from sessionrun.input import kinds
from sessionrun.input.parse import decode, parse_toml
from sessionrun.input.reading import Field, Reading, Spot, read_fields, table
from sessionrun.input.text import Breach, parse_json, parse_yaml
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

    def error(self, problem: str, *path: str | int) -> InputError:
        """What is wrong with the value at a path, whose key stands on a line of the file."""
        line = self.lines.get(str(path[0]), 1) if path else 1
        return InputError(f"{self.name}: {Spot(path, line).text()}: {problem}")

    @property
    def needs(self) -> tuple[str, ...]:
        needs: tuple[str, ...] = self.fields.get("depends_on", ())
        return needs

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
        raise InputError(f"{name}: line 2: front matter must be keys with values, not {kinds.describe(record)}")
    job_file = JobFile(job_id, name, {}, body, _find_lines(front, record))
    try:
        fields, unknown = read_fields(record, FIELDS)
    except kinds.Misfit as misfit:
        raise job_file.error(misfit.problem, *misfit.path) from None
    for path in unknown:
        key = str(path[0])
        warnings.append(f"{name}: line {job_file.lines[key]}: unknown key {key}, ignored{suggest(key, FIELDS)}")
    # an empty list says nothing
    return replace(job_file, fields={key: value for key, value in fields.items() if value != ()})


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


FIELDS: Final = table(
    mode=kinds.as_choice(MODES),
    context_files=kinds.as_project_paths,
    target_files=kinds.as_project_paths,
    target_file=kinds.as_project_path,
    output_dir=kinds.as_project_path,
    output_file=kinds.as_project_path,
    output_files=kinds.as_project_paths,
    sequential=kinds.as_flag,
    test_file=kinds.as_project_path,
    verify=kinds.as_flag,
    depends_on=kinds.as_needs,
    struct_name=kinds.as_line,
    new_field=kinds.as_line,
    repo=kinds.as_repo,
    ref=kinds.as_ref,
)
"""The keys of the front matter."""


Files = Mapping[str, AbstractSet[str]]
"""Paths of files by the id of a job file."""


def derive_edges(
    named: Mapping[str, Sequence[str]], reads: Files, writes: Files
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """All needs by id, and a line for each edge that was not taken because others stand against it.

    `named` are the ids that each job file names.  Edges along the order of ids come first; of several writers of
    a file the last one, for it mostly waits for the others.  An edge that follows from other edges is left out:
    many job files that write one file would need each other.
    """
    needs = {name: [*ids] for name, ids in named.items()}
    writers: dict[str, list[str]] = {}
    for name in sorted(needs, reverse=True):
        for path in writes[name]:
            writers.setdefault(path, []).append(name)
    refused = []
    for ahead in (True, False):
        for name in sorted(needs):
            waits, tried = _find_waits(needs, name), {name}
            # those that write the same file are in order by then
            for path in sorted(reads[name] if ahead else reads[name] - writes[name]):
                for earlier in writers.get(path, ()):
                    if earlier in tried or earlier in waits or (earlier < name) is not ahead:
                        continue
                    tried.add(earlier)
                    if name not in (beyond := _find_waits(needs, earlier)):
                        needs[name].append(earlier)
                        waits |= {earlier, *beyond}
                    elif not writes[name] & reads[earlier]:  # else the same edge holds the other way round
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


ENDED: Final = ("pass", "fail", "partial")


@frozen
class Settings:
    """What the project says of all its job files; durations in seconds."""

    model: str | None = None
    url: str | None = None
    timeout_s: float | None = None
    max_output_lines: int = 900
    max_context_lines: int = 1000
    max_context_files: int = 2
    create_output_dirs: bool = True
    build_command: str | None = None
    test_command: str | None = None
    lint_command: str | None = None
    verify_build: bool = True
    verify_tests: bool = True
    auto_fix: bool = True
    auto_fix_attempts: int = 2
    repo: str | None = None
    ref: str | None = None

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands that have to pass after the work of each job file."""
        build = self.build_command if self.verify_build else None
        test = self.test_command if self.verify_tests else None
        return tuple(command for command in (build, test, self.lint_command) if command)


_SECTIONS: Final[Mapping[str, Mapping[str, Field]]] = {
    "ollama": {
        **table(model=kinds.as_line, url=kinds.as_line),
        "timeout_seconds": Field("timeout_s", kinds.as_duration),
    },
    "limits": table(
        max_output_lines=kinds.as_whole(1),
        max_context_lines=kinds.as_whole(1),
        max_context_files=kinds.as_whole(0),
    ),
    "repository": table(repo=kinds.as_repo, ref=kinds.as_ref),
    "behavior": table(create_output_dirs=kinds.as_flag),
    "build": table(
        build_command=kinds.as_command,
        test_command=kinds.as_command,
        lint_command=kinds.as_command,
        verify_build=kinds.as_flag,
        verify_tests=kinds.as_flag,
        auto_fix=kinds.as_flag,
        auto_fix_attempts=kinds.as_whole(0),
    ),
}
"""The keys that have a meaning here; all others (``stream_output``, ``archive`` ...) are passed over."""


def parse_settings(raw: bytes | None, name: str) -> Settings:
    """Read ``worksplit.toml``; without one the defaults hold.

    Raises:
        InputError: it is not TOML, or a value does not fit.
    """
    if raw is None:
        return Settings()
    document, reading, values = parse_toml(raw, name), Reading(name), dict[str, Any]()
    for section, known in _SECTIONS.items():
        values |= reading.read(Spot((section,)), document.get(section, {}), known)
    return Settings(**values)


def parse_statuses(raw: bytes | None, name: str) -> dict[str, str]:
    """The status word of each job file in ``_jobstatus.json``, by id.

    Raises:
        InputError: it is not what we write.
    """
    if raw is None:
        return {}
    hint = "repair it, or delete it to begin anew"
    try:
        entries = parse_json(raw.decode("utf-8"))
    except (Breach, UnicodeDecodeError) as error:
        raise InputError(f"{name}: {error}; {hint}") from None
    if not isinstance(entries, list):
        raise InputError(f"{name}: must be a list of job files; {hint}")
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("id", "status")):
            raise InputError(f"{name}: [{number}] has no id or no status; {hint}")
    return {entry["id"]: entry["status"] for entry in entries}


KINDS: Final = ("create", "edit", "verify", "verify_edit", "test", "split")

_NAME: Final = re.compile(rf"_(?:system_?prompt_)?({'|'.join(sorted(KINDS, key=len, reverse=True))})\.md")

_FILES: Final = """\
Answer with the whole content of each file and with nothing else. Each file stands between two marker lines:

~~~worksplit:path/of/the/file
content
~~~worksplit
"""

_VERDICT: Final = """\
The first word of your answer is your verdict, alone on its line:

PASS                it does what was asked
PASS_WITH_WARNINGS  it does, but something should be looked at
FAIL_SOFT           it does not yet; small changes would do
FAIL_HARD           it does not, or it would break something

Behind it say why, in a few lines: what is wrong, in which file, and what to do.
"""

DEFAULTS: Final[Mapping[str, str]] = {
    "create": f"You write source files. Follow the style of the files that you are shown.\n\n{_FILES}",
    "test": f"You write tests for code that does not exist yet, from its description alone.\n\n{_FILES}",
    "split": (
        "You divide one file into several without changing what it does. Leave nothing out; every file that is "
        f"asked for has to come.\n\n{_FILES}"
    ),
    "edit": """\
You change existing files in a few places. Answer with edits and with nothing else:

FILE: path/of/the/file
FIND:
lines as they stand in the file
REPLACE:
lines that take their place
END

What stands below FIND has to be exactly what stands in the file, with all its white space, and must occur there
once: quote as many lines as that takes. Nothing below REPLACE deletes the lines. A file may have several edits,
each with its own FIND, REPLACE and END; they are made in their order, and either all of them or none.
""",
    "verify": f"You judge whether files do what was asked.\n\n{_VERDICT}",
    "verify_edit": f"You judge whether changed files do what was asked, and still do all else.\n\n{_VERDICT}",
}
"""By kind."""


def parse_system_prompts(files: Mapping[str, bytes], name: Callable[[str], str]) -> dict[str, str]:
    """The project's own, by kind, over ours; its words on verification hold for edits, too.

    Raises:
        InputError: one is not UTF-8.
    """
    prompts: dict[str, str] = {}
    for file, raw in files.items():
        kind = _NAME.fullmatch(file)
        if kind and (text := decode(raw, name(file)).replace("\r\n", "\n").strip()):
            prompts[kind[1]] = text
    if "verify" in prompts:
        prompts.setdefault("verify_edit", prompts["verify"])
    return {**DEFAULTS, **prompts}

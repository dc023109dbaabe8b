"""Files around Markdown job files: ``worksplit.toml``, the words of ``_jobstatus.json``, and system prompts.

Must not know the job files, nor the file system.

The formats named here are those that `answers` reads; they are described in sessionrun-input(5).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from sessionrun.input.kinds import (
    Misfit,
    as_command,
    as_duration,
    as_flag,
    as_line,
    as_record,
    as_ref,
    as_repo,
    as_whole,
)
from sessionrun.input.limits import Breach
from sessionrun.input.parse import decode, parse_toml
from sessionrun.input.reading import Field, read_fields, render_path, table
from sessionrun.input.strict_json import parse_json
from sessionrun.model.errors import InputError
from sessionrun.model.frozen import frozen

STATUS_FILE: Final = "_jobstatus.json"
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
    "ollama": {**table(model=as_line, url=as_line), "timeout_seconds": Field("timeout_s", as_duration)},
    "limits": table(max_output_lines=as_whole(1), max_context_lines=as_whole(1), max_context_files=as_whole(0)),
    "repository": table(repo=as_repo, ref=as_ref),
    "behavior": table(create_output_dirs=as_flag),
    "build": table(
        build_command=as_command,
        test_command=as_command,
        lint_command=as_command,
        verify_build=as_flag,
        verify_tests=as_flag,
        auto_fix=as_flag,
        auto_fix_attempts=as_whole(0),
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
    document = parse_toml(raw, name)
    values: dict[str, Any] = {}
    for section, known in _SECTIONS.items():
        try:
            values |= read_fields(as_record(document.get(section, {})), known, [])
        except Misfit as misfit:
            raise InputError(f"{name}: {render_path((section, *misfit.path))}: {misfit.problem}") from None
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

    Args:
        files: those beside the job files.
        name: what a file of them is called in messages.

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

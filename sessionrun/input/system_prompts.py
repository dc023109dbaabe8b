"""The system prompt of an agent that only answers, where the project has no system prompt of its own.

The formats named here are those that `answers` reads; they are described in sessionrun-input(5).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from sessionrun.input.parse import decode

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


def find_kind(name: str) -> str | None:
    """Which system prompt a file of this name is; None for none."""
    match = _NAME.fullmatch(name)
    return match[1] if match else None


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
        kind = find_kind(file)
        if kind is None:
            continue
        if text := decode(raw, name(file)).replace("\r\n", "\n").strip():
            prompts[kind] = text
    if "verify" in prompts:
        prompts.setdefault("verify_edit", prompts["verify"])
    return {**DEFAULTS, **prompts}

"""What is refused before anything starts: a table of command lines, and what each says.

A row is a command line, the files that it finds, and its error: what is wrong, where, and how to mend it.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from sessionrun.cli import main
from sessionrun.cli.argv import VERBS

TABLE: Final = Path(__file__).parents[1] / "data" / "refusals.json"
_ID: Final = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|(?<=ID: )[0-9a-f]{8}\b")
_BEGIN: Final = "-c user.name=a -c user.email=a@b commit -q --allow-empty -m begin"


class Refusal(NamedTuple):
    """A command line and its error.

    `files` are those that are there beside a good ``tasks.json``, each a text or what its JSON says.  ``-`` is
    standard input, ``$NAME`` a variable, and ``.git`` makes a repository of the place.
    """

    words: str
    files: Mapping[str, Any]
    says: str


def load_refusals() -> Iterator[tuple[str, Refusal]]:
    """The table: what each row is about, and the row."""
    for about, rows in json.loads(TABLE.read_text()).items():
        for row in rows:
            yield about, Refusal(*row)


def refuse(refusal: Refusal, folder: Path, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> str:
    """The error without the name of the program; ``{top}`` stands for the place, and ``{id}`` for an id.

    The exit code is 2, standard output is empty, the error is one line, and nothing is made or changed.
    """
    top = folder / "place"
    top.mkdir()
    (top / "tasks.json").write_text('["true"]')
    given = ""
    for name, value in refusal.files.items():
        text = value if isinstance(value, str) else json.dumps(value)
        if name == "-":
            given = text
        elif name.startswith("$"):
            patch.setenv(name[1:], text)
        elif name == ".git":
            for words in ("init -q -b main", _BEGIN):
                subprocess.run(["git", *words.split()], cwd=top, check=True)
        else:
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    for program in ("git", "sh"):  # and no agent
        (folder / program).symlink_to(shutil.which(program) or program)
    for name in ("HOME", "XDG_STATE_HOME", "PATH", "GIT_CEILING_DIRECTORIES"):
        patch.setenv(name, str(folder))
    patch.chdir(top)
    patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
    patch.setattr(warnings, "showwarning", warnings.showwarning)
    before = _look(top)
    assert main(shlex.split(refusal.words)) == 2
    out, error = capture.readouterr()
    assert out == ""
    assert error.startswith("sessionrun: error: ") and error.count("\n") == 1, error
    assert _look(top) == before
    line = error.removeprefix("sessionrun: error: ").rstrip("\n")
    return _ID.sub("{id}", line.replace(str(top), "{top}").replace(str(folder), "{folder}"))


def _look(top: Path) -> dict[str, bytes | None]:
    """What there is, but for git's own and locks."""
    known = [path for path in top.rglob("*") if ".git" not in path.parts and path.suffix != ".lock"]
    return {str(path): path.read_bytes() if path.is_file() else None for path in known}


ROWS = [row for _, row in load_refusals()]
NAMES = [f"{about}-{number}" for number, (about, _) in enumerate(load_refusals())]


@pytest.mark.parametrize("refusal", ROWS, ids=NAMES)
def test_refused(
    refusal: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refuse(refusal, tmp_path, monkeypatch, capsys) == refusal.says


def test_no_row_is_there_twice() -> None:
    asked = [(row.words, str(row.files)) for row in ROWS]
    assert len(set(asked)) == len(asked)


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_refuses_what_it_does_not_know(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--no-such-option"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("sessionrun: error: ") and said.err.count("\n") == 1

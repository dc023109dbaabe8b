"""What is refused before anything starts: a table of command lines, and what each says.

A row is a command line, the files that it finds, and its error: what is wrong, where, and how to mend it.  Options
that would do nothing to an input are refused; all others, and what is only a default, are not.
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
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import pytest

from sessionrun.cli import main, run
from sessionrun.cli.argv import VERBS
from sessionrun.client.planning.plan import Planned
from sessionrun.client.planning.plan import plan as plan_input
from sessionrun.input.rows import SETTINGS

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


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_refuses_what_it_does_not_know(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--no-such-option"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("sessionrun: error: ") and said.err.count("\n") == 1


@pytest.fixture
def place(own_place: Path) -> Path:
    """A configuration with an agent `ai` that asks a model, and `mute`, a text agent without options."""
    (own_place / "sessionrun.toml").write_text(
        '[agents.ai]\nargv = ["true"]\noutput = "claude"\nmodel_args = ["-m", "{model}"]\napprove_args = ["-y"]\n'
        '[agents.mute]\nargv = ["true"]\n'
    )
    return own_place


def plan(*tasks: dict[str, Any], **said: Any) -> Any:
    Path("p.json").write_text(json.dumps([{"prompt": "true", **task} for task in tasks]))
    planned = plan_input("p.json", said)
    assert isinstance(planned, Planned)
    return planned.spec


SCRIPT: dict[str, Any] = {"agent": "shell"}
AI: dict[str, Any] = {"agent": "ai"}
COUNTS: list[dict[str, Any]] = [
    {"model": "m"},
    {"fallback": ["ai"]},
    {"timeout_s": 5.0},
    {"idle_timeout_s": 5.0},
    {"budget_usd": 1.0},
    {"soft_budget_usd": 1.0},
    {"task_budget_usd": 1.0},
    {"approve": False},
    {"envelope": True},
    {"auto_release": False},
]
"""Options that tests/data/refusals.json shows to have no effect where no task takes them."""


OTHER = {**AI, "model": "n", "timeout": 3, "idle_timeout": 3, "fallback": "mute", "budget_usd": 1}
ANYHOW = [{"approve": True}, {"timeout_s": 0.0}, {"stop_on_fail": True}, {"agent": "ai"}]


@pytest.mark.parametrize(
    ("tasks", "said"), [*(([SCRIPT, AI, OTHER], said) for said in COUNTS), *(([SCRIPT], said) for said in ANYHOW)]
)
def test_one_task_for_which_it_counts_is_enough(place: Path, tasks: list[Any], said: dict[str, Any]) -> None:
    """And what holds anyhow may be said."""
    assert plan(*tasks, **said).tasks


UNCHECKED = {
    "planning refuses it without worktrees": ("base", "worktree_dir", "keep", "land"),
    "planning refuses it without landing": ("land_into", "gates", "mends"),
    "planning refuses it without a results file": ("rerun",),
    "planning refuses it where no number of failures stops the session": ("halt",),
    "planning refuses it in another format": tuple(row.name for row in SETTINGS if row.format),
    "refused without a prompt on the command line": ("title",),
    "refused for each task without a worktree, or a check": ("expect_change", "prove", "sandbox"),
    "holds for any session": ("max_parallel", "held", "starts_at", "notify", "cluster", "sync", "dry_run"),
    "holds for any session, also of one task": ("stop_on_fail", "max_failures", "max_load", "min_free_memory"),
    "a task may be added, or tried again": ("stagger_s",),
    "names or labels any session, or says more or less of it": ("name", "labels", "verbose", "quiet", "as_json"),
    "names the session's agent, also where all tasks have their own": ("agent",),
    "is the input, or says how it is read": ("prompts", "dialect"),
    "has an effect, or is refused": ("each", "slurm"),
    "adds to what tasks say themselves": ("env", "defaults"),
    "a caller may always forbid the question": ("ready",),
    "names the session to which any input is added, or where it is kept": ("into", "results_dir"),
    "only prints": ("help_all",),
}
"""Options that are refused elsewhere, or never, by the reason why."""


def test_every_option_of_run_is_decided() -> None:
    named = {param.name for param in run.command.params if isinstance(param, click.Option)}
    checked = {row.name for row in SETTINGS if row.idle is not None}
    decided = [*checked, *chain(*UNCHECKED.values())]
    assert sorted(decided) == sorted(map(str, named))

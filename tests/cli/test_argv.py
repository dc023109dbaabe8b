"""The words of a command line: spellings of older tools, words of other programs, and what a shell offers."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from sessionrun.cli import group
from sessionrun.cli.aliases import ALIASES, expand_alias
from sessionrun.cli.argv import VERBS, rewrite_argv

TABLE = (
    # verbs stay as they are
    ("status abc", "status abc"),
    ("list --json", "list --json"),
    # our own flags stay
    ("-h", "-h"),
    ("--help --status", "--help --status"),
    # the seed's flags are verbs, wherever they stand
    ("--status abc", "status abc"),
    ("--status=abc", "status abc"),
    ("--status=", "status "),
    ("--results=abc --tail 3", "results abc --tail 3"),
    ("--overview", "list --totals"),
    ("--json --status abc", "status --json abc"),
    ("--json --status=abc", "status --json abc"),
    ("--results-dir r --list --all", "list --results-dir r --all"),
    ("--status --help", "status --help"),
    ("--status abc --results def", "status abc --results def"),
    ("--status=a=b", "status a=b"),
    # options before the verb
    ("--json status", "status --json"),
    ("--results-dir status list --all", "list --results-dir status --all"),
    ("-q --label a=b wait last", "wait -q --label a=b last"),
    ("-p status", "run -p status"),
    ("f.json status", "run f.json status"),
    # all else runs
    ("", "run"),
    ("tasks.json", "run tasks.json"),
    ("--json", "run --json"),
    ("--sync -", "run --sync -"),
    ("--worktree --max-parallel=3 --verbose f.json", "run --worktree --max-parallel=3 --verbose f.json"),
    ("--dry-run f.json -h", "run --dry-run f.json -h"),
    ("nosuchverb", "run nosuchverb"),
    # a verb wins over a file of its name
    ("-- status", "run -- status"),
    ("-- --status", "run -- --status"),
    # values that look like flags
    ("--name --list f.json", "run --name --list f.json"),
    ("--label --status --list", "list --label --status"),
    ("--name=--list f.json", "run --name=--list f.json"),
    ("--timeout 3 --status abc", "status --timeout 3 abc"),
    ("--statusx", "run --statusx"),
    ("--older-than status", "run --older-than status"),
    ("--brief status", "status --brief"),
    ("--no-such status", "status --no-such"),
)


@pytest.mark.parametrize(("given", "expected"), TABLE, ids=[given or "(nothing)" for given, _ in TABLE])
def test_the_words_with_a_verb_in_front(given: str, expected: str) -> None:
    words = given.split()
    assert rewrite_argv(words) == expected.split(" ")
    assert words == given.split(), "the list itself is not changed"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("ls --all", "list --all"),
        ("ps", "list --state running,recovering"),
        ("stop last api", "cancel last api"),
        ("kill last", "cancel --now last"),
        ("rm last --dry-run", "clean last --dry-run"),
        ("--json ls", "list --json"),
        ("version", "--version"),
        ("-V", "--version"),
        ("run ls", "run ls"),
        ("tasks.json", "tasks.json"),
    ],
)
def test_an_alias_is_written_out(
    words: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expand_alias(words.split()) == expected.split()


def test_a_file_wins_over_an_alias_and_no_alias_is_a_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not ALIASES.keys() & VERBS.keys()
    for word in ALIASES:
        (tmp_path / word).touch()
        assert rewrite_argv(expand_alias([word])) == ["run", word]


@pytest.mark.parametrize(
    ("words", "incomplete", "offered"),
    [
        ("", "stat", ["file stat", "plain status"]),
        ("", "--worktree", ["plain --worktree", "plain --worktree-dir"]),
        ("--agent", "cl", ["plain claude"]),
        ("tasks.json --agent", "qw", ["plain qwen"]),
        ("tasks.json", "--max-p", ["plain --max-parallel"]),
        ("run", "ta", ["file ta"]),
        ("status", "la", ["plain last"]),
        ("stop", "--n", ["plain --now"]),
        ("status last", "x", []),
    ],
)
def test_a_shell_is_offered_what_may_come(
    words: str, incomplete: str, offered: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found = BashComplete(group, {}, "sessionrun", "_SESSIONRUN_COMPLETE").get_completions(
        words.split(), incomplete
    )
    assert [f"{item.type} {item.value}" for item in found] == offered

"""Words of other programs that stand for a verb, and what a shell offers."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from sessionrun.cli import group
from sessionrun.cli.aliases import ALIASES, expand_alias
from sessionrun.cli.argv import VERBS, rewrite_argv


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

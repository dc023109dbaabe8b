"""The rewriting of the command line: every spelling of the older tools, and what must be left alone."""

from __future__ import annotations

import pytest

from sessionrun.cli.argv import asks_for_json, rewrite_argv

TABLE = (
    # verbs stay as they are
    ("status abc", "status abc"),
    ("run --status x", "run --status x"),
    ("list --json", "list --json"),
    ("cancel abc a b", "cancel abc a b"),
    # our own flags stay
    ("-h", "-h"),
    ("--help", "--help"),
    ("-v", "-v"),
    ("--version", "--version"),
    ("--help --status", "--help --status"),
    # the seed's flags are verbs, wherever they stand
    ("--status abc", "status abc"),
    ("--status=abc", "status abc"),
    ("--status", "status"),
    ("--status=", "status "),
    ("--results abc", "results abc"),
    ("--results=abc --tail 3", "results abc --tail 3"),
    ("--list", "list"),
    ("--overview", "list --totals"),
    ("--json --status abc", "status --json abc"),
    ("--json --status=abc", "status --json abc"),
    ("--results-dir r --list --all", "list --results-dir r --all"),
    ("--results-dir=r --list", "list --results-dir=r"),
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
    ("-q tasks.json", "run -q tasks.json"),
    ("--verbose --sync f.json", "run --verbose --sync f.json"),
    ("--sync -", "run --sync -"),
    ("--worktree --max-parallel=3 --verbose f.json", "run --worktree --max-parallel=3 --verbose f.json"),
    ("--dry-run f.json -h", "run --dry-run f.json -h"),
    ("nosuchverb", "run nosuchverb"),
    ("Status abc", "run Status abc"),
    # a verb wins over a file of its name
    ("./status", "run ./status"),
    ("-- status", "run -- status"),
    ("-- --status", "run -- --status"),
    ("f.json -- --list", "run f.json -- --list"),
    # values that look like flags
    ("--name --list f.json", "run --name --list f.json"),
    ("--label --status --list", "list --label --status"),
    ("--name=--list f.json", "run --name=--list f.json"),
    ("--timeout 3 --status abc", "status --timeout 3 abc"),
    ("--statusx", "run --statusx"),
    ("--name", "run --name"),
    ("--older-than status", "run --older-than status"),
    ("--rescue status", "run --rescue status"),
    ("--brief status", "status --brief"),
    ("--no-such status", "status --no-such"),
)


@pytest.mark.parametrize(("given", "expected"), TABLE, ids=[given or "(nothing)" for given, _ in TABLE])
def test_the_words_with_a_verb_in_front(given: str, expected: str) -> None:
    words = given.split()
    assert rewrite_argv(words) == expected.split(" ")
    assert words == given.split(), "the list itself is not changed"


def test_words_with_spaces_and_odd_bytes_pass() -> None:
    assert rewrite_argv(["a file.json", "", "\udcff"]) == ["run", "a file.json", "", "\udcff"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("run --json f.json", True),
        ("status --json", True),
        ("run -- --json", False),
        ("run f.json --jsonx", False),
    ],
)
def test_whether_json_is_asked_for_is_known_before_parsing(words: str, *, expected: bool) -> None:
    assert asks_for_json(words.split()) is expected

"""The words of a command line: older spellings, words of other programs, what a shell offers; help, skill.

Help is by topic: every option of `run` has one page, and what other pages show is on the first one.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from conftest import Command
from stages import make_program, make_repository_of
from terminal import Terminal

from sessionrun import __version__
from sessionrun.cli import group
from sessionrun.cli.argv import ALIASES, VERBS, expand_alias, load_verb, rewrite_argv
from sessionrun.cli.help import BY_HAND, EXAMPLES, HEADINGS, list_lines, write_first_page, write_topic
from sessionrun.input.rows import BY_NAME, SETTINGS
from sessionrun.input.settings import TOPICS

TOP = Path(__file__).parents[2]
RUN = load_verb("run")
LONGEST = 40
ALSO = {"--default", "--env", "--hold", "--help-all", "--results-dir", "--verbose", "--stop-on-fail"}
"""Options that a page shows once for people who look for them, and that the first page leaves to their topic."""


def test_every_option_is_on_the_page_of_one_topic() -> None:
    options = [param for param in RUN.params if isinstance(param, click.Option)]
    pages = {topic: write_topic(RUN, topic) for topic in TOPICS}
    for option in options:
        name = option.name or ""
        row = None if name in BY_HAND else BY_NAME[name]
        shown = row.shown if row else option.opts
        word = shown[0].partition("/")[0] or shown[0].removeprefix("/")
        found = [topic for topic, page in pages.items() if re.search(rf"^  .*{word}\b", page, re.MULTILINE)]
        assert found == [row.topic if row else BY_HAND[name][0]], word
    assert set(BY_HAND) <= {option.name for option in options}
    assert {line.heading for line in list_lines(RUN)} - {""} == set(HEADINGS)
    assert all(row.help and row.help[0].isupper() for row in SETTINGS if row.option is not None)
    for page in (*pages.values(), write_first_page(RUN)):
        assert all(len(line) <= 80 for line in page.splitlines())
        assert page.count("\n") < LONGEST + 8
    assert all(page.count("\n") < LONGEST for page in pages.values())


def test_what_pages_use_is_on_the_first_one() -> None:
    first = set(re.findall(r"--[a-z-]+", write_first_page(RUN)))
    known = {word for param in RUN.params for word in (*param.opts, *param.secondary_opts)}
    for page in (TOP / "README.md", *(TOP / "examples" / "skill").rglob("*.md"), TOP / "llms.txt"):
        starts = re.findall(r"sessionrun (?:run |-|\S+\.(?:json|yaml|md) )[^`\n|]*", page.read_text())
        used = {word for text in starts for word in re.findall(r"(?<!\S)--[a-z-]+", text)} & known
        assert used - first <= ALSO, page.name


def test_help_of_verbs_topics_and_examples(sessionrun: Command) -> None:
    for words, begin in (
        (("checks",), "checks:\n"),
        ((EXAMPLES,), "A task at once"),
        (("all",), "run "),
        (("queue", "add"), "Usage: sessionrun queue add"),
        (("run",), "sessionrun [run] [OPTIONS] [FILE]"),
        ((), "sessionrun runs AI coding agents"),
    ):
        done = sessionrun("help", *words)
        assert (done.returncode, done.stdout[: len(begin)]) == (0, begin), words
    for words in (("nonsense",), ("queue", "nonsense")):
        done = sessionrun("help", *words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_narrow_and_short(sessionrun: Command, verb: str) -> None:
    done = sessionrun(verb, "--help", env={"COLUMNS": "200"})
    lines = done.stdout.splitlines()
    assert (done.returncode, max(map(len, lines)) <= 80, len(lines) <= 60) == (0, True, True)
    assert lines[0].startswith("sessionrun [run] [OPTIONS] " if verb == "run" else f"Usage: sessionrun {verb} ")


def test_help_of_the_group_and_the_version(sessionrun: Command) -> None:
    lines = sessionrun("--help").stdout.splitlines()
    assert lines == sessionrun("-h").stdout.splitlines()
    assert (max(map(len, lines)) <= 80, len(lines) <= 24) == (True, True)
    assert sessionrun("--version").stdout == sessionrun("-v").stdout == f"sessionrun {__version__}\n"
    program = Path(sys.executable).with_name("sessionrun")
    if not program.exists():
        pytest.skip("the package is not installed beside this interpreter")
    with Terminal([str(program), "--version"], sessionrun.cwd) as terminal:
        assert terminal.finish() == 0
    assert terminal.output.startswith(b"sessionrun ")


# --- words ---

TABLE = (
    # verbs stay as they are, and words of other programs are written out
    ("status abc", "status abc"),
    ("ls --all", "list --all"),
    ("ps", "list --state running,recovering"),
    ("overview", "list --totals"),
    ("kill last", "cancel --now last"),
    ("rm last --dry-run", "clean last --dry-run"),
    ("--json ls", "list --json"),
    ("-V", "--version"),
    ("version", "--version"),
    ("run ls", "run ls"),
    # our own flags stay
    ("-h", "-h"),
    ("--help --status", "--help --status"),
    # the seed's flags are verbs, wherever they stand
    ("--status abc", "status abc"),
    ("--status=abc", "status abc"),
    ("--status=", "status "),
    ("--results=abc --tail 3", "results abc --tail 3"),
    ("--overview", "list --totals"),
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
    ("--sync -", "run --sync -"),
    ("--worktree --max-parallel=3 --verbose f.json", "run --worktree --max-parallel=3 --verbose f.json"),
    ("--dry-run f.json -h", "run --dry-run f.json -h"),
    ("nosuchverb", "run nosuchverb"),
    # a verb wins over a file of its name
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
def test_the_words_with_a_verb_in_front(given: str, expected: str, own_place: Path) -> None:
    words = given.split()
    assert rewrite_argv(expand_alias(words)) == expected.split(" ")
    assert words == given.split(), "the list itself is not changed"


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


# --- what agents load ---

STUB = """
agent = "stub"
[agents.stub]
argv = ["sh", "-c", "cat > \\"work-$SESSIONRUN_TASK.txt\\"; echo done"]
"""


def test_what_an_agent_loads_is_short_and_says_when() -> None:
    text = (TOP / "examples" / "skill" / "SKILL.md").read_text()
    head = re.match(r"---\nname: ([a-z-]+)\ndescription: (.+)\n---\n", text)
    assert head is not None
    assert (head[1], len(head[2]) <= 1024, len(text) <= 6000) == ("sessionrun", True, True)
    for path in re.findall(r"\]\(([^)]+)\)", (TOP / "llms.txt").read_text()):
        assert (TOP / path).exists(), path


@pytest.mark.slow
def test_each_block_of_the_skill(sessionrun: Command) -> None:
    make_repository_of(sessionrun.cwd, {"sessionrun.toml": STUB})
    blocks = re.findall(
        r"^```sh\n(.*?)^```$", (TOP / "examples" / "skill" / "SKILL.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert len(blocks) == 6
    program = make_program(sessionrun.cwd / "bin" / "sessionrun", f'exec {" ".join(sessionrun.argv)} "$@"')
    script = "set -e\n" + "\n".join(f"echo '== {number}'\n{block}" for number, block in enumerate(blocks))
    script = f"PATH={program.parent}:$PATH\n{script}echo $id\n"
    done = subprocess.run(["sh", "-c", script], cwd=sessionrun.cwd, capture_output=True, text=True, timeout=120)
    sessionrun.sessions += re.findall(r"^[0-9a-f-]{36}$", done.stdout, re.MULTILINE)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = dict(zip(range(6), re.split(r"^== \d$", done.stdout, flags=re.MULTILINE)[1:], strict=True))
    assert "2 of 2 ended: 2 succeeded" in parts[1]
    assert '"left":0' in parts[2]
    assert "2 succeeded" in parts[3] and "done" in parts[3]
    assert "work-" in parts[4] and "goes on, attempt 2" in parts[4]
    assert re.search(r"landed", parts[5]), parts[5]
    log = subprocess.run(
        ["git", "log", "--oneline"], cwd=sessionrun.cwd, capture_output=True, text=True, check=True
    )
    assert len(log.stdout.splitlines()) >= 3

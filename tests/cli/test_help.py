"""Help by topic: every option of `run` has one page, what others show is on the first one.  What agents load."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import click
import pytest
from conftest import Command
from stages import make_program, make_repository_of

from sessionrun.cli.argv import load_verb
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
    for page in (*pages.values(), write_first_page(RUN)):
        assert all(len(line) <= 80 for line in page.splitlines())
        assert page.count("\n") < LONGEST + 8
    assert all(page.count("\n") < LONGEST for page in pages.values())


def test_headings_of_the_first_page_are_those_of_the_table() -> None:
    assert {line.heading for line in list_lines(RUN)} - {""} == set(HEADINGS)
    assert all(row.help and row.help[0].isupper() for row in SETTINGS if row.option is not None)


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

"""Documents and code say the same: commands, options, keys, words, tables, exit codes, examples."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import click
import manual
import pytest
from conftest import Command
from house.test_rooms import ROOMS, ROOT
from manual import load_verb
from stages import make_program, make_repository_of
from terminal import Terminal

from sessionrun import cli as command_line
from sessionrun.agents import table
from sessionrun.checks import requests as check_request
from sessionrun.cli.argv import FLAG_VERBS, VERBS, expand_alias, find_home, list_all, rewrite_argv
from sessionrun.client.schemas import NAMES, describe
from sessionrun.engine import transitions
from sessionrun.engine.status import PHASE_WORDS
from sessionrun.git import git
from sessionrun.input.formats import choose_format, load_plan
from sessionrun.input.parse import Source
from sessionrun.input.settings import Options
from sessionrun.model import checks, errors, events, keys, places
from sessionrun.model import spec as model
from sessionrun.model.shown import Seen, Status, Task
from sessionrun.model.words import REASONS, REASONS_VERSION, WORDS
from sessionrun.store import jobfiles, logs, space
from sessionrun.worktrees import park, registration, request, site

TOP = Path(__file__).resolve().parent.parent
MAN_PAGES = ("sessionrun.1", "sessionrun-files.5", "sessionrun-input.5")
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*", "man/*", "Makefile", "LICENSE", ".ci/run")
    for path in TOP.glob(pattern)
    if path.is_file() and "artifacts" not in path.parts
)
PAGES = [path for path in DOCUMENTS if path.suffix == ".md" and "jobs" not in path.parts]
"""What people read, without the job files of examples, which are input."""

HELP = command_line.group.get_help(click.Context(command_line.group))
STATES: tuple[str, ...] = import_module("sessionrun.cli.list").STATUSES
EXIT_CODES = {0, 1, 2, 3, 4, 75, 124, 130}


def read(name: str) -> str:
    return (TOP / name).read_text(encoding="utf-8")


def code_blocks(name: str, language: str) -> list[str]:
    """The fenced blocks of one language in a Markdown file."""
    return re.findall(rf"^```{language}\n(.*?)^```$", read(name), re.MULTILINE | re.DOTALL)


def plain(roff: str) -> str:
    """Manual page source without escapes for fonts, spaces and dashes."""
    text = re.sub(r"\\f[BIRP]", "", roff.replace("\\\n", ""))
    for escape, character in ((r"\-", "-"), (r"\~", " "), (r"\(aq", "'"), (r"\(dq", '"'), (r"\&", "")):
        text = text.replace(escape, character)
    return text


@dataclass(frozen=True)
class Part:
    """A section or subsection of a manual page: its text and the tags of its definitions (`.TP`)."""

    source: str

    @property
    def text(self) -> str:
        return plain(self.source)

    @property
    def tags(self) -> list[str]:
        found = re.findall(r"^\.TP.*\n(.*)$", self.text, re.MULTILINE)
        return [re.sub(r'^\.[BIR]+ |"', "", tag) for tag in found]

    def tag_words(self) -> set[str]:
        """The names that its tags define, without what stands in brackets behind them."""
        return {word for tag in self.tags for word in re.findall(r"[A-Za-z_]+", tag.partition(" (")[0])}


def part(page: str, heading: str, *, level: str = "SH") -> Part:
    """The part of a manual page under a heading."""
    return Part(manual.part(read(f"man/{page}"), heading, level=level))


def test_the_commands_of_the_readme_name_things_that_exist_and_ci_runs_the_second() -> None:
    lines = [line for block in code_blocks("README.md", "sh") for line in block.splitlines()]
    first, second = (line for line in lines if line.startswith("python3 -m venv .venv && .venv/bin/pip install "))
    program, *words, example = first.split(" && ")[2].split()
    assert (program, words) == (".venv/bin/sessionrun", ["--sync", "--agent", "shell"])
    assert (TOP / example).is_file()
    assert second.split(" && ")[1:] == [".venv/bin/pip install -e '.[test]'", ".venv/bin/pytest"]
    run = [line for line in read(".ci/run").splitlines() if line and not line.startswith("# ")]
    assert run == ["#!/usr/bin/env bash", "set -eu", 'cd "$(dirname "${BASH_SOURCE[0]}")/.."', second]
    assert os.access(TOP / ".ci" / "run", os.X_OK)


def help_options(command: click.Command, *, hidden: bool) -> set[str]:
    """The options of a verb: those in its help, with `hidden` also those that are not."""
    params = [param for one in list_all(command) for param in one.params]
    options = [param for param in params if isinstance(param, click.Option)]
    shown = [option for option in options if hidden or not option.hidden]
    return {name for option in shown for name in (*option.opts, *option.secondary_opts)}


def test_the_options_in_the_manual_are_those_of_the_help() -> None:
    page = read("man/sessionrun.1")
    assert page == manual.renew(page), f"the page is stale; to renew it: {manual.RENEW}"
    headings = [heading for heading in manual.headings() if [*manual.options_of(heading)]]
    for heading in headings:
        assert page.count(manual.BEGIN.format(heading) + "\n") == 1, heading
    assert page.count(manual.END) == len(headings)


def test_each_verb_has_a_page_made_from_that_one() -> None:
    pages = manual.make_verb_pages(read("man/sessionrun.1"))
    found = {path.name: path.read_text(encoding="utf-8") for path in manual.VERB_PAGES.iterdir()}
    assert found == pages, f"a page is stale; to renew them: {manual.RENEW}"
    assert '"man/verbs" = "share/man/man1"' in read("pyproject.toml")


def test_every_verb_and_its_other_spelling_is_in_the_manual() -> None:
    page = plain(read("man/sessionrun.1"))
    assert re.findall(r"^\.SS (.*)$", part("sessionrun.1", "VERBS").text, re.MULTILINE) == list(VERBS)
    rows = re.findall(r"^[A-Z][a-z]+ {2,5}([a-z].*)$", HELP, re.MULTILINE)
    cut = r"\(.*?\)|\[.*?\]| ID .*| add \|.*"
    shown = [word for row in rows for word in re.findall(r"[a-z]+", re.sub(cut, "", row))]
    assert sorted([*shown, "demo", "help", "man"]) == sorted(VERBS)
    for spelling in FLAG_VERBS:
        assert spelling in page
    for option in help_options(command_line.group, hidden=False):
        assert option in page


def test_every_environment_variable_is_in_the_manual() -> None:
    documented = set(re.findall(r"(?:SESSIONRUN|SWEBENCH)_[A-Z_]+", part("sessionrun.1", "ENVIRONMENT").text))
    code = "".join(path.read_text() for path in (TOP / "sessionrun").rglob("*.py"))
    assert documented == set(re.findall(r"(?:SESSIONRUN|SWEBENCH)_[A-Z_]+", code))


def test_the_keys_of_status_json_are_made_from_the_records() -> None:
    page = read("man/sessionrun-files.5")
    assert manual.renew_keys(page) == page, f"the keys are stale; to renew them: {manual.RENEW}"
    blocks = [records.split(", ") for kind, records in manual.KEYS.findall(page) if kind == "Keys"]
    written = [{key.name for name in block for key in manual.load_records()[name]} for block in blocks]
    assert written == [set(record.__annotations__) for record in (Seen, Status, Task)]


def test_every_file_of_a_session_is_in_the_contract(sessionrun: Command) -> None:
    session = sessionrun.finished({"prompts": [{"id": "a", "prompt": "exit 3"}]})
    status = sessionrun.status(session)
    assert status["tasks"][0]["reason_class"] in part("sessionrun-files.5", "REASON CLASSES").tag_words()
    for name in (path.name for path in sessionrun.directory(session).iterdir()):
        shape = name.replace("task-a.", "task-ID.")
        assert shape in plain(read("man/sessionrun-files.5")), f"{name} is not in the contract"


@pytest.mark.parametrize("name", sorted({*NAMES} - {"plan", "notification"}))
def test_every_key_that_a_verb_prints_as_json_is_in_the_contract(name: str) -> None:
    """By the schemas, against which all JSON is held that any test sees."""
    contract = Part(part("sessionrun-files.5", "JSON OUTPUT").source + part("sessionrun-files.5", "STATUS").source)
    assert [key for key in iterate_named(describe(name)) if not is_bold(contract, key)] == []


def iterate_named(schema: Any) -> Iterator[str]:
    """The keys of all objects that a JSON schema describes."""
    if isinstance(schema, dict):
        yield from schema.get("properties", ())
        schema = [*schema.get("properties", {}).values(), *(schema[key] for key in schema if key != "properties")]
    for inner in schema if isinstance(schema, list) else ():
        yield from iterate_named(inner)


def is_bold(where: Part, word: str) -> bool:
    tag = rf"^\.[BIR]+ .*(?<!\w){word}(?!\w)"
    inline = rf"\\fB(?:[^\\]*[^\\\w])?{word}(?:\W[^\\]*)?\\fP"
    return re.search(f"{tag}|{inline}", where.source, re.MULTILINE) is not None


def test_the_words_of_the_contract_are_those_of_the_code() -> None:
    session = part("sessionrun-files.5", "Keys of the session", level="SS")
    task = part("sessionrun-files.5", "Keys of a task", level="SS")
    assert all(is_bold(session, word) for word in STATES)
    assert all(is_bold(task, word) for word in (*model.OUTCOMES, *WORDS))
    assert all(is_bold(task, word) for word in (*PHASE_WORDS.values(), "queued", "pending", "completed"))
    words = part("sessionrun-files.5", "Words", level="SS")
    assert all(is_bold(words, verdict) for verdict in events.VERDICTS)


def test_the_reason_classes_are_the_table_of_the_code() -> None:
    section = part("sessionrun-files.5", "REASON CLASSES")
    assert f"This is version {REASONS_VERSION} of the table" in section.text
    explained = {"limit", "backoff", "continues"}
    listed = {}
    for tag in section.tags:
        name, _, flags = tag.partition("(")
        listed[name.strip()] = {flag for flag in flags.rstrip(")").split(", ") if flag}
    assert [name for name in listed if name not in explained] == list(REASONS)
    for name, reason in REASONS.items():
        effects = {str(reason.effect)} - {"none"} | ({"continues"} if reason.goes_on else set())
        assert listed[name] == effects, name


def test_the_table_of_phases_is_the_code_s() -> None:
    block = re.search(r"^```text\n(phase .*?)^```", section("docs/files.md", "Phases"), re.MULTILINE | re.DOTALL)
    assert block
    heads, *rows = (line.split() for line in block[1].splitlines())
    assert heads[1:] == list(transitions.JUDGEMENTS)
    for phase, *cells in rows:
        for verdict, cell in zip(transitions.JUDGEMENTS, cells, strict=True):
            for rounds_left in (True, False):
                wanted = "work" if rounds_left and cell in ("(*)", "(+)") else cell
                wanted = {"(*)": "failed", "(+)": "timed_out"}.get(wanted, wanted)
                assert transitions.TRANSITIONS[phase, verdict, rounds_left] == wanted  # type: ignore[index]
    assert [row[0] for row in rows] == list(transitions.TASK_PHASES)
    assert transitions.MAX_STARTS == 3


def rows_under(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading of docs/files.md, without its head."""
    table = re.search(r"(?:^\|.*\n)+", section("docs/files.md", heading), re.MULTILINE)
    assert table, f"no table under {heading}"
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[0].splitlines()[2:]]


def words_of(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_every_event_is_on_the_maintainers_page_with_its_keys() -> None:
    documented = {words_of(row[0])[0]: words_of(row[1]) for row in rows_under("Journal")}
    assert documented == {cls.__name__: [f.name for f in fields(cls)] for cls in get_args(events.Event)}
    journal = section("docs/files.md", "Logs")
    assert all(f"`{key}`" in journal for key in ("seq", "at", "mono", "ev"))


def test_every_record_of_the_ledger_is_on_the_maintainers_page() -> None:
    code = re.findall(r"^    ([A-Z]) ((?:[a-z]\w* )*)", logs.__doc__ or "", re.MULTILINE)
    documented = [(words_of(row[0])[0], row[1].strip("`")) for row in rows_under("Ledger")]
    assert documented == [(record, words.strip()) for record, words in code]


NAMED = (
    *(model.SessionSpec, model.AgentSpec, model.TaskSpec, model.Check, model.Limits, model.Workspace),
    *(model.CacheSite, model.Environment, checks.Brief),
    *(places.Upstream, places.MirrorSite, places.Repository, places.GitSettings),
)
RECORDS = {
    **{one.__name__: one for one in NAMED},
    "Request of prepare and release": request.WorkspaceRequest,
    "Need": places.Handed,
    "Claim": request.Claim,
    "Place": places.Place,
    "Request of an environment": request.EnvironmentRequest,
    "Report of an environment": request.EnvironmentReport,
    "Request of a check": check_request.CheckRequest,
    "Report": checks.CheckReport,
}
"""Records in files of a session, by their heading in docs/files.md."""


@pytest.mark.parametrize("heading", RECORDS)
def test_every_key_of_a_record_is_on_the_maintainers_page(heading: str) -> None:
    documented = [word for row in rows_under(heading) for word in words_of(row[0])]
    assert sorted(documented) == sorted(field.name for field in fields(RECORDS[heading]))


def test_the_words_of_worktrees_are_in_the_documents() -> None:
    written = section("docs/files.md", "Worktrees")
    for word in (jobfiles.REQUEST, jobfiles.CLAIM, jobfiles.ANSWER, registration.LOCK_NAME, registration.MARK):
        assert f"`{word}`" in written
    policies = re.search(r"\| `keep` \| (.*) \|", read("docs/files.md"))
    assert policies
    assert re.findall(r"`([\w-]+)`", policies[1]) == list(get_args(places.KeepPolicy))
    manual_page = part("sessionrun.1", "WORKTREES").text
    for word in (
        request.RESCUE_SUFFIX,
        f"{park.HUGE_BYTES >> 20} MiB",
        site.INCLUDE_FILE,
        ".".join(map(str, git.MINIMUM)),
        f"{space.FLOOR_BYTES >> 20} MiB",
        f"{space.FLOOR_SHARE:.0%}".replace("%", " percent"),
    ):
        assert word in manual_page


def test_the_mapping_of_older_keys_names_keys_that_exist() -> None:
    rows = re.findall(
        r"^\S+ {2,}(?:1 there is )?(\S+?)(?:[; (,]|$)",
        part("sessionrun-files.5", "COMING FROM CLAUDE PARALLEL RUNNER").text + "\n",
        re.MULTILINE,
    )
    assert len(rows) == 14
    for key in rows:
        name = key.removeprefix("tasks[].")
        assert name in (Task if key != name else Status).__annotations__, key


def test_exit_codes_are_the_same_everywhere() -> None:
    readme = {int(code) for code in re.findall(r"(?:: |· )(\d+) ", read("README.md").partition("Exit codes")[2])}
    manual = {int(tag.removeprefix(".B ")) for tag in part("sessionrun.1", "EXIT STATUS").tags}
    short = {int(code) for code in re.findall(r"(?:^Exit:| ) (\d+) ", HELP, re.MULTILINE)}
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    raised = {cls.exit_code for cls in classes if issubclass(cls, errors.SessionrunError)}
    modules = [command_line, *(import_module(find_home(verb)) for verb in VERBS)]
    returned = {value for module in modules for name, value in vars(module).items() if name.startswith("EXIT_")}
    assert readme == manual == short == EXIT_CODES
    assert {0} | raised | returned == EXIT_CODES


def section(name: str, heading: str) -> str:
    """A section of a Markdown file, of whatever level."""
    _, level, text = re.split(rf"^(##+) {re.escape(heading)}\n", read(name), maxsplit=1, flags=re.MULTILINE)
    return re.split(rf"^##(?!{level[2:]}#)", text, maxsplit=1, flags=re.MULTILINE)[0]


def test_the_agents_of_the_documents_are_those_of_the_code() -> None:
    named = re.findall(r"\w+", read("README.md").partition("**Agents:** ")[2].partition(", or ")[0])
    assert named == [*table.FIRST_FOUND, "ollama"]
    assert part("sessionrun.1", "AGENTS").tag_words() == set(table.BUILTIN)
    manual = part("sessionrun.1", "AGENTS").text
    assert all(agent.approve_args[0] in manual for agent in table.BUILTIN.values() if agent.approve_args)


def read_text_plan(text: str, name: str) -> Any:
    source = Source(name, text.encode(), str(TOP))
    dialect, _ = choose_format(source, None)
    plan = load_plan(dialect, source, Options())
    assert not plan.warnings
    return plan


def test_the_matrix_of_its_readme_makes_the_runs_that_it_says() -> None:
    (block,) = code_blocks("examples/matrix/README.md", "json")
    assert len(read_text_plan(block, "matrix.json").tasks) == 8
    assert "makes eight runs" in read("examples/matrix/README.md")


STAND_IN = r"""#!/bin/sh
cat > /dev/null
case $SESSIONRUN_TASK in
api) echo 'def page(): pass' > api.py ;;
notes) test -f api.py && mkdir docs && echo 'Pages.' > docs/api.md ;;
types) echo 'def parse(:' > parser.py ;;
esac
id='"session_id": "11111111-2222-4333-8444-555555555555"'
usage='"total_cost_usd": 0.31, "usage": {"input_tokens": 1000, "output_tokens": 200}'
echo "{\"type\": \"result\", \"subtype\": \"success\", \"is_error\": false, \"result\": \"Done.\", $id, $usage}"
"""
"""Plays claude in the night of the README: one task breaks the parser, one does nothing, and all say `Done.`"""


@pytest.mark.parametrize(
    ("heading", "count"),
    [
        pytest.param("", 2, marks=pytest.mark.check),
        ("A tour of one minute", 3),
        pytest.param("Overnight", 3, marks=pytest.mark.check),
        ("From another agent", 2),
    ],
)
def test_the_readme_s_commands_print_what_it_shows(
    heading: str, count: int, sessionrun: Command, own_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks of commands of a section, one after the other, on a terminal and in a repository."""
    begin_night(own_place, monkeypatch)
    files = re.findall(r"`(\w+\.\w+)`[^`]*```(?:json|yaml)\n(.*?)```", read("README.md"), re.DOTALL)
    for name, text in files:
        (own_place / name).write_text(text)
    blocks = section("README.md", heading) if heading else read("README.md").partition("\n## ")[0]
    shown: list[tuple[str, str]] = []
    for language, block in re.findall(r"^```(sh|console)\n(.*?)^```", blocks, re.MULTILINE | re.DOTALL):
        seen = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
        quiet = f"(set -e\n{block}) > /dev/null 2>&1; echo $?; {ENDED}"
        shown += seen if language == "console" else [(quiet, "0\n")]
    script = [
        f'sessionrun() {{ {shlex.join(sessionrun.argv)} "$@"; }}',
        *(f"{line}\necho @@@" for line, _ in shown),
    ]
    with Terminal(["/bin/bash", "-c", "\n".join(script)], own_place) as terminal:
        assert terminal.finish() == 0
    assert (len(files), len(shown)) == (2, count)
    printed = blur("\n".join(terminal.screen())).split("@@@\n")
    assert list(zip([line for line, _ in shown], printed, strict=False)) == [
        (line, blur(text)) for line, text in shown
    ]


ENDED = "sessionrun wait last > /dev/null 2>&1"


def begin_night(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository with `make test`, and an agent on PATH."""
    makefile = "test:\n\t@python3 -m compileall -q .\n"
    kept = "*\n!*.py\n!docs\n!*.md\n!Makefile\n!.gitignore\n"
    make_repository_of(place, {"Makefile": makefile, ".gitignore": kept, "parser.py": "x = 1\n"})
    program = make_program(place.parent / "programs" / "claude", STAND_IN)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("IS_SANDBOX", "1")  # claude refuses to be without prompts as root


def blur(text: str) -> str:
    """What two runs print alike: without ids, times, widths, and failures that came while one waited."""
    text = re.sub(r"(?:^✗ .*\n(?: {4}.*\n)*)+(?=.*\d of \d ended)", "", text, flags=re.MULTILINE)
    text = re.sub(r"(?<=\S) {2,}", "  ", text)
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{8}\b(\.\.\.)?", "ID", text)
    return re.sub(r"\d+\.\d s\b|\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}", "TIME", text)


def test_prompts_given_by_echo_in_documents_are_valid() -> None:
    given = [
        text
        for name in ("README.md", "man/sessionrun.1")
        for text in re.findall(r"(?:echo|printf '%s\\en') '([\[{].*?[\]}])'", plain(read(name)))
    ]
    assert len(given) >= 2
    for text in given:
        assert read_text_plan(text, "stdin").tasks


def test_commands_in_the_readmes_have_verbs_that_exist_with_options_of_theirs() -> None:
    flags = {*FLAG_VERBS, *help_options(command_line.group, hidden=True)}
    for agent in table.BUILTIN.values():
        flags |= {word.partition("=")[0] for word in (*agent.argv, *agent.approve_args)}
    pages = ["README.md", *(str(path.relative_to(TOP)) for path in TOP.glob("examples/**/README.md"))]
    commands = [text for page in pages for text in re.findall(r"\bsessionrun (?!import)([^`\n|]*)", read(page))]
    for text in commands:
        words = re.sub(r"'[^']*'|\"[^\"]*\"", "x", text).split()
        used = {re.sub(r"[^\w-].*", "", word) for word in words if re.match(r"--?[a-z]", word)}
        assert not text[:1].islower() or "." in words[0] or words[0] in VERBS, text
        own = {"--help", *help_options(load_verb(rewrite_argv(expand_alias(words))[0]), hidden=True)}
        assert used <= (own if words[0] in VERBS else own | flags), text
    assert len(commands) > 70


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(TOP)))
def test_no_document_holds_a_path_of_a_machine(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert text.strip(), "empty"
    assert text.endswith("\n")
    assert not re.findall(r"(?<![\w.~/$}\]])/(?:tmp|work|root|home|Users|var|mnt|opt|srv|private)\b/?\S*", text)
    assert str(TOP) not in text


@pytest.mark.parametrize("document", PAGES, ids=lambda path: str(path.relative_to(TOP)))
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        if file.startswith("https://"):
            continue
        linked = document.parent / file if file else document
        assert linked.exists(), target
        text = linked.read_text(encoding="utf-8") if linked.is_file() else ""
        headings = [line.lstrip("# ").lower().replace(" ", "-") for line in text.splitlines() if line[:1] == "#"]
        assert not anchor or anchor in headings


def test_the_table_of_rooms_names_modules_that_exist() -> None:
    first, _, _ = section("ARCHITECTURE.md", "Seventeen rooms").partition("**The table of the house**")
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", first, re.MULTILINE)
    assert [room for room, _, _ in rows] == [room for room in ROOMS if (ROOT / room).is_dir()]
    for room, _, names in rows:
        for name in re.findall(r"`(\w+)`", names):
            assert (ROOT / room / f"{name}.py").is_file() or (ROOT / room / name).is_dir(), f"{room}.{name}"


def test_every_decision_has_one_place_and_the_index_knows_it() -> None:
    written = {
        path.stem: [int(number) for number in re.findall(r"^\*\*(\d+)\. ", path.read_text(), re.MULTILINE)]
        for path in (TOP / "docs" / "decisions").glob("*.md")
    }
    index = section("ARCHITECTURE.md", "Decisions")
    rows = re.findall(r"^\| \[(\w+)\]\(docs/decisions/\1\.md\) \| (.+) \|$", index, re.MULTILINE)
    assert {room: [int(number) for number in numbers.split(", ")] for room, numbers in rows} == {
        room: sorted(numbers) for room, numbers in written.items()
    }
    every = sorted(number for numbers in written.values() for number in numbers)
    assert every == list(range(1, len(every) + 1))
    assert f"The next number is {len(every) + 1}." in index


def test_the_glossary_is_short_and_has_the_words_of_the_contract() -> None:
    rows = re.findall(r"^\| \*\*([a-z ]+)\*\* \| (.+) \|$", read("docs/glossary.md"), re.MULTILINE)
    words = [word for word, _ in rows]
    assert len(words) <= 50
    assert len(words) == len(set(words))
    assert part("sessionrun-files.5", "Words", level="SS").tag_words() <= set(words)
    meanings = dict(rows)
    assert re.findall(r"`(\w+)`", meanings["outcome"]) == list(model.OUTCOMES)
    assert re.findall(r"[A-Z]{3,}", meanings["phase"].replace("JSON", "")) == [
        name.upper() for name in keys.PHASES
    ]


@pytest.mark.parametrize(("name", "lines"), [("README.md", 200), ("ARCHITECTURE.md", 150)])
def test_the_first_pages_stay_short(name: str, lines: int) -> None:
    assert len(read(name).splitlines()) <= lines


@pytest.mark.parametrize("program", ["groff -man -ww -z -Tutf8", "man --warnings -E UTF-8 -Tutf8 -Z -l"])
def test_manual_pages_render_without_warnings(program: str) -> None:
    """Those of verbs are made of one of the others: `man`, which takes them one by one, gets the first of them."""
    argv, one_by_one = program.split(), program.startswith("man")
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    pages = [*(TOP / "man").glob("*.[0-9]"), *sorted(manual.VERB_PAGES.iterdir())[: 1 if one_by_one else None]]
    for some in [[page] for page in pages] if one_by_one else [pages]:
        done = subprocess.run([*argv, *some], capture_output=True, timeout=60)
        assert (done.returncode, done.stderr.decode()) == (0, "")


@pytest.mark.parametrize("page", MAN_PAGES)
def test_manual_pages_are_installed_and_refer_to_pages_that_exist(page: str) -> None:
    assert f'"man/{page}" = "share/man/man{page[-1]}/{page}"' in read("pyproject.toml")
    for name, number in re.findall(r"(sessionrun(?:-\w+)?) ?\((\d)\)", plain(read(f"man/{page}"))):
        assert (TOP / "man" / f"{name}.{number}").is_file()

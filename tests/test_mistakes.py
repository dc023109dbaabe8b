"""What mistakes of new users say: what is wrong, where, and how to mend it.

What a mistake in a repository says is in test_cli_worktrees, and what plain text on standard input says is in
test_dialect_prompts_refused.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from conftest import Command

from sessionrun.cli import main

YAML: Final = "tasks.yaml: line {}, column {}: not valid YAML: "
INDENTED: Final = (
    "this line is not indented as those it belongs to; begin all entries of a list or object in the same column: "
)
AGENTS: Final = "; there are: aider, claude, codex, gemini, ollama, opencode, qwen, shell"
SPAN: Final = 'must be seconds or text such as "90s", "15m", "1h30m", "2d", not '
AGES: Final = "is not an age such as 7d, 12h, 30m or 1h30m"
GROUP: Final = " (all: sessionrun --help)"
PATH: Final = "; PATH is {path} here: if your shell finds the agent, set PATH to what it is there"
RUN: Final = " (see: sessionrun run --help)"


class Mistake(NamedTuple):
    """A command line, what its file holds (none: a good list), and the error."""

    words: str
    says: str
    text: str | None = None
    file: str = "tasks.json"


def in_file(text: str, says: str, file: str = "tasks.json") -> Mistake:
    return Mistake(f"--agent shell {file}", says, text, file)


def in_yaml(text: str, line: int, column: int, says: str) -> Mistake:
    return in_file("prompts:\n" + text, YAML.format(line, column) + says, "tasks.yaml")


MISTAKES: Final = (
    Mistake("--maxparallel 3 tasks.json", f"No such option '--maxparallel'. Did you mean '--max-parallel'?{RUN}"),
    Mistake(
        "--max-parallel three tasks.json",
        f"Invalid value for '--max-parallel': 'three' is not a whole number of 0 or more{RUN}",
    ),
    Mistake("--label foo tasks.json", "--label 'foo': write KEY=VALUE"),
    Mistake(
        "--budget abc tasks.json",
        f"Invalid value for '--budget': 'abc' is not an amount of US dollars over 0{RUN}",
    ),
    Mistake("--timeout 10x tasks.json", f"Invalid value for '--timeout': {SPAN}'10x'{RUN}"),
    Mistake(
        "--idle-timeout 10 minutes tasks.json",
        f"Got unexpected extra argument (tasks.json); put quotes around a value of several words, and -p before a "
        f"prompt{RUN}",
    ),
    Mistake(
        "fix the login",
        f"Got unexpected extra arguments (the login); put quotes around a value of several words, and -p before a "
        f"prompt{RUN}",
    ),
    Mistake(
        "--agnet x tasks.json",
        f"No such option '--agnet'. (Did you mean one of: '--agent', '--at', '--budget'?){RUN}",
    ),
    Mistake("-p x tasks.json", "-p and tasks.json: give prompts or a file, not both"),
    Mistake("--each *.none -p {}", "--each: no file matches '*.none'"),
    Mistake("--each *.json", "--each needs prompts with {} in them: give them with -p, or as a FILE"),
    Mistake("--env A=\udcff -p x", "--env: is not text (UTF-8)"),
    Mistake(
        "--agent shell --resume tasks.json",
        "--resume has no effect here: it is for Markdown job files, which record what ran; leave it out",
    ),
    Mistake(
        "--at 2026-01-01 -p x",
        f"Invalid value for '--at': 2026-01-01 is over{RUN}",
    ),
    Mistake("nofile.json", "nofile.json: no such file"),
    Mistake("--agent clade tasks.json", f"unknown agent 'clade' (did you mean \"claude\"?){AGENTS}"),
    Mistake(
        "--agent claude tasks.json",
        "agent 'claude': 'claude' is not on PATH (to install it: npm install -g @anthropic-ai/claude-code)" + PATH,
    ),
    Mistake(
        "tasks.json",
        "no agent CLI found on PATH (looked for claude, codex, qwen, gemini, opencode, aider); name one with "
        "--agent, or install one (to install it: npm install -g @anthropic-ai/claude-code)" + PATH,
    ),
    Mistake(
        "--agent shell --model opus tasks.json",
        "--model has no effect here: agent 'shell' takes no model; leave it out",
    ),
    Mistake("stauts", f"stauts: no such verb or file; did you mean `sessionrun status`?{GROUP}"),
    Mistake("resluts last", f"resluts: no such verb or file; did you mean `sessionrun results`?{GROUP}"),
    Mistake("attach last", f"attach: no such verb or file; did you mean `sessionrun watch`?{GROUP}"),
    Mistake("land nightly", f"land: no such verb or file; did you mean `sessionrun merge`?{GROUP}"),
    Mistake(
        "completion bash", f"completion: no such verb or file; did you mean `sessionrun config completion`?{GROUP}"
    ),
    Mistake("-q stauts", f"stauts: no such verb or file; did you mean `sessionrun status`?{GROUP}"),
    Mistake(
        "list --running",
        "No such option '--running'; did you mean `sessionrun list --state running`? "
        "(see: sessionrun list --help)",
    ),
    Mistake(
        "clean --all",
        "No such option '--all'; did you mean `sessionrun clean --keep 0`? (see: sessionrun clean --help)",
    ),
    Mistake("run --running", f"No such option '--running'. (Did you mean one of: '--rerun', '--run-name'?){RUN}"),
    Mistake(
        "-q wait last",
        "No such option '-q'; write wait first, and only options of wait after the verb "
        "(see: sessionrun wait --help)",
    ),
    Mistake("--results-dir nosuch list", "--results-dir: there is no directory nosuch"),
    Mistake(
        "rm",
        "clean: say what to clean: an ID, --older-than, --state, --label, --since, --keep, --worktrees or --cache",
    ),
    Mistake("stop last", "there is no session in results or in your index yet"),
    Mistake(
        "kill lst",
        "no session 'lst' in results or elsewhere (did you mean \"last\"?); `sessionrun list --all` shows all",
    ),
    Mistake("status zzzz", "no session 'zzzz' in results or elsewhere; `sessionrun list --all` shows all"),
    Mistake("wait --results-dir nosuchdir", "--results-dir: there is no directory nosuchdir"),
    Mistake(
        "ls --since yesterday",
        f"Invalid value for '--since': 'yesterday' {AGES}, and not a date such as 2026-11-30 or 2026-11-30T18:00"
        " (see: sessionrun list --help)",
    ),
    Mistake(
        "ls --state faild",
        "Invalid value for '--state': 'faild' is not one of running, recovering, completed, cancelled, "
        'interrupted, succeeded, failed, held, stopped, ended, bounced (did you mean "failed"?) '
        "(see: sessionrun list --help)",
    ),
    Mistake(
        "clean --older-than 7",
        "Invalid value for '--older-than': 7: say the unit: 7d, 7h or 7m (see: sessionrun clean --help)",
    ),
    Mistake("wait --timeout x", f"Invalid value for '--timeout': {SPAN}'x' (see: sessionrun wait --help)"),
    in_file("", 'tasks.json: empty input; write {"prompts": ["..."]}'),
    in_file('{"prompts": []}', "tasks.json: prompts: must not be an empty list; write at least one prompt"),
    in_file('[{"promt": "x"}]', 'tasks.json: [0]: has no "prompt"; is "promt" meant?'),
    in_file(
        '[{"id": "a/b", "prompt": "x"}]',
        "tasks.json: [0].id: \"a/b\" must be 1 to 128 letters, digits, '.', '_' or '-', "
        "and begin with a letter or digit",
    ),
    in_file(
        '[{"id": "a", "prompt": "x"}, {"id": "a", "prompt": "y"}]',
        'tasks.json: [1].id: "a" is used twice, first by [0]; ids must differ in more than case',
    ),
    in_file(
        '[{"id": "a", "prompt": "x", "needs": "b"}, {"id": "b", "prompt": "x", "needs": "a"}]',
        "tasks.json: tasks need each other in a circle: a -> b -> a",
    ),
    in_file(
        '[{"id": "a", "prompt": "x", "timeout": "10 mins"}]',
        f'tasks.json: [0].timeout: {SPAN}the text "10 mins"',
    ),
    in_file('["a" "b"]', "tasks.json: line 1, column 6: not valid JSON: a comma is missing before this"),
    in_file(
        '{"prompt": "x"}\n{"prompt" "y"}\n',
        "tasks.jsonl: line 2, column 11: not valid JSON: a colon is missing behind the key (JSON Lines: one "
        "prompt a line)",
        "tasks.jsonl",
    ),
    in_file(
        '[{"id": "a", "prompt": "x", "agent": "clade"}]',
        f"tasks.json: task 1 (ID: a): unknown agent 'clade' (did you mean \"claude\"?){AGENTS}",
    ),
    in_file(
        '[{"prompt": "x", "timeot": "10m"}]',
        'tasks.json: unknown key [0].timeot (did you mean "timeout"?): correct it, leave it out, or begin it with '
        '"x-" to keep it as a note',
    ),
    in_file(
        '{"prompts": ["x"], "timeout": 9}',
        'tasks.json: unknown key timeout (it is a key of tasks: write it into "defaults" for all of them, or into '
        'one): correct it, leave it out, or begin it with "x-" to keep it as a note',
    ),
    in_file(
        '{"prompts": ["x"], "retrys": 9}',
        'tasks.json: unknown key retrys (did you mean "retries"? it is a key of tasks: write it into "defaults" '
        'for all of them, or into one): correct it, leave it out, or begin it with "x-" to keep it as a note',
    ),
    in_file(
        '[{"prompt": "x", "max_parallel": 9}]',
        'tasks.json: unknown key [0].max_parallel (it is a key of the whole plan: write it beside "prompts"): '
        'correct it, leave it out, or begin it with "x-" to keep it as a note',
    ),
    in_file(
        '[{"id": "api", "prompt": "x"}, {"prompt": "y", "needs": "apis"}]',
        'tasks.json: [1].needs: "apis" is not a task of this input (did you mean "api"?)',
    ),
    in_yaml("  - id: a\n   - id: b\n", 3, 4, f'{INDENTED}"- id: b"'),
    in_yaml("\t- x\n", 2, 1, 'a tab stands where only spaces may indent; replace it by spaces: "- x"'),
    in_yaml(
        "  - prompt: Fix: x\n",
        2,
        16,
        'a ": " inside of a text begins a new key; put quotes around the text: "- prompt: Fix: x"',
    ),
    Mistake("--worktree --agent shell tasks.json", "{top} is in no git repository; worktrees need one (git init)"),
    Mistake(
        "tasks.json",
        '{top}/sessionrun.toml: agnt: unknown key (did you mean "agent"?)',
        'agnt = "shell"',
        "sessionrun.toml",
    ),
    Mistake(
        "tasks.json",
        "{top}/sessionrun.toml: not valid TOML: Invalid value (at end of document)",
        "agent = [",
        "sessionrun.toml",
    ),
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.words + " " + (mistake.text or "")[:30])
def test_a_mistake_says_what_where_and_how_to_mend_it(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "tasks.json").write_text('["true"]')
    if mistake.text is not None:
        (place / mistake.file).write_text(mistake.text)
    before = sorted(place.iterdir())
    for program in ("git", "sh"):  # and no agent
        (tmp_path / program).symlink_to(shutil.which(program) or program)
    for name, value in (("HOME", tmp_path), ("XDG_STATE_HOME", tmp_path), ("PATH", tmp_path)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    assert main(mistake.words.split()) == 2
    said = capsys.readouterr()
    says = mistake.says.replace("{top}", str(place)).replace("{path}", str(tmp_path))
    assert said.err == f"sessionrun: error: {says}\n"
    assert said.out == ""
    assert sorted(place.iterdir()) == before


def test_a_mistake_about_a_session(sessionrun: Command) -> None:
    session_id = sessionrun.finished(["true", {"id": "b", "prompt": "true"}])
    known = sessionrun.status(session_id)["tasks"][0]["id"]
    folder = sessionrun.cwd / "results" / f"session-{session_id}"
    other = session_id[:-4] + "0000"
    for words, says in (
        (("status", "last", "bb"), f"no task 'bb' in session {session_id}; it has: {known}, b"),
        (
            ("results", "last", f"{known}x"),
            f"no task '{known}x' in session {session_id} (did you mean \"{known}\"?); it has: {known}, b",
        ),
        (("diff", "last"), f"session {session_id} has no worktrees; start one with --worktree"),
        (("merge", "last"), f"session {session_id} has no worktrees of this repository: nothing can land"),
        (
            ("set", "last", "--max-parallel", "3"),
            f"session {session_id} has ended, and nothing of it runs any more",
        ),
    ):
        assert told(sessionrun, *words) == (2, says)
    shutil.copytree(folder, folder.with_name(f"session-{other}"), ignore=shutil.ignore_patterns("wake"))
    ids = ", ".join(sorted((session_id, other)))
    assert told(sessionrun, "status", session_id[:8]) == (
        2,
        f"'{session_id[:8]}' matches 2 sessions ({ids}): give more of the id",
    )
    shutil.rmtree(folder)
    assert told(sessionrun, "status", session_id) == (
        2,
        f"no session '{session_id}' in results or elsewhere (did you mean \"{other}\"?); "
        "`sessionrun list --all` shows all",
    )


def test_a_mistake_about_a_place(sessionrun: Command) -> None:
    place = sessionrun.cwd
    (place / "tasks.json").write_text('["true"]')
    code, says = told(sessionrun, "--agent", "shell", "--results-dir", "tasks.json/x", "tasks.json")
    assert code == 3 and re.fullmatch(
        rf"cannot create {place}/tasks.json/x/session-[0-9a-f-]+: Not a directory; "
        "--results-dir names another directory",
        says,
    )
    assert told(sessionrun, "Write tests") == (
        2,
        "Write tests: no such file or verb; for a prompt: sessionrun -p 'Write tests'",
    )
    assert told(sessionrun, "--agent", "shell", "--results-dir", "tasks.json", "tasks.json") == (
        2,
        f"Invalid value for '--results-dir': Directory 'tasks.json' is a file{RUN}",
    )


def test_a_page_and_a_verb_need_a_directory_that_is_there(sessionrun: Command) -> None:
    sessionrun.finished(["true"])
    for words in (("report", "last", "-o"), ("overview", "--html")):
        says = "gone/x.html: there is no directory {}/gone; make it, or name another file"
        assert told(sessionrun, *words, "gone/x.html") == (2, says.format(sessionrun.cwd))
    program = f"mkdir gone && cd gone && rmdir ../gone && exec {' '.join(sessionrun.argv)} list"
    done = subprocess.run(["sh", "-c", program], cwd=sessionrun.cwd, capture_output=True, text=True)
    assert done.stderr == "sessionrun: error: the current directory was deleted; cd to another one\n"
    assert done.returncode == 2


def told(sessionrun: Command, *words: str) -> tuple[int, str]:
    """The exit code of a command, and its error without the name of the program."""
    done = sessionrun(*words)
    assert done.stdout == ""
    line = done.stderr.splitlines()[-1]
    assert line.startswith("sessionrun: error: ")
    return done.returncode, line.removeprefix("sessionrun: error: ")

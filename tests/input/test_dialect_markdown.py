"""The markdown dialect: front matter, edges, settings, which jobs run; sessions with an `ollama` of ours."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from stages import make_program
from test_dialects import ROOT

from sessionrun.checks.answers import Unclear
from sessionrun.checks.writing import apply_answer
from sessionrun.input.formats import choose_format, load_plan
from sessionrun.input.job_files import derive_edges
from sessionrun.input.parse import Folder, Source
from sessionrun.input.plan import Plan
from sessionrun.input.settings import Options
from sessionrun.model.spec import TaskSpec
from sessionrun.model.validation import find_cycle
from sessionrun.session.prompt import BriefProblem

EXAMPLE = ROOT / "examples" / "markdown"


def job(body: str = "# Do it\n", **fields: Any) -> str:
    fields = {"output_dir": "src", "output_file": "a.py", **fields}
    return "---\n" + "".join(f"{key}: {json.dumps(value)}\n" for key, value in fields.items()) + f"---\n{body}"


def load(files: Mapping[str, str], options: Options | None = None, only: str | None = None) -> Plan:
    folder = Folder("jobs", "/p/jobs", "/p", {name: text.encode() for name, text in files.items()}, None, only)
    source = Source("jobs", b"", "/p/jobs", "/p", folder)
    dialect, _ = choose_format(source, None)
    assert dialect == "markdown"
    return load_plan(dialect, source, options or Options())


def by_id(plan: Plan) -> dict[str, TaskSpec]:
    return {task.id: task for task in plan.tasks}


# --- edges ---


def test_worktrees_hide_what_others_wrote_and_that_is_said() -> None:
    files = {"a.md": job(output_file="a.py"), "b.md": job(output_file="b.py", context_files=["src/a.py"])}
    (warning,) = load(files, Options({"worktree": True})).warnings
    assert "does not see what the job files it waits for have written" in warning
    assert not load({"a.md": job()}, Options({"worktree": True})).warnings


def test_many_jobs_of_one_file_wait_for_the_one_before() -> None:
    plan = load({f"j{number:03}.md": job() for number in range(300)})
    assert [len(task.needs) for task in plan.tasks] == [0] + [1] * 299
    assert plan.tasks[-1].needs == ("j298",)


def test_of_the_writers_of_a_file_all_come_before_its_readers() -> None:
    reads = {name: {"x"} for name in "abcde"}
    named = {name: ("c",) if name == "b" else () for name in "abcde"}
    needs, refused = derive_edges(named, reads, {**reads, "a": set(), "d": set()})
    assert refused == []
    assert needs == {"a": ("e",), "b": ("c",), "c": (), "d": ("c", "b", "e"), "e": ("c", "b")}


@pytest.mark.parametrize("explicit", [False, True])
def test_of_two_that_read_each_other_s_files_the_first_goes_first(*, explicit: bool) -> None:
    """But an explicit edge beats those from files."""
    first: dict[str, Any] = {"depends_on": ["b"]} if explicit else {"context_files": ["src/b.py"]}
    files = {
        "a.md": job(output_file="a.py", **first),
        "b.md": job(output_file="b.py", context_files=["src/a.py"]),
    }
    plan = load(files)
    needs = {name: task.needs for name, task in by_id(plan).items()}
    assert needs == ({"a": ("b",), "b": ()} if explicit else {"a": (), "b": ("a",)})
    warning = "b uses src/a.py, which a writes after it: it gets the file as it is before"
    assert not explicit or plan.warnings == (warning,)


def test_edges_from_files_never_close_a_circle() -> None:
    names = [f"j{n}" for n in range(12)]
    reads = {name: {names[(n + 1) % 12], names[(n + 5) % 12]} for n, name in enumerate(names)}
    needs, refused = derive_edges(dict.fromkeys(names, ()), reads, {name: {name} for name in names})
    assert find_cycle(needs) is None
    assert refused


def test_the_jobs_directory_may_have_any_name() -> None:
    folder = Folder("j[1]", "/p/j[1]", "/p", {"a.md": job().encode()})
    plan = load_plan("markdown", Source("j", b"", "/p/j[1]", "/p", folder), Options())
    brief = plan.tasks[0].brief
    assert brief is not None
    assert brief.protected == ("j[[]1]/_*",)


# --- which jobs run ---

STATUSES = json.dumps(
    [{"id": name, "status": word} for name, word in (("a", "pass"), ("b", "fail"), ("c", "partial"))]
)
FOUR = {
    "a.md": job(output_file="a.py"),
    "b.md": job(output_file="b.py"),
    "c.md": job(output_file="c.py"),
    "d.md": job(output_file="d.py", depends_on=["a"]),
    "e.md": job(output_file="e.py", depends_on=["b"]),
    "_jobstatus.json": STATUSES,
}


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (Options(), ["d"]),
        (Options({"include_stuck": True}), ["c", "d"]),
        (Options({"rerun": True}), ["a", "b", "c", "d", "e"]),
        (Options({"only": ("b",)}), ["b"]),
    ],
)
def test_what_ended_runs_again_only_when_asked(options: Options, ids: list[str]) -> None:
    assert list(by_id(load(FOUR, options))) == ids


def test_a_need_that_passed_earlier_is_met_and_one_that_failed_keeps_back() -> None:
    plan = load(FOUR)
    assert plan.tasks[0].needs == ()
    assert any("e.md: left out: it needs b, which has not passed (fail)" in line for line in plan.warnings)
    assert any("(c): --resume takes them, too" in line for line in plan.warnings)


def test_one_file_is_one_job() -> None:
    assert list(by_id(load({k: v for k, v in FOUR.items() if k[0] != "_"}, only="a.md"))) == ["a"]


# --- sessions ---

OLLAMA = rf'''#!{sys.executable} -IS
"""Answers as the files beside it say: by what the prompt holds, one after the other."""
import json, os, sys
here = os.path.dirname(os.path.abspath(__file__))
if sys.argv[1] == "show":
    sys.exit()
prompt = sys.stdin.read()
for number, (needle, answers) in enumerate(json.load(open(os.path.join(here, "answers.json")))):
    if needle in prompt:
        seen = os.path.join(here, f"seen-{{number}}")
        count = len(open(seen).read()) if os.path.exists(seen) else 0
        open(seen, "a").write("x")
        open(os.path.join(here, f"prompt-{{number}}-{{count}}"), "w").write(prompt)
        print(answers[min(count, len(answers) - 1)])
        sys.exit()
sys.exit("nobody told me what to answer")
'''

SLOW_OLLAMA = '#!/bin/sh\n[ "$1" = show ] || sleep 600\n'


class Project:
    """A project with jobs, and an `ollama` on PATH that answers what the test says."""

    def __init__(self, place: Path, sessionrun: Command) -> None:
        self.path = place / "project"
        self.bin = make_program(place / "bin" / "ollama", OLLAMA).parent
        (self.path / "jobs").mkdir(parents=True)
        self.run = sessionrun

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.path / "jobs" / f"{name}.md").write_text(text)

    def __call__(self, *words: str, answers: Any = ()) -> Any:
        (self.bin / "answers.json").write_text(json.dumps(answers))
        return self.run(*words, str(self.path))

    def sync(self, *words: str, answers: Any = ()) -> tuple[int, dict[str, Any]]:
        (self.bin / "answers.json").write_text(json.dumps(answers))
        done = self.run.to_end("--sync", "--json", *words, str(self.path))
        assert done.stdout, done.stderr
        view = json.loads(done.stdout)
        assert "summary" in view, view
        return done.returncode, view

    def statuses(self) -> dict[str, str]:
        entries = json.loads((self.path / "jobs/_jobstatus.json").read_text())
        return {entry["id"]: entry["status"] for entry in entries}


@pytest.fixture
def project(tmp_path: Path, sessionrun: Command, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = Project(tmp_path, sessionrun)
    monkeypatch.setenv("PATH", f"{made.bin}:{os.environ['PATH']}")
    return made


def whole(path: str, text: str = "X = 1") -> str:
    return f"Sure!\n\n~~~worksplit:{path}\n{text}\n~~~worksplit\n"


JUDGE = "You judge"


def test_jobs_run_and_are_accounted_for(project: Project) -> None:
    project.write(
        a=job("# First\n", output_file="a.py"),
        b=job("# Second\n", output_file="b.py", context_files=["src/a.py"], verify=False),
        c=job("# Third\n", output_file="c.py", depends_on=["b"]),
    )
    answers = [
        [JUDGE, ["PASS_WITH_WARNINGS\nfine"]],
        ["# First", [whole("src/a.py", "A = 1")]],
        ["# Second", ["```python\nB = 2\n```"]],
        ["# Third", ["<think>hm</think>\nC = 3"]],
    ]
    code, view = project.sync(answers=answers)
    assert code == 0
    written = [(project.path / f"src/{name}.py").read_text() for name in "abc"]
    assert written == ["A = 1\n", "B = 2\n", "C = 3\n"]
    summary = view["summary"]
    assert [summary[key] for key in ("processed", "passed", "failed", "skipped")] == [3, 3, 0, 0]
    assert summary["results"][2]["implicit_context_files"] == ["src/b.py", "src/a.py"]
    assert summary["results"][0]["output_paths"] == ["src/a.py"]
    assert project.run.load("results", view["session_id"])["summary"] == summary
    assert summary["results"][0]["output_lines"] == 1
    assert "A = 1" in (project.bin / "prompt-2-0").read_text()
    assert "B = 2" in (project.bin / "prompt-3-0").read_text()
    assert project.statuses() == {"a": "pass", "b": "pass", "c": "pass"}
    again = project(answers=answers)
    assert (again.returncode, again.stdout) == (0, "No jobs to process\n")


def test_a_failure_is_fed_back_once_and_keeps_dependents_from_running(project: Project) -> None:
    project.write(
        a=job("# First\n", output_file="a.py"),
        b=job("# Second\n", output_file="b.py", depends_on=["a"]),
    )
    answers = [
        [JUDGE, ["FAIL_SOFT\nsrc/a.py has no docstring", "well, perhaps"]],
        ["# First", [whole("src/a.py"), whole("src/a.py", "X = 2")]],
    ]
    code, view = project.sync(answers=answers)
    assert code == 1
    first, second = view["summary"]["results"]
    assert first["retry_attempted"] is True
    assert first["error"].startswith("check_failed: the verdict is unclear")
    assert (second["status"], second["error"]) == ("skipped", "need: 'a' did not succeed")
    assert view["summary"]["skipped"] == 1
    assert "has no docstring" in (project.bin / "prompt-1-1").read_text()
    assert "X = 1" in (project.bin / "prompt-1-1").read_text()
    assert project.statuses() == {"a": "fail", "b": "created"}


def test_what_cannot_be_read_is_no_job_that_is_passed_over(project: Project) -> None:
    project.write(a=job())
    jobs = project.path / "jobs"
    (jobs / "data.json").mkdir()
    (jobs / ".#a.md").symlink_to("somebody@somewhere")
    (jobs / "loop").symlink_to("loop")
    (project.path / "worksplit.toml").write_bytes(b'\xef\xbb\xbf[ollama]\nmodel = "m"\n')
    assert project("--dry-run").returncode == 0
    (jobs / "b.md").symlink_to("gone")
    done, error = project("--dry-run"), f"sessionrun: error: {jobs}/b.md: No such file or directory\n"
    assert (done.returncode, done.stderr) == (2, error)
    (jobs / "b.md").unlink()
    os.mkfifo(jobs / "b.md")
    assert "b.md: not a regular file" in project("--dry-run").stderr
    (jobs / "b.md").unlink()
    (project.path / "worksplit.toml").unlink()
    (project.path / "worksplit.toml").mkdir()
    assert "worksplit.toml: not a regular file" in project("--dry-run").stderr


@pytest.mark.parametrize(
    "path", ["../out.py", "/etc/out.py", "link/out.py", "jobs/_systemprompt_create.md", ".git/x"]
)
def test_an_answer_writes_only_inside_of_the_project(path: str, tmp_path: Path) -> None:
    (task,) = load({"a.md": job(output_files=["src/a.py", "src/b.py"])}).tasks
    place, record = tmp_path / "project", tmp_path / "record"
    for folder in (place / "jobs", place / ".git", tmp_path / "elsewhere"):
        folder.mkdir(parents=True)
    (place / "link").symlink_to(tmp_path / "elsewhere")
    assert task.brief is not None
    with pytest.raises((BriefProblem, Unclear), match=re.escape(path)):
        apply_answer(task.brief, str(place), whole("src/a.py") + whole(path), record)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [], "all or nothing"


def test_scripts_give_no_verdict_and_that_is_said(project: Project) -> None:
    project.write(a=job(), b=job(output_file="b.py", verify=False))
    done = project("--dry-run", "--agent", "shell")
    assert "1 of 2 tasks get no verdict: scripts do not judge" in done.stderr


def test_an_agent_that_edits_is_told_which_files(project: Project) -> None:
    (project.path / "src").mkdir()
    (project.path / "src" / "x.py").write_text("secret = 1\n")
    (project.run.cwd / "sessionrun.toml").write_text(
        '[agents.editor]\nargv = ["sh", "-c", "cat > seen; echo y > src/a.py; echo PASS"]\n'
    )
    project.write(a=job("# Go\n", context_files=["src/x.py"]))
    code, view = project.sync("--agent", "editor")
    assert code == 0, view
    assert (project.path / "src/a.py").read_text() == "y\n"
    assert view["summary"]["results"][0]["output_paths"] == ["src/a.py"]


@pytest.mark.slow
def test_what_a_killed_session_left_is_stuck(project: Project) -> None:
    project.write(a=job("# First\n"), b=job("# Second\n", output_file="b.py", depends_on=["a"]))
    (project.bin / "ollama").write_text(SLOW_OLLAMA)
    session_id = project("-q").stdout.strip()
    project.run.until(session_id, lambda view: view["tasks"][0]["phase"] == "running")
    assert project.statuses() == {"a": "pending_work", "b": "pending_work"}
    project.run.kill_chain(session_id)
    (project.bin / "ollama").write_text(OLLAMA)
    answers = [["#", [whole("src/a.py"), "PASS", whole("src/b.py"), "PASS"]]]
    done = project("--sync", answers=answers)
    assert done.stdout == "No jobs to process\n"
    assert "2 job files were begun and have not ended (a, b): --resume takes them, too" in done.stderr
    code, view = project.sync("--resume", answers=answers)
    assert code == 0, view
    assert project.statuses() == {"a": "pass", "b": "pass"}


def test_a_job_that_runs_is_not_begun_by_another_session(project: Project) -> None:
    project.write(a=job("# First\n"))
    (project.bin / "ollama").write_text(SLOW_OLLAMA)
    session_id = project("-q").stdout.strip()
    for words in (("--resume",), ("--job", "a")):
        done = project(*words)
        assert done.returncode == 2
        assert f"job file a is being run by session {session_id}: wait for it, or cancel it" in done.stderr
    assert len(list((project.run.cwd / "results").glob("session-*"))) == 1
    project.run("cancel", session_id)
    assert project.statuses() == {"a": "created"}


@pytest.mark.slow
def test_a_job_of_several_calls_is_one_job(project: Project) -> None:
    text = job("# Parts\n", output_files=["src/x.py", "src/y.py"], sequential=True, test_file="test_x.py")
    project.write(a=text)
    answers = [[JUDGE, ["PASS"]], ["# Parts", [whole("src/test_x.py"), whole("src/x.py"), "", ""]]]
    code, view = project.sync(answers=answers)
    (result,) = view["summary"]["results"]
    assert (code, result["status"]) == (1, "partial")
    assert result["output_paths"] == ["src/x.py"]
    assert (result["test_path"], result["test_lines"]) == ("src/test_x.py", 1)
    assert project.statuses() == {"a": "partial"}


def test_a_preview_shows_waves_and_the_critical_path(project: Project) -> None:
    project.write(
        a=job(output_file="a.py"),
        b=job(output_file="b.py", depends_on=["a"]),
        c=job(output_file="c.py"),
        d=job(output_file="d.py", depends_on=["b", "c"]),
    )
    done = project("--dry-run", "--json")
    record = json.loads(done.stdout)
    assert record["waves"] == [["a", "c"], ["b"], ["d"]]
    assert record["critical_path"] == ["a", "b", "d"]
    assert "Critical path: 3 tasks: a -> b -> d\n" in project("--dry-run").stdout
    assert not (project.path / "jobs" / "_jobstatus.json").exists()


@pytest.mark.slow
def test_the_example_runs(project: Project) -> None:
    shutil.rmtree(project.path)
    shutil.copytree(EXAMPLE, project.path)
    line = "    return celsius * 9 / 5 + 32\n"
    edit = f"FILE: src/scale.py\nFIND:\n{line}REPLACE:\n{line}\n\n"
    answers = [
        ["You review", ["PASS"]],
        ["# Add kelvin", [edit + "def to_kelvin(celsius):\n    return celsius + 273.15\nEND\n"]],
        ["# Print a table", [whole("src/table.py", "def table(values):\n    return []")]],
        ["# The command", [whole("src/main.py", "import table")]],
        ["# Notes", [whole("docs/scales.md", "# Scales")]],
    ]
    code, view = project.sync(answers=answers)
    assert code == 0, [task["reason"] for task in view["tasks"]]
    assert "273.15" in (project.bin / "prompt-2-0").read_text()


@pytest.mark.parametrize(("length", "told"), [(100_000, None), (106_000, "warning"), (118_000, "error")])
def test_a_prompt_that_leaves_no_room_for_the_answer_is_told_at_the_launch(
    project: Project, length: int, told: str | None
) -> None:
    """At four characters a token: more than 80 % of 32,000 is a warning, more than 90 % is refused."""
    (project.path / "long.py").write_text("x" * length)
    project.write(a=job(output_dir=".", output_file="a.py", context_files=["long.py"]))
    done = project("run", "--dry-run")
    assert done.returncode == (2 if told == "error" else 0), done.stderr
    assert (told is None) == ("% of 32000" not in done.stderr)
    assert told is None or f"sessionrun: {told}: task 1 (ID: a): its prompt has about" in done.stderr

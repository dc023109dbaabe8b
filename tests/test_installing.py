"""What somebody has who just installed it: a demo, completion, the manual, and the command that adds an extra."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import files, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Command
from stages import make_program
from test_documents import TOP, code_blocks

from sessionrun import __version__
from sessionrun.client import installation

WHEELS = os.environ.get("WHEELS")
"""Where `make wheel` has built one."""

INSTALLER = f"{sys.executable} -m pip install" if find_spec("pip") else f"uv pip install --python {sys.executable}"


def test_the_demo_ends_as_it_should_and_what_it_names_works(sessionrun: Command) -> None:
    done = sessionrun("demo", "place")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("$ cd place/project\n$ ")
    named = re.findall(r"^  (\S*sessionrun|git) (.*)$", done.stdout.rpartition("Look around:")[2], re.MULTILINE)
    assert [words.split()[0] for _, words in named] == ["status", "results", "diff", "log", "--worktree"]
    there = Command(sessionrun.cwd / "place" / "project", sessionrun.cwd / "place" / "project" / "results")
    said = [there(*shlex.split(words)).stdout for program, words in named if program != "git"][:3]
    assert "landed" in said[0] and "All tests pass" in said[1] and "+echo hello" in said[2]
    assert [path.name for path in sessionrun.cwd.iterdir()] == ["place"]
    again = sessionrun("demo", "place")
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr == (
        "sessionrun: error: place/project: File exists; name another directory: sessionrun demo DIR\n"
    )


def test_the_demo_without_git(sessionrun: Command, tmp_path: Path) -> None:
    done = sessionrun("demo", env={"PATH": str(tmp_path)}, real=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "git is not installed" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_reads_its_completion(shell: str, sessionrun: Command) -> None:
    script = sessionrun("completion", shell).stdout
    assert "_SESSIONRUN_COMPLETE" in script
    if shutil.which(shell):
        subprocess.run([shell, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize(
    ("words", "page"), [("", "sessionrun.1"), ("wait", "sessionrun-wait.1"), ("files", "sessionrun-files.5")]
)
def test_the_manual_is_found(words: str, page: str, sessionrun: Command, tmp_path: Path) -> None:
    if not any(file.name == page for file in files("sessionrun") or ()):
        pytest.skip("the package was installed before this page was made")
    make_program(tmp_path / "man", "echo shown: $1")
    shown = sessionrun("man", *words.split(), env={"PATH": str(tmp_path)}, real=True)
    assert shown.stdout.startswith("shown: /") and shown.stdout.endswith(f"/{page}\n"), shown.stderr
    missing = sessionrun("man", *words.split(), env={"PATH": os.devnull}, real=True)
    assert missing.returncode == 2 and missing.stderr.endswith(f"/{page}\n") and "`man`" in missing.stderr


@pytest.mark.parametrize(
    ("prefix", "mark", "command"),
    [
        ("uv/archive-v0/abc", "../../CACHEDIR.TAG", "uvx --from 'sessionrun[mcp]' sessionrun mcp"),
        ("uv/tools/sessionrun", "uv-receipt.toml", "uv tool install 'sessionrun[mcp]'"),
        ("pipx/venvs/sessionrun", "pipx_metadata.json", "pipx install --force 'sessionrun[mcp]'"),
        ("uv-makes/.venv", "CACHEDIR.TAG", f"{INSTALLER} 'sessionrun[mcp]'"),
    ],
)
def test_the_command_that_adds_an_extra(
    prefix: str, mark: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / prefix).mkdir(parents=True)
    (tmp_path / prefix / mark).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / prefix))
    said = str(installation.lack("mcp", "mcp", "mcp")).removeprefix("mcp: mcp is not installed; ")
    found = re.sub(r" @ [^']*'", "'", said)  # of a checkout it says where that is
    assert found == command
    assert (installation.name_command() == "uvx sessionrun") == command.startswith("uvx")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a wheel of ours is; no other code of ours is found."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if not WHEELS:
        run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path / "dist"), str(TOP))
    return Path(WHEELS or tmp_path / "dist")


@pytest.mark.slow
def test_the_wheel_alone(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an environment that has nothing else, and in a directory that has nothing of ours."""
    (wheel,) = wheels.glob("*.whl")
    place = tmp_path / "venv"
    run(sys.executable, "-m", "venv", str(place))
    run(str(place / "bin" / "pip"), "install", "-q", str(wheel))
    monkeypatch.setenv("PATH", f"{place / 'bin'}:{os.environ['PATH']}")
    assert "Two tasks said more than they did" in run("sessionrun", "demo").stdout
    assert "Nothing is wrong" in run("sessionrun", "doctor").stdout
    run("bash", "-c", 'eval "$(sessionrun completion bash)" && complete -p sessionrun')
    if shutil.which("man"):
        assert run("man", "-w", "sessionrun-wait").stdout == f"{place}/share/man/man1/sessionrun-wait.1\n"
        assert "sessionrun-input" in run("sessionrun", "man", "input").stdout
    for verb in ("mcp", "serve"):
        lacking = subprocess.run(["sessionrun", verb], capture_output=True, text=True, timeout=60)
        assert lacking.returncode == 2 and lacking.stderr.count("\n") == 1
        command = lacking.stderr.partition(" is not installed; ")[2]
        assert re.fullmatch(rf"{place}/bin/python\S* -m pip install 'sessionrun\[{verb}\]'\n", command)
    run("sh", "-c", command)  # the last one, of `serve`
    serving = subprocess.Popen(["sessionrun", "serve"], stdout=subprocess.PIPE, text=True)
    assert serving.stdout and serving.stdout.readline().startswith("http://127.0.0.1:")
    serving.terminate()
    serving.communicate()


@pytest.mark.slow
def test_what_the_readme_says_first(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With uv and, in the place of an index, a directory that has the wheel."""
    monkeypatch.setenv("UV_FIND_LINKS", str(wheels))
    monkeypatch.setenv(
        "PATH", f"{tmp_path / 'home' / '.local' / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    )
    block = next(block for block in code_blocks("README.md", "sh") if "uvx" in block)
    shown = run("sh", "-ec", block).stdout
    assert "Two tasks said more than they did" in shown and "  uvx sessionrun status\n" in shown
    program = tmp_path / "home" / ".local" / "bin" / "sessionrun"
    assert run(str(program), "--version").stdout.startswith("sessionrun ")


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_the_readme_of_an_index_has_links_that_lead_somewhere() -> None:
    text = metadata("sessionrun").json["description"]
    assert isinstance(text, str)
    links = re.findall(r"\]\(([^)]+)\)", text)
    place = f"https://github.com/sessionrun/sessionrun/blob/v{__version__}/"
    ours = [link.removeprefix(place) for link in links if link.startswith(place)]
    assert len(ours) >= 8 and all((TOP / path).exists() for path in ours)
    assert all(link.startswith("https://") for link in links)


WORKFLOWS = sorted([*TOP.glob(".github/workflows/*.yml"), TOP / "examples" / "action" / "workflow.yml"])
ACTION = yaml.safe_load((TOP / "action.yml").read_text())


def steps_of(workflow: Any) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job.get("steps", ())]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_sound(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow[True]  # YAML's reading of `on`
    assert list(workflow["permissions"]) == ["contents"]
    targets = set(re.findall(r"^([a-z]+):", (TOP / "Makefile").read_text(), re.MULTILINE))
    for step in [*steps_of(workflow), *ACTION["runs"]["steps"]]:
        assert ("uses" in step) != ("run" in step), step
        assert re.fullmatch(r"\./|[\w-]+/[\w-]+@[\w./]+", step.get("uses", "./")), step
        assert "${{" not in step.get("run", ""), "text from outside is no part of a script: it goes by `env`"
        assert set(re.findall(r"^make (\w+)", step.get("run", ""), re.MULTILINE)) <= targets
        if step.get("uses", "").startswith(("./", "sessionrun/")):
            assert set(step["with"]) <= set(ACTION["inputs"])


def test_the_workflows_test_what_the_package_promises() -> None:
    tested = yaml.safe_load((TOP / ".github" / "workflows" / "test.yml").read_text())["jobs"]["test"]
    promised = re.findall(r"Python :: (3\.\d+)", (TOP / "pyproject.toml").read_text())
    assert tested["strategy"]["matrix"]["python"] == promised
    assert tested["steps"][-1]["run"] == ".ci/run"
    publish = yaml.safe_load((TOP / ".github" / "workflows" / "release.yml").read_text())["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"} and publish["environment"]["name"] == "pypi"


@pytest.mark.parametrize(("tag", "code"), [(f"v{__version__}", 0), ("v9.9.9", 1)])
def test_the_notes_of_a_release_are_those_of_the_changelog(tag: str, code: int, tmp_path: Path) -> None:
    notes = yaml.safe_load((TOP / ".github" / "workflows" / "release.yml").read_text())["jobs"]["notes"]
    (tmp_path / "sessionrun").mkdir()
    shutil.copy(TOP / "sessionrun" / "__init__.py", tmp_path / "sessionrun")
    head = f"# Changelog\n\n## [Unreleased]\n\nNot yet.\n\n## [{__version__}] - 2026-01-02\n\n### Added\n\n- It.\n"
    (tmp_path / "CHANGELOG.md").write_text(f"{head}\n## [0.0.9] - 2025-01-02\n\nOld.\n")
    script = next(step["run"] for step in notes["steps"] if "run" in step)
    done = subprocess.run(["bash", "-ec", script], cwd=tmp_path, env={**os.environ, "TAG": tag})
    assert done.returncode == code
    assert code or (tmp_path / "notes.md").read_text() == "\n### Added\n\n- It.\n\n"


@pytest.mark.parametrize(("prompt", "code", "outcome"), [("echo good", 0, "succeeded"), ("exit 3", 1, "failed")])
def test_the_action(prompt: str, code: int, outcome: str, sessionrun: Command, tmp_path: Path) -> None:
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed; the machines of the action have it")
    (script,) = (step["run"] for step in ACTION["runs"]["steps"] if step.get("id") == "run")
    program = make_program(tmp_path / "bin" / "sessionrun", f'exec {shlex.join(sessionrun.argv)} "$@"')
    given = {"AGENT": "shell", "TASKS": "", "OPTIONS": f"--name 'a b' -p '{prompt}'"}
    files = {name: str(tmp_path / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    path = f"{program.parent}:{os.environ['PATH']}"
    environ = {**os.environ, **given, **files, "RUNNER_TEMP": str(tmp_path), "PATH": path}
    done = subprocess.run(
        ["bash", "--noprofile", "-eo", "pipefail", "-c", script], cwd=sessionrun.cwd, env=environ, timeout=120
    )
    assert done.returncode == code
    outputs = dict(line.split("=") for line in (tmp_path / "GITHUB_OUTPUT").read_text().splitlines())
    assert outputs["outcome"] == outcome and "<html" in Path(outputs["report"]).read_text()
    assert "a b (" in (tmp_path / "GITHUB_STEP_SUMMARY").read_text()

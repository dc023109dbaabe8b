"""What hostile tasks try from inside of walls: on results, settings and objects of others, and against limits."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from conftest import eventually
from walled import Walled, is_running, site

__all__ = ["site"]

G = "G=$(git rev-parse --path-format=absolute --git-common-dir)"


@pytest.fixture(params=["project", "strict"])
def sandbox(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"policy": request.param, "network": "none"}


def outcomes(tasks: dict[str, Any]) -> set[str]:
    return {task["outcome"] for task in tasks.values()}


@pytest.mark.slow
def test_no_planted_remote_is_asked_for_an_object_that_was_taken_away(
    site: Walled, sandbox: dict[str, Any]
) -> None:
    program = site.write("x.sh", f"#!/bin/sh\necho ran > {site.root}/ran\n")
    program.chmod(0o755)
    prompt = (
        f"{G}; echo b > a.txt; git config protocol.ext.allow always; git config extensions.partialClone evil; "
        f"git config remote.evil.promisor true; git config remote.evil.url 'ext::sh {program}'; "
        "B=$(git rev-parse HEAD:a.txt); O=$(echo $B | cut -c1-2)/$(echo $B | cut -c3-); "
        "for d in objects base-objects; do mv $G/$d/$O /tmp/blob; done; "
        "touch told; while ! test -e go; do sleep 0.1; done"
    )
    session = site.start([{"id": "e", "prompt": prompt, "sandbox": sandbox}])
    tree = site.root / "repo-worktrees" / "main-task-e"
    eventually((tree / "told").exists)
    site.command("diff", session.session_id)
    site.git("fsck", "--no-progress")
    (tree / "go").touch()
    assert outcomes(site.finish(session)) == {"succeeded"}
    site.git("show", "main-task-e")
    assert not (site.root / "ran").exists()


@pytest.mark.slow
def test_a_module_where_a_variable_of_the_plan_leads_is_not_imported_outside(
    site: Walled, sandbox: dict[str, Any]
) -> None:
    planted = f"open('{site.root}/ran', 'w')"
    task = {"id": "e", "prompt": f'echo "{planted}" > orjson.py', "sandbox": sandbox, "check": ["true"]}
    session = site.start([{**task, "env": {"PYTHONPATH": "."}, "rounds": 2}])
    assert outcomes(site.finish(session)) == {"succeeded"}
    assert not (site.root / "ran").exists()


@pytest.mark.slow
def test_a_program_in_a_relative_folder_of_the_path_is_not_run_outside(
    site: Walled, sandbox: dict[str, Any]
) -> None:
    program = f"printf '#!/bin/sh\\ntouch {site.root}/ran\\n'"
    plant = f"mkdir -p bin; {program} > bin/git; chmod +x bin/git; cp bin/git bin/bwrap"
    plan = [{"id": "e", "prompt": f'{plant}; touch "$$"', "sandbox": sandbox, "check": ["false"], "rounds": 2}]
    session = site.start(plan, env={"PATH": f"bin:{site.environ['PATH']}"})
    site.finish(session)
    assert not (site.root / "ran").exists()


@pytest.mark.slow
def test_a_pipe_among_the_settings_stops_no_git_of_ours(site: Walled, sandbox: dict[str, Any]) -> None:
    os.mkfifo(site.top / "pipe")
    outer, inner = f"git config include.path {site.top}/pipe", "mkfifo inner; git config include.path $PWD/inner"
    plan = [
        {"id": "outer", "prompt": f"{outer}; echo w > w", "sandbox": sandbox},
        {"id": "inner", "prompt": f"{inner}; echo w > w", "sandbox": sandbox},
    ]
    tasks = site.run(plan)
    assert outcomes(tasks) == {"succeeded"} and "w" in site.files("main-task-outer")
    hangs = f"{inner}; touch told; git status"
    session = site.start([{"id": "hang", "prompt": hangs, "sandbox": sandbox}])
    eventually((site.root / "repo-worktrees" / "main-task-hang" / "told").exists)
    site.command("cancel", session.session_id, "--now")
    assert outcomes(site.finish(session)) == {"cancelled"}


@pytest.mark.slow
@pytest.mark.parametrize("place", ["results.json", "out/results.json"])
def test_no_planted_link_takes_the_place_of_results(site: Walled, sandbox: dict[str, Any], place: str) -> None:
    notes, results = site.write("notes", "precious"), site.top / place
    results.parent.mkdir(exist_ok=True)
    folder = results.parent
    prompt = f"rm -f {results}; ln -s {notes} {results}; mv {folder} {folder}-gone; ln -s {site.root} {folder}"
    plan = {
        "agents": ["shell"],
        "models": ["m"],
        "worktree_base": "../repo-worktrees",
        **({} if place == "results.json" else {"output": place}),
        "tasks": [{"id": "a", "name": "A", "prompts": [f"{prompt}; true"], "sandbox": sandbox["policy"]}],
    }
    file = site.write("matrix.json", json.dumps(plan))
    site.command("--sync", "--sandbox", sandbox["policy"], str(file))
    assert notes.read_text() == "precious"
    assert not results.is_symlink() and not folder.is_symlink()
    assert json.loads((site.top / "results.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("who", ["$$", "$PPID"], ids=["itself", "inner"])
def test_a_stopped_process_is_ended_when_its_time_is_up(site: Walled, sandbox: dict[str, Any], who: str) -> None:
    mark = f"{os.getpid()}.77"
    prompt = f"(setsid sleep {mark} &); touch told; kill -STOP {who}; exit 0"
    for seconds in (3, 10, 30, 90):  # of which the first in which it comes so far is enough
        plan = [{"id": f"t{seconds}", "prompt": prompt, "sandbox": sandbox, "timeout": f"{seconds}s"}]
        (task,) = site.run(plan).values()
        assert (task["outcome"], task["reason_class"]) == ("timed_out", "timeout")
        assert not is_running(mark)
        if has_told := task["branch"] is not None and "told" in site.files(task["branch"]):
            break
    assert has_told


@pytest.mark.slow
def test_a_home_that_is_a_link_hides_the_same(site: Walled, sandbox: dict[str, Any]) -> None:
    real = site.root / "disk" / "ann"
    real.parent.mkdir()
    site.home.rename(real)
    site.home.symlink_to(real)
    (real / ".ssh").mkdir()
    (real / ".ssh" / "id").write_text("KEY")
    (real / ".netrc").write_text("KEY")
    (real / "plain").write_text("readable\n")
    reads = " ".join(f"{home}/{name}" for home in (real, site.home, "~") for name in (".ssh/id", ".netrc"))
    prompt = f"cat {reads}; cat ~/plain; git log -1 --format=%an; echo n > n; touch ~/planted"
    tasks = site.run([{"id": "t", "prompt": f"{prompt}; true", "sandbox": sandbox}])
    assert outcomes(tasks) == {"succeeded"}, tasks["t"]["reason"]
    assert site.printed(tasks["t"]).split() == (["readable"] if sandbox["policy"] == "project" else []) + ["Ann"]
    assert "n" in site.files("main-task-t") and not (real / "planted").exists()

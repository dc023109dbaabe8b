"""Environments inside of walls: what builds them runs inside, and no task can change what others get."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
from python_projects import BACKEND, lay_out_project, make_uv, make_wheels
from stages import make_program
from uv import find_uv_bin
from walled import IS_INSIDE, Walled, make_walled, reasons

from sessionrun.model.asked import Sandbox
from sessionrun.store.session import SessionDir
from sessionrun.walls.argv import Walls
from sessionrun.worktrees.environments import build as env_build
from sessionrun.worktrees.environments.build import (
    ENV,
    LEFT,
    Builder,
    find_digest,
    load_manifest,
    make_environment,
)
from sessionrun.worktrees.environments.inputs import find_programs
from sessionrun.worktrees.request import EnvironmentProblem, EnvironmentRequest


@pytest.fixture(params=[False, True], ids=["own user", "other user"])
def site(request: pytest.FixtureRequest) -> Iterator[Walled]:
    with make_walled(other=request.param) as made:
        yield lay_out(made)


@pytest.fixture
def own() -> Iterator[Walled]:
    with make_walled(other=False) as made:
        yield lay_out(made)


def lay_out(site: Walled) -> Walled:
    """A project, a uv with its wheels, and a cache."""
    for path in (lay_out_project(site.top), site.root / "programs", site.root / "wheels"):
        path.mkdir(exist_ok=True)
    make_uv(site.root / "programs", make_wheels(site.root / "wheels"))
    site.give(*site.root.rglob("*"))
    site.environ["PATH"] = f"{site.root / 'programs'}:{site.environ['PATH']}"
    site.environ["XDG_CACHE_HOME"] = str(site.home / ".cache")
    site.sh("git add -A; git commit -qm project")
    return site


def make_plan(site: Walled, *tasks: dict[str, Any], policy: str = "project") -> dict[str, Any]:
    sandbox = {"policy": policy, "network": "none", "read": [str(site.root / "wheels")]}
    return {"prompts": [{"environment": "python", "sandbox": sandbox, **task} for task in tasks]}


def find_entries(site: Walled) -> dict[str, Path]:
    folder = site.home / ".cache" / "sessionrun" / "environments"
    return {path.name: path for path in folder.iterdir() if load_manifest(path) is not None}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["project", "strict"])
def test_all_phases_work_in_an_environment_that_was_built_inside(site: Walled, policy: str) -> None:
    """Also git in the room of a proof; each task has a copy of its own, and the gates those of what they try."""
    inside = f"{IS_INSIDE}; demo; pytest; git log -1"
    first = {
        "id": "a",
        "setup": inside,
        "prompt": f"{inside}; command -v demo > new; touch $VIRTUAL_ENV/mine",
        "check": f"{inside}; test -e new",
        "prove": True,
        "rounds": 2,
    }
    second = {"id": "b", "needs": "a", "prompt": f"{inside}; test ! -e $VIRTUAL_ENV/mine; command -v demo > new"}
    second["prompt"] += "; echo '# more' >> pyproject.toml"
    plan = make_plan(site, first, second, policy=policy)
    plan["land"] = {"into": "main", "gates": [inside], "sandbox": plan["prompts"][0]["sandbox"]}
    tasks = site.run(plan)
    assert reasons(tasks) == {} and [task["reason"] for task in tasks.values()] == [None] * 2
    assert tasks["a"]["proof"] == "proved"
    copies = [site.git("show", f"main-task-{name}:new") for name in "ab"]
    assert copies[0] != copies[1] and all("-worktrees/.env-main-task-" in copy for copy in copies)
    assert [task["landing"]["status"] for task in tasks.values()] == ["landed"] * 2
    entries = find_entries(site).values()
    manifests = [manifest for entry in entries if (manifest := load_manifest(entry)) is not None]
    assert [manifest.packages for manifest in manifests] == [("demo==1.0", "pytest==1.0")] * 2
    assert not any((entry / "tmp").exists() for entry in entries)


@pytest.mark.slow
def test_a_build_has_the_network_of_its_task(own: Walled) -> None:
    """And what it could not reach is said, as of any other job."""
    ask = "import urllib.request; urllib.request.urlopen('http://index.example.org/simple/', timeout=20)"
    own.write("repo/build_backend/backend.py", f"{BACKEND}\n{ask}\n")
    own.sh("git commit -qam asks")
    plan = make_plan(own, {"id": "t", "prompt": "demo"}, policy="strict")
    plan["prompts"][0]["sandbox"]["network"] = ["pypi.example.org"]
    ended = own.run(plan)["t"]
    assert ended["reason_class"] == "environment_failed"
    assert "its walls let through no hosts but those in sandbox.network" in ended["reason"]
    assert "index.example.org" in own.command("explain", ended["session"].session_id, "t").stdout


@pytest.mark.slow
@pytest.mark.parametrize("where", [{"workspace": "worktree"}, {"repo": "../repo"}], ids=["here", "mirror"])
def test_precache_builds_inside_what_a_task_then_finds(own: Walled, where: dict[str, Any]) -> None:
    tell = "open('inside', 'w').write(open('/proc/1/cmdline').read())"
    own.write("repo/build_backend/backend.py", f"{BACKEND}\n{tell}\n")
    own.sh("git commit -qam tells")
    (usual,) = make_plan(own, {"agent": "shell"})["prompts"]
    plan = {"prompts": [{"id": "t", "prompt": "grep -q bwrap inside", **where}], "defaults": usual}
    file = own.write("plans/ahead.json", orjson.dumps(plan).decode())
    own.command("precache", str(file))
    (entry,) = find_entries(own)
    words = ("-q", "--agent", "shell", "--require-cache", str(file))
    (session_id,) = own.command(*words).stdout.split()
    ended = own.finish(SessionDir(own.results / f"session-{session_id}"))["t"]
    assert (ended["outcome"], ended["environment"]["cached"]) == ("succeeded", True), ended["reason"]
    assert ended["environment"]["digest"] == entry


# What tasks might do to environments of others, and by their own.


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["project", "strict"])
def test_a_build_can_change_nothing_but_its_entry(own: Walled, policy: str) -> None:
    """Neither what was built before, nor the checkout, the repository, the session or the user's caches."""
    own.run(make_plan(own, {"id": "first", "prompt": "demo"}, policy=policy))
    (entry,) = find_entries(own).values()
    places = [own.top, own.top / ".git", own.home, own.home / ".cache", entry, entry / ENV, entry.parent]
    places.append(own.results)
    hook = f"""
for place in {[str(place) for place in places]!r}:
    try:
        open(os.path.join(place, "planted.pth"), "w").close()
    except OSError:
        pass
"""
    own.write("repo/build_backend/backend.py", BACKEND + hook)
    own.sh("echo '# changed' >> pyproject.toml; git commit -qam hook")
    assert reasons(own.run(make_plan(own, {"id": "t", "prompt": "demo"}, policy=policy))) == {}
    assert len(find_entries(own)) == 2
    assert [place for place in places if (place / "planted.pth").exists()] == []


@pytest.mark.slow
def test_no_entry_is_shared_by_walls_of_different_kinds_and_none(own: Walled) -> None:
    (walled,) = make_plan(own, {"id": "walled", "prompt": "demo"})["prompts"]
    (strict,) = make_plan(own, {"id": "strict", "prompt": "demo"}, policy="strict")["prompts"]
    others = [{**walled, "id": "again"}, {**walled, "id": "open", "sandbox": "none"}]
    tasks = own.run({"prompts": [walled, strict, *others]})
    assert reasons(tasks) == {}
    digests = {name: task["environment"]["digest"] for name, task in tasks.items()}
    assert digests["walled"] == digests["again"] and len(set(digests.values())) == len(find_entries(own)) == 3


@pytest.mark.slow
def test_what_the_work_of_a_task_built_is_for_the_same_work_alone(own: Walled) -> None:
    """A task changes what decides about its environment, and a program that its installer runs and that does not.

    Its proof builds that.  A later task with the same inputs gets an environment without it, walled or not.
    """
    compiled = 'open("src/demo/_fast.so", "wb").write(b"\\0compiled")'
    assert compiled in BACKEND
    helped = BACKEND.replace(compiled, 'exec(open("tools/helper").read())')
    own.write("repo/build_backend/backend.py", helped)
    own.write("repo/tools/helper", compiled)
    own.sh("git add -A; git commit -qm helper")
    same = "echo '# more' >> pyproject.toml; echo new > new"
    evil = f"{same}; sed -i s/compiled/poison/ tools/helper"
    tasks = own.run(make_plan(own, {"id": "evil", "prompt": evil, "check": "test -e new", "prove": True}))
    assert tasks["evil"]["proof"] == "proved", tasks["evil"]["reason"]
    made = [(path / LEFT / "src/demo/_fast.so").read_bytes() for path in find_entries(own).values()]
    assert sorted(made) == [b"\0compiled", b"\0poison"], "its own proof is by its own work"
    own.sh(f"{same}; git add -A; git commit -qm same")
    look = "grep -q compiled src/demo/_fast.so"
    plan = make_plan(own, {"id": "walled", "prompt": look}, {"id": "open", "prompt": look, "sandbox": "none"})
    assert reasons(own.run(plan)) == {}


@pytest.mark.slow
def test_what_a_task_puts_into_its_environment_runs_inside_alone_and_shows_nothing(own: Walled) -> None:
    """Programs of ours beside the walls start git, bubblewrap and more; links lead to what is not there inside."""
    key = own.write("home/private/key", "secret")
    steal = f"ln -sf {key} $VIRTUAL_ENV/bin/python; ln -sf {key} $VIRTUAL_ENV/bin/python3; echo new > new"
    links = {"id": "links", "prompt": steal, "check": f"! cat {key}; ! cat $VIRTUAL_ENV/bin/python", "rounds": 2}
    mark = own.root / "escaped"
    names = ("git", "bwrap", "sh", "python3", "env", "uv")
    plant = f"""
folder = os.path.join(os.environ["UV_PROJECT_ENVIRONMENT"], "bin")
for name in {names!r}:
    path = os.path.join(folder, name)
    if not os.path.lexists(path):
        script = "#!/bin/sh\\ntouch {mark} 2>/dev/null\\nPATH=/usr/bin:/bin; exec " + name + ' "$@"\\n'
        open(path, "w").write(script)
        os.chmod(path, 0o755)
"""
    own.write("repo/build_backend/backend.py", BACKEND + plant)
    own.sh("git commit -qam plants")
    task = {
        "id": "t",
        "setup": "command -v git | grep -q /.env-main-task-t; echo x > made",
        "prompt": "echo $SESSIONRUN_ROUND >> new; git add new; git commit -qm new",
        "check": {"commands": ["git log -1; test $SESSIONRUN_ROUND = 2"], "reset": "hard"},
        "rounds": 2,
        "prove": True,
    }
    (stolen,) = make_plan(own, links, policy="strict")["prompts"]
    ended = own.run(make_plan(own, task, stolen))
    assert not mark.exists()
    assert own.git("show", "main-task-t:new") == "2", ended["t"]["reason"]
    assert ended["links"]["outcome"] == "succeeded", ended["links"]["reason"]


def test_no_program_of_the_checkout_is_asked_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_program(tmp_path / "bin" / "python", f"touch {tmp_path}/ran")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvironmentProblem):
        find_programs("bin/python", {"PATH": os.defpath}, "/")
    assert not (tmp_path / "ran").exists()
    path = os.pathsep.join((os.path.dirname(find_uv_bin()), os.environ["PATH"]))
    assert find_programs(None, {"PATH": path}, "/").about


def test_an_entry_that_is_gone_is_not_made_anew_from_the_work_of_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be removed between the look and the copy."""
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "setup.py").write_text("import tools.helper\n")
    top = str(tmp_path / "top")
    request = EnvironmentRequest(top, top, str(tmp_path / "cache"))
    path = os.pathsep.join((os.path.dirname(find_uv_bin()), os.environ["PATH"]))
    walls = Walls("", Sandbox("project"), as_root=False, home="", python="", tmp="", env={"PATH": path})
    usual = find_digest(replace(request, pristine=True), tmp_path, walls)
    built: list[str] = []

    def build(builder: Builder) -> None:
        built.append(builder.folder.name)
        raise EnvironmentProblem("not now")

    monkeypatch.setattr(env_build, "load_manifest", lambda entry: Mock() if entry.name == usual else None)
    monkeypatch.setattr(Builder, "build", build)
    assert make_environment(request, tmp_path, walls).problem == "not now"
    assert len(built) == 1 and usual not in built[0]

"""Walls in all phases of a task, behind its work too; where they cannot be built no job ever runs without."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import eventually, kill_sessions
from python_projects import BACKEND, lay_out_project, make_uv, make_wheels
from test_cli_worktrees import Project, project_in
from test_swebench_session import GOLD, WAITED_ENOUGH, Bench, bench
from walled import IS_INSIDE, Walled, bare_path, closed, make_walled, need_groups, need_walls, reasons, site

from sessionrun.model.asked import Sandbox
from sessionrun.store.session import SessionDir
from sessionrun.walls import groups
from sessionrun.worktrees.environments.build import ENV, LEFT, load_manifest

__all__ = ["bench", "site"]

pytestmark = pytest.mark.slow

WALLS = closed("project")


@pytest.mark.parametrize("policy", ["project", "strict"])
def test_every_command_of_a_task_runs_inside(site: Walled, policy: str) -> None:
    script = f"{IS_INSIDE} && git log --oneline | head -1 && echo $SESSIONRUN_TASK$SESSIONRUN_ROUND >> seen"
    plan: list[dict[str, Any]] = [
        {
            "id": "first",
            "setup": [f"{IS_INSIDE}; echo made > made; git status || true"],
            "prompt": f"{script}; git add seen; git commit -qm seen",
            "check": f"{IS_INSIDE} && test -e made && test -e seen",
            "prove": True,
        },
        {"id": "second", "needs": "first", "prompt": f"{script}; grep first1 seen"},
        {
            "id": "rounds",
            "rounds": 3,
            "prompt": f"{script}; test ! -e leftover; echo x > leftover; "
            "if [ $SESSIONRUN_ROUND = 2 ]; then echo y > good; fi",
            "check": {"commands": [f"{IS_INSIDE} && test -e good"], "reset": "hard"},
        },
    ]
    assert reasons(site.run([{**task, "sandbox": closed(policy)} for task in plan])) == {}
    assert site.git("show", "main-task-second:seen").split() == ["first1", "second1"]
    assert {"good", "leftover"} <= site.files("main-task-rounds")
    assert site.git("show", "main-task-rounds:seen").split() == ["rounds2"]


def test_a_retry_a_follow_up_and_seats(site: Walled) -> None:
    script = f"{IS_INSIDE} && echo $SESSIONRUN_ATTEMPT >> seen && git add seen && git commit -qm seen"
    session = site.start(
        [{"id": "t", "prompt": f"{script}; test $SESSIONRUN_ATTEMPT = 2", "sandbox": WALLS}], "--retries", "1"
    )
    assert site.finish(session)["t"]["outcome"] == "succeeded"
    branch = str(site.finish(session)["t"]["branch"])
    assert "2" in site.git("show", f"{branch}:seen")
    site.command("continue", session.session_id, "t", f"{script}; grep 2 seen", code=None)
    assert reasons(site.finish(session)) == {}
    plan = {
        "worktrees": "sibling",
        "prompts": [
            {"id": f"s{n}", "prompt": f"{IS_INSIDE} && echo {n} > s{n}", "sandbox": WALLS} for n in (1, 2)
        ],
    }
    assert reasons(site.run(plan, "--max-parallel", "1")) == {}
    assert "s1" in site.files("main-task-s1") and "s2" in site.files("main-task-s2")


def test_work_whose_commits_cannot_come_out_is_named_and_kept_until_it_is_given_up(site: Walled) -> None:
    script = "echo 1 > one; git add one; git commit -qm one; echo 2 > two"
    plant = "ln -s /etc/passwd $(git rev-parse --git-common-dir)/refs/heads/link"
    plan = [
        {"id": "bad", "prompt": f"{script}; {plant}", "sandbox": closed("strict")},
        {"id": "after", "needs": "bad", "prompt": "test -e one -a -e two", "sandbox": closed("strict")},
    ]
    tasks = site.run(plan)
    session, worktree = tasks["bad"]["session"], site.root / "repo-worktrees" / "main-task-bad"
    says = "its commits cannot be read: refs/heads/link is no regular file"
    assert reasons(tasks) == {}, "who needs it begins with what lay in the worktree"
    assert tasks["bad"]["worktree"] == str(worktree)
    assert tasks["bad"]["worktree_kept"] == f"{says}; its commits stay in {session.path}/jobs/bad/a1-walls/git"
    assert {"one", "two"} <= site.files("main-task-bad-rescue")
    for verb in ("status", "explain"):
        said = " ".join(site.command(verb, session.session_id, "bad", code=None).stdout.split())
        assert all(word in said for word in (says, str(worktree), "main-task-bad-rescue")), said
    for _ in range(2):
        said = site.command("clean", "--worktrees", session.session_id, code=None).stdout
        assert says in said and worktree.is_dir(), said
        assert "still there" in site.command("clean", session.session_id, code=None).stdout
    site.git("worktree", "remove", "--force", str(worktree))
    site.git("branch", "-D", "main-task-bad-rescue")
    site.command("clean", "--worktrees", session.session_id)
    site.command("clean", session.session_id)
    assert not session.path.exists()


# --- when walls cannot be built ---

LINE = "Creating new namespace failed: No space left on device (ENOSPC)"


def fake(site: Walled, when: str) -> str:
    """A PATH whose bubblewrap fails when a pattern is in its words."""
    real = shutil.which("bwrap")
    script = f'#!/bin/sh\ncase "$*" in {when}) echo "bwrap: {LINE}" >&2; exit 1;; esac\nexec {real} "$@"\n'
    program = site.write("programs/bwrap", script)
    program.chmod(0o755)
    return f"{program.parent}:{site.environ['PATH']}"


def test_a_job_whose_walls_fail_later_is_sandbox_failed_and_not_tried_again(site: Walled) -> None:
    plan: list[dict[str, Any]] = [
        {"id": "setup", "setup": ["echo fail-here > ran"], "prompt": "touch ran", "retries": 3, "sandbox": WALLS},
        {"id": "good", "prompt": "touch ran", "sandbox": WALLS},
    ]
    tasks = site.run(plan, env={"PATH": fake(site, "*fail-here*")})
    assert tasks["good"]["outcome"] == "succeeded"
    assert tasks["setup"]["reason_class"] == "sandbox_failed" and tasks["setup"]["attempt"] == 1, tasks["setup"]
    assert LINE in tasks["setup"]["reason"]
    bad = site.run(
        [{"id": "bad", "prompt": "touch ran", "retries": 3, "sandbox": WALLS}],
        env={"PATH": fake(site, "*/run/prompt*")},
    )["bad"]
    assert (bad["outcome"], bad["reason_class"], bad["attempt"]) == ("failed", "sandbox_failed", 1), bad
    assert LINE in bad["reason"]
    assert not (site.top / "ran").exists()


@pytest.mark.parametrize("walled", ["tasks", "gates"])
def test_a_session_does_not_go_on_without_walls(site: Walled, walled: str) -> None:
    """Killed it is not resumed, when it has ended nothing is tried again, and while it runs nothing is added."""
    prompts = [
        {"id": "first", "prompt": "touch told; while ! test -e go; do sleep 0.1; done; exit 3"},
        {"id": "second", "prompt": "true"},
    ]
    asked: dict[str, object] = {"sandbox": WALLS}
    plan = {"defaults": asked} if walled == "tasks" else {"land": {"gates": ["true"], **asked}}
    session: SessionDir = site.start({"prompts": prompts, **plan}, "--max-parallel", "1")
    tree = site.root / "repo-worktrees" / "main-task-first"
    bare = bare_path(site.root / "bare")
    more = site.write("more.json", json.dumps({"prompts": [{"id": "more", "prompt": "true", "sandbox": WALLS}]}))

    def refused(*words: str) -> None:
        for path, says in (
            (bare, "bubblewrap (bwrap) is not installed; install it or leave the sandbox off"),
            (fake(site, "*"), f"bwrap cannot build walls here: {LINE}"),
        ):
            before = {str(file) for file in session.path.rglob("*") if "requests" not in file.parts}
            done = site.command(*words, code=2, env={"PATH": path})
            assert f"sandbox project: {says}" in done.stderr and done.stderr.count("\n") == 1
            assert {str(file) for file in session.path.rglob("*") if "requests" not in file.parts} == before

    eventually((tree / "told").exists)
    refused("run", "--into", session.session_id, "-q", "--worktree", "--agent", "shell", str(more))
    kill_sessions(site.results)
    refused("resume", session.session_id)
    assert not session.is_alive()
    (tree / "go").touch()
    site.command("resume", session.session_id)
    tasks = site.finish(session)
    assert tasks["second"]["outcome"] == "succeeded" and list(tasks) == ["first", "second"]
    refused("retry", session.session_id, "first")
    assert not session.is_alive()


def test_a_link_on_the_way_of_a_mount_makes_nothing_outside(site: Walled) -> None:
    """The repository lies below /tmp, so a task can move what lies on the way to it in its own /tmp."""
    site.write("victim/notes", "precious\n")
    part = site.root.parts[2]
    plant = f"cd /; mv /tmp/{part} /tmp/old; ln -s /oldroot{site.root}/victim /tmp/{part}"
    task = {
        "id": "t",
        "rounds": 2,
        "prompt": f"if [ $SESSIONRUN_ROUND = 1 ]; then {plant}; else echo done > done; fi",
        "check": "test -e done",
        "sandbox": closed("strict"),
    }
    assert reasons(site.run([task])) == {}
    assert os.listdir(site.root / "victim") == ["notes"]


# --- proof and gates, which run the code of a task after its work; limits of memory and time ---


@pytest.fixture
def walled(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    need_walls()
    return project_in(own_place, monkeypatch)


@pytest.fixture
def probe(walled: Project) -> str:
    """A command that fails outside: there it would see the session, could write the checkout, or read a key."""
    (walled.cwd / "a.txt").touch()
    secret = Path.home() / ".netrc"
    secret.write_text("key")
    fails = (f"ls {walled.results} | grep -q session-", f"test -w {walled.cwd}/a.txt", f"test -s {secret}")
    return "; ".join((*(f"{fail} && exit 9" for fail in fails), "test -f work.txt"))


@pytest.mark.parametrize("policy", ["project", "strict"])
@pytest.mark.parametrize("gated", [True, False], ids=["gates inside", "gates outside"])
def test_proof_and_gates(walled: Project, probe: str, policy: str, gated: bool) -> None:
    land = {"into": "main", "gates": [probe], **({} if gated else {"sandbox": "none"})}
    work = "echo work > work.txt; git add work.txt; git commit -qm work"
    task = {"id": "one", "prompt": work, "check": probe, "prove": True}
    session = walled.finish({"land": land, "tasks": [task]}, "--sandbox", policy)
    (seen,) = walled.status(session)["tasks"]
    assert (seen["outcome"], seen["proof"]) == ("succeeded", "proved")
    merged = walled.git("log", "-1", "--format=%s", "main").startswith("Merge task one")
    assert merged == gated, "outside, the gate is red"
    assert (walled.cwd / "work.txt").exists() == gated


@pytest.mark.parametrize(
    ("walls", "words", "gated"),
    [
        (["--sandbox", "project"], [], True),
        (["--sandbox", "strict"], [], True),
        (["--sandbox", "project"], ["--sandbox", "none"], False),
        ([], ["--sandbox", "strict"], True),
    ],
    ids=["as the project", "as strict", "outside", "said by merge"],
)
def test_the_gates_of_merge(walled: Project, probe: str, walls: list[str], words: list[str], gated: bool) -> None:
    session = walled.finish([{"id": "one", "prompt": "echo work > work.txt"}], *walls)
    done = walled("merge", session, "--gate", probe, *words)
    assert (done.returncode, done.stdout.startswith("one: landed")) == ((0, True) if gated else (75, False)), done
    (folder,) = walled.results.glob("session-*/jobs")
    assert list(folder.glob(".merge*")) == []


def test_memory(walled: Project) -> None:
    """Of two jobs the one that wants more than its walls let it have is ended, and the reason says so."""
    need_groups(Sandbox("project", memory=1 << 30))
    fill = "kept = bytearray(int(sys.argv[1]) << 20); kept[::4096] = b'x' * len(kept[::4096])"
    eats = f'python3 -c "import sys; {fill}"'
    tasks = [
        {"id": f"m{size}", "prompt": f"{eats} {size}", "sandbox": {"policy": "project", "memory": "100M"}}
        for size in (10, 300)
    ]
    small, large = walled.status(walled.finish(tasks))["tasks"]
    assert small["outcome"] == "succeeded"
    assert (large["outcome"], large["reason_class"]) == ("failed", "oom")
    assert large["reason"] == "oom: its walls let it have 100 MiB of memory, and it wanted more"
    assert list_groups(walled, "memory") == []


BURN = """
import os, time
begin = time.monotonic()
child = os.fork()
while time.monotonic() < begin + 2:
    pass
if child:
    os.waitpid(child, 0)
    print(sum(os.times()[:4]) / (time.monotonic() - begin))
"""


def test_processor_time(walled: Project) -> None:
    """Two programs that never rest have together no more than their part of a processor."""
    need_groups(Sandbox("project", memory=1 << 30, cpus=0.2))
    program = walled.cwd.parent / "burn.py"
    program.write_text(BURN)
    sandbox = {"policy": "project", "memory": "1G", "cpus": 0.2, "read": str(program)}
    session = walled.finish([{"id": "c", "prompt": f"python3 {program}", "sandbox": sandbox}])
    (done,) = walled.status(session)["tasks"]
    assert done["outcome"] == "succeeded", done["reason"]
    assert 0 < float(walled.output(session, "c")) < 0.3
    assert list_groups(walled, "memory") == list_groups(walled, "cpu") == []


def list_groups(walled: Project, controller: groups.Controller) -> list[Path]:
    """What is left of the groups of the last session."""
    return list(groups.locate_group("x", controller).parent.glob(f"sessionrun-{walled.sessions[-1]}-*"))


# --- hidden tests: they run inside, and no task can read them while it works ---


LOOK = """name=test_count_with
grep -rsl ${{name}}_gaps {places} /dev/shm /run /tmp
git cat-file --batch-all-objects --batch | grep -a ${{name}}_gaps
git -C {upstream} log --format=%s
ls -A ..
true"""
"""What a task would find of its hidden tests, of the commit that mends it, and of its neighbours."""


def set_walls(bench: Bench, policy: str) -> None:
    """Walls in the configuration, which show the place of these tests: below /tmp it would be hidden.

    What the instances were made from holds the tests, too, and goes: nothing hides it.
    """
    need_walls()
    (bench.cwd / "instances.in.jsonl").unlink()
    shown = [str(bench.cwd), sys.prefix, sys.base_prefix]
    walls = f'policy = "{policy}"\nread = {json.dumps(shown)}\n'
    (bench.cwd / "sessionrun.toml").write_text(f"[sandbox]\n{walls}")


@pytest.mark.parametrize("policy", ["project", "strict"])
def test_hidden_tests_run_inside_and_no_task_finds_them(bench: Bench, policy: str) -> None:
    set_walls(bench, policy)
    look = LOOK.format(places=f"{bench.cwd} {Path.home()}", upstream=bench.artifacts("repo"))
    (first, second, *_) = [
        json.loads(line) for line in bench.artifacts("instances.jsonl").read_text().splitlines()
    ]
    first["test_cmd"] = f"{IS_INSIDE} && python -m pytest"
    bench.artifacts("instances.jsonl").write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    script = f"{IS_INSIDE} || exit 7\n{GOLD}\n{look}"
    bench.run(script, "--no-environment", "--max-parallel", "2", "--iterations", "1", walls=True)
    found = bench.documents("r")
    for instance in (first, second):
        document = found[f"{instance['instance_id']}.json"]
        assert (document["success"], document["resolved"]) == (True, True), document["error"]
        (output,) = bench.cwd.glob(f"sessions/session-*/task-{instance['instance_id']}.txt")
        assert set(output.read_text().split()) == {
            instance["instance_id"],
            f".excerpt-{output.parent.name[8:]}-{instance['instance_id']}.git",
        }
    assert found["example__wordtool-1.json"]["final_test_results"] == {
        "passed": 6,
        "failed": 0,
        "errors": 0,
        "total": 6,
    }


def test_what_is_judged_carries_no_tests_away(bench: Bench) -> None:
    """A source that copies the tests while it is judged finds no place where a later attempt would see them.

    Here with an environment, and so with a SETUP, which runs the tests that passed before.
    """
    set_walls(bench, "project")
    copies = """
import os
for place in (os.getcwd(), "/tmp", os.environ["HOME"], os.environ.get("VIRTUAL_ENV", "")):
    try:
        with open(place + "/stolen", "w") as stream:
            stream.write(open("tests/test_words.py").read())
    except OSError:
        pass
"""
    look = "name=test_count_with; grep -rsl ${name}_gaps . /tmp $HOME $VIRTUAL_ENV"
    script = f"{IS_INSIDE} || exit 7\ncat >> wordtool/__init__.py <<'X'\n{copies}X\n{look}; true"
    bench.run(script, "--instance", "example__wordtool-1", "--iterations", "1", walls=True)
    assert bench.documents("r")["example__wordtool-1.json"]["reason_class"] == "unresolved"
    (session,) = bench.cwd.glob("sessions/session-*")
    judged = (session / "jobs/example__wordtool-1/a1-r1-prove/hidden-tests.txt").read_text()
    assert "test_count_with_gaps" in judged, "the tests ran"
    before = session / "jobs/example__wordtool-1/a1-r1-setup"
    assert json.loads((before / "known-red.json").read_text()) == {"ids": []}, "they could be run inside"
    session_id = session.name.removeprefix("session-")
    assert bench("retry", session_id, "example__wordtool-1").returncode == 0
    while bench("wait", session_id, "--timeout", "60").returncode == WAITED_ENOUGH:
        pass
    assert bench.status(session_id)["tasks"][0]["attempt"] == 2
    (output,) = session.glob("task-*.txt")
    assert output.read_text() == ""


# --- environments: what builds them runs inside, and no task can change what others get ---


@pytest.fixture(params=[False, True], ids=["own user", "other user"])
def either(request: pytest.FixtureRequest) -> Iterator[Walled]:
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


@pytest.mark.parametrize("policy", ["project", "strict"])
def test_all_phases_work_in_an_environment_that_was_built_inside(either: Walled, policy: str) -> None:
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
    plan = make_plan(either, first, second, policy=policy)
    plan["land"] = {"into": "main", "gates": [inside], "sandbox": plan["prompts"][0]["sandbox"]}
    tasks = either.run(plan)
    assert reasons(tasks) == {} and [task["reason"] for task in tasks.values()] == [None] * 2
    assert tasks["a"]["proof"] == "proved"
    copies = [either.git("show", f"main-task-{name}:new") for name in "ab"]
    assert copies[0] != copies[1] and all("-worktrees/.env-main-task-" in copy for copy in copies)
    assert [task["landing"]["status"] for task in tasks.values()] == ["landed"] * 2
    entries = find_entries(either).values()
    manifests = [manifest for entry in entries if (manifest := load_manifest(entry)) is not None]
    assert [manifest.packages for manifest in manifests] == [("demo==1.0", "pytest==1.0")] * 2
    assert not any((entry / "tmp").exists() for entry in entries)


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


@pytest.mark.parametrize("where", [{"workspace": "worktree"}, {"repo": "../repo"}], ids=["here", "mirror"])
def test_precache_builds_inside_what_a_task_then_finds(own: Walled, where: dict[str, Any]) -> None:
    tell = "open('inside', 'w').write(open('/proc/1/cmdline').read())"
    own.write("repo/build_backend/backend.py", f"{BACKEND}\n{tell}\n")
    own.sh("git commit -qam tells")
    (usual,) = make_plan(own, {"agent": "shell"})["prompts"]
    plan = {"prompts": [{"id": "t", "prompt": "grep -q bwrap inside", **where}], "defaults": usual}
    file = own.write("plans/ahead.json", json.dumps(plan))
    own.command("precache", str(file))
    (entry,) = find_entries(own)
    words = ("-q", "--agent", "shell", "--require-cache", str(file))
    (session_id,) = own.command(*words).stdout.split()
    ended = own.finish(SessionDir(own.results / f"session-{session_id}"))["t"]
    assert (ended["outcome"], ended["environment"]["cached"]) == ("succeeded", True), ended["reason"]
    assert ended["environment"]["digest"] == entry


# What tasks might do to environments of others, and by their own.


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


def test_no_entry_is_shared_by_walls_of_different_kinds_and_none(own: Walled) -> None:
    (walled,) = make_plan(own, {"id": "walled", "prompt": "demo"})["prompts"]
    (strict,) = make_plan(own, {"id": "strict", "prompt": "demo"}, policy="strict")["prompts"]
    others = [{**walled, "id": "again"}, {**walled, "id": "open", "sandbox": "none"}]
    tasks = own.run({"prompts": [walled, strict, *others]})
    assert reasons(tasks) == {}
    digests = {name: task["environment"]["digest"] for name, task in tasks.items()}
    assert digests["walled"] == digests["again"] and len(set(digests.values())) == len(find_entries(own)) == 3


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

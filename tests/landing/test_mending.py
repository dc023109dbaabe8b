"""Work that does not land becomes a task that mends it: what it begins with, what is refused, what lands."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from simulation import AGENTS, Scripted, make_session
from stages import make_program, make_repository_of
from test_cli_worktrees import Project, project_in

from sessionrun import api
from sessionrun.client.planning.additions import choose_retried
from sessionrun.git.git import Git
from sessionrun.landing.mends import land_of
from sessionrun.model.events import Event, JobFinished, RequestReceived
from sessionrun.model.keys import JobKey, describe_id_problem
from sessionrun.model.landings import WorkBounced, WorkHeld, WorkLanded
from sessionrun.model.places import Place
from sessionrun.model.spec import Landing, TaskSpec, Workspace
from sessionrun.worktrees import bases

AGENT = """\
# Writes what its prompt says; a mend does what MEND says.
case "$SESSIONRUN_TASK" in
*-mend-*) {mend} ;;
*) sed -n 's/^run: //p' | sh ;;
esac
"""

JOIN = "sed -i -e '/^||||||| /,/^=======$/d' -e '/^<<<<<<< /d' -e '/^=======$/d' -e '/^>>>>>>> /d' f"


class Yard(Project):
    """A repository with a file of one line, and an agent that mends as it is told to."""

    def run(self, plan: dict[str, Any], mend: str, *words: str) -> dict[str, dict[str, Any]]:
        """Run a plan to its end, with an agent that mends so; its tasks by id."""
        agent = make_program(self.cwd.parent / "agent.sh", AGENT.format(mend=mend))
        (self.cwd / "sessionrun.toml").write_text(f'[agents.scripted]\nargv = ["{agent}"]\n')
        (self.cwd / "plan.json").write_text(json.dumps(plan))
        done = self.to_end("run", "--json", "--sync", "--agent", "scripted", "--worktree", *words, "plan.json")
        assert done.returncode in (0, 1), done.stderr
        self.view = json.loads(done.stdout)
        self.sessions.append(self.view["session_id"])
        return {task["id"]: task for task in self.view["tasks"]}


def make_repository(top: Path) -> None:
    make_repository_of(top, {"f": "base\n", ".gitignore": "/sessionrun.toml\n/plan.json\n"})


@pytest.fixture
def yard(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Yard:
    made = project_in(own_place, monkeypatch, make_repository)
    return Yard(made.cwd, made.results)


def write(task: str, text: str, file: str = "f") -> dict[str, Any]:
    return {"id": task, "prompt": f"run: printf '{text}\\n' >{file}"}


def clash(*more: dict[str, Any]) -> dict[str, Any]:
    """Two tasks that write the same line; the second one begins before the first one has landed."""
    return {"prompts": [write("a", "a"), write("b", "b"), *more], "land": {"mends": 2}}


def test_a_conflict_is_mended_and_lands_with_all_that_waits_for_it(yard: Yard) -> None:
    needs = {"id": "c", "prompt": "run: cp f g", "needs": ["a", "b"], "base": "session"}
    tasks = yard.run({**clash(needs), "max_parallel": 2}, JOIN)
    assert yard.view["outcome"] == "succeeded"
    (mend,) = (task for name, task in tasks.items() if "-mend-" in name)
    owner = tasks[mend["id"].removesuffix("-mend-1")]
    assert mend["branch"] == f"{owner['branch']}-mend-1"
    assert [tasks[name]["landing"]["status"] for name in ("a", "b", "c", mend["id"])] == ["landed"] * 4
    assert owner["landing"]["reason"] == f"mended by task {mend['id']}"
    assert sorted(yard.git("show", "main:f").split()) == ["a", "b"]
    assert owner["commit"] in yard.git("rev-list", "main").split()
    assert mend["base_commit"] not in yard.git("rev-list", "main").split(), "its marks are in no history"
    assert yard.git("log", "-p", "main", "--", "f").count("<<<<<<<") == 0
    assert yard.git("rev-list", "--parents", "--no-walk", mend["commit"]).split()[2] == owner["commit"]
    made = mend["base_commit"], mend["commit"]
    subjects = yard.git("log", "--no-walk=unsorted", "--format=%s", *made).split("\n")
    named = f"Mend of {mend['id']}"
    assert subjects == [f"{named}: both sides", named], "not as merges of needs, which can be made again"


@pytest.mark.slow
def test_a_mend_that_leaves_marks_is_refused_and_the_last_one_is_the_end(yard: Yard) -> None:
    tasks = yard.run(clash(), "echo more >>f")
    mends = [task for name, task in tasks.items() if "-mend-" in name]
    assert [task["reason"] for task in mends] == ["mend_refused: marks of the conflict are left in f"] * 2
    owner = tasks[mends[0]["id"].removesuffix("-mend-1")]
    assert owner["landing"]["status"] == "bounced"
    session = api.open_session(yard.results, yard.view["session_id"])
    shown = api.load_view(session)["tasks"]
    _, every, _ = choose_retried(shown, shown, named=False, failed=False, lost=False)
    assert every == [owner["id"]], "mends are not tried again beside it"
    for words, why in {
        ("retry",): f"-mend-1' mends '{owner['id']}': name that one",
        ("continue", "more"): f"mends the work of '{owner['id']}': continue that one",
    }.items():
        refused = yard(words[0], yard.view["session_id"], mends[0]["id"], *words[1:])
        assert (refused.returncode, refused.stdout, why in refused.stderr) == (2, "", True)
    told = "2 mends did not land it: mend_refused: marks of the conflict are left in f"
    assert (owner["landing"]["reason"], yard.view["outcome"]) == (told, "failed")
    assert yard.git("show", "main:f") in ("a", "b")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "mend", "why"),
    [
        ("echo a >f", "echo b >f", "echo other >f", "drops all lines that the branch has added to f"),
        ("printf 'a\\0' >f", "printf 'b\\0' >f", "true", "leaves f just as it found it, without what the "),
    ],
    ids=["one side", "no text"],
)
def test_a_mend_that_loses_a_side_is_refused_once(
    yard: Yard, first: str, second: str, mend: str, why: str
) -> None:
    """What is in conflict without marks would be lost by a mend that does nothing."""
    prompts = [{"id": "a", "prompt": f"run: {first}"}, {"id": "b", "prompt": f"run: {second}"}]
    tasks = yard.run({**clash(), "prompts": prompts}, mend)
    one, two = (task for name, task in tasks.items() if "-mend-" in name)
    assert one["reason"].startswith(f"mend_refused: it {why}")
    assert two["landing"]["status"] == "landed" and two["mends"] == one["mends"]
    (file,) = (yard.directory(yard.view["session_id"]) / "prompts").glob("*-mend-1")
    assert "has no marks: it is there as one side has it" in file.read_text()
    assert yard("wait", yard.view["session_id"]).returncode == 0, "the work landed, by whichever mend"
    assert yard("wait", yard.view["session_id"], one["id"]).returncode == 1


@pytest.mark.slow
def test_what_setups_left_does_not_land_with_a_mend_and_a_wanderer_is_named(yard: Yard) -> None:
    plan = clash()
    plan["prompts"] = [{**task, "setup": "echo set-up >left"} for task in plan["prompts"]]
    tasks = yard.run(plan, f"{JOIN}; echo more >beside")
    (mend,) = (task for name, task in tasks.items() if "-mend-" in name)
    assert {task["landing"]["status"] for task in tasks.values()} == {"landed"}
    assert mend["worktree_remark"] == "beside the conflict it changed beside"
    assert sorted(yard.git("ls-tree", "--name-only", "main").split()) == [".gitignore", "beside", "f"]
    assert sorted(yard.git("show", "main:f").split()) == ["a", "b"]
    done = yard("merge", yard.view["session_id"], "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["old"] == json.loads(done.stdout)["new"], done.stderr


@pytest.mark.slow
def test_a_held_mend_lands_when_its_owner_is_tried_again(yard: Yard) -> None:
    tasks = yard.run(clash(), f"{JOIN}; echo mine >{yard.cwd}/f")
    (mend,) = (task for name, task in tasks.items() if "-mend-" in name)
    assert mend["landing"]["status"] == "held"
    owner = mend["id"].removesuffix("-mend-1")
    waited = yard("wait", yard.view["session_id"], owner, "--timeout", "20")
    assert waited.returncode == 1, "its session has ended: nothing more comes"
    yard.git("checkout", "f")
    done = yard("retry", yard.view["session_id"], owner, "--sync")
    assert done.returncode == 0, done.stderr
    assert sorted((yard.cwd / "f").read_text().split()) == ["a", "b"]


@pytest.mark.slow
@pytest.mark.parametrize("mend", ["echo good >g", "rm -f g"])
def test_a_red_gate_is_mended_and_not_by_undoing_the_work(yard: Yard, mend: str) -> None:
    plan = {"prompts": [write("a", "bad", "g")], "land": {"gates": ["! grep -qs bad g"], "mends": 1}}
    tasks = yard.run(plan, mend)
    (file,) = (yard.directory(yard.view["session_id"]) / "prompts").glob("*a-mend-1*")
    prompt = file.read_text()
    assert prompt.endswith("The end of what the gates printed:\n\n$ ! grep -qs bad g\n")
    assert "exit code 1 of: ! grep -qs bad g" in prompt and "/gate-" in prompt and "run: printf 'bad" in prompt
    if "good" in mend:
        assert tasks["a"]["landing"]["status"] == "landed" and yard.git("show", "main:g") == "good"
        return
    why = "it drops all lines that the work has added, and all else of it"
    assert tasks["a"]["landing"]["reason"] == f"its mend did not land it: mend_refused: {why}"
    assert yard.git("ls-tree", "--name-only", "main").split() == [".gitignore", "f"]


def test_a_mend_that_moves_a_submodule_has_changed_something(tmp_path: Path) -> None:
    """Git says nothing of one that is to be ignored, unless it is asked to."""
    make_repository_of(tmp_path, {".gitmodules": '[submodule "s"]\n\tpath = s\n\turl = ./s\n\tignore = all\n'})
    repository, trees = Git(tmp_path), []
    for commit in "1" * 40, "2" * 40:
        repository("update-index", "--add", "--cacheinfo", f"160000,{commit},s")
        trees.append(repository.line("write-tree"))
    assert bases._list_changed(repository, *trees) == ["s"]


# --- the engine ---


class World(Scripted):
    """A session whose work is bounced.

    For each task whose work a LAND takes, `land` says whether it lands; None: it is held.  `after` is called with
    the key of each job that has ended.
    """

    def __init__(
        self, mends: int, *names: str, max_failures: int | None = None, takes: Literal["text", "script"] = "text"
    ) -> None:
        task = TaskSpec("t", ("do it",), agent="three", workspace=Workspace("worktree"))
        tasks = [replace(task, id=name) for name in names or ("t",)]
        landing = Landing("refs/heads/main", mends=mends)
        agents = {"three": replace(AGENTS["three"], prompt_kind=takes)}
        super().__init__(replace(make_session(tasks, max_failures=max_failures), landing=landing, agents=agents))
        self.after: Callable[[JobKey], None] = lambda key: None

    def run(self, work: Callable[[JobKey], bool], land: Callable[[str], bool | None]) -> None:
        """Let jobs end at once, until nothing is left to do."""
        self.work, self.land = work, land
        self.go_on()
        self.examine_replay()

    def begins(self, key: JobKey) -> None:
        if key.phase == "land":
            for name in land_of(self.state).taken:
                ends: dict[bool | None, Event] = {
                    True: WorkLanded(name, "main", "c"),
                    False: WorkBounced(name, "main", "conflict", f"{name} conflicts", ("f",)),
                    None: WorkHeld(name, "main", "dirty", "a file is in the way", "git stash"),
                }
                self.record(ends[self.land(name)])
            self.record(JobFinished(key, "passed"))
        else:
            good = key.phase != "work" or self.work(key)
            top = None if key.phase == "release" else "/w"
            place = Place(f"b-{key.task}", top, "base", commit=f"tip-{key.task}-{key.attempt}")
            self.record(JobFinished(key, "passed" if good else "failed", place=place))
        self.after(key)

    def landings(self) -> dict[str, str | None]:
        return {name: task.landing and task.landing.status for name, task in self.state.tasks.items()}


def test_each_mend_begins_with_the_last_work_there_is() -> None:
    world = World(3)
    world.run(lambda key: key.task != "t-mend-2", lambda name: name == "t-mend-3")
    assert world.landings() == {"t": "landed", "t-mend-1": "bounced", "t-mend-2": None, "t-mend-3": "landed"}
    sources = [task.spec.mend.source for task in world.state.tasks.values() if task.spec.mend is not None]
    assert sources == ["t", "t-mend-1", "t-mend-1"]
    assert world.state.ended is not None and world.state.ended.outcome == "succeeded"


def test_after_the_last_mend_the_work_is_bounced_and_retry_begins_anew() -> None:
    world = World(2)
    world.run(lambda key: True, lambda name: False)
    assert world.landings() == {"t": "bounced", "t-mend-1": "bounced", "t-mend-2": "bounced"}
    landing = world.state.tasks["t"].landing
    assert landing is not None and landing.reason == "2 mends did not land it: t-mend-2 conflicts"
    assert world.state.ended is not None and world.state.ended.outcome == "failed"
    world.record(RequestReceived("r", "retry", ("t",)))
    world.run(lambda key: True, lambda name: name == "t-mend-3")
    assert world.landings()["t"] == "landed" and world.state.ended is not None


def test_an_agent_that_takes_scripts_gets_no_mend() -> None:
    world = World(2, takes="script")
    world.run(lambda key: True, lambda name: False)
    assert world.landings() == {"t": "bounced"}


def test_a_mend_that_fails_stops_nothing_else() -> None:
    world = World(2, "t", "other", max_failures=1)
    world.run(lambda key: key.task != "t-mend-1", lambda name: name != "t")
    assert world.landings() == {"t": "landed", "other": "landed", "t-mend-1": None, "t-mend-2": "landed"}
    assert world.state.ended is not None and world.state.ended.outcome == "succeeded"


def test_the_id_of_a_mend_is_a_good_one_and_no_other_task_has_it() -> None:
    owners = ("a" * 127 + "1", "a" * 127 + "2", "b", "B-Mend-1")
    world = World(1, *owners)
    world.run(lambda key: True, lambda name: name not in owners[:3])
    mends = [name for name, task in world.state.tasks.items() if task.spec.mend is not None]
    assert mends == [f"{'a' * 100}-mend-1", f"{'a' * 100}-mend-2", "b-mend-2"]
    assert [describe_id_problem(name) for name in mends] == [None] * 3


@pytest.mark.parametrize("named", [("t",), ("t-mend-1",), ()])
def test_a_mend_that_is_held_lands_after_a_retry(named: tuple[str, ...]) -> None:
    world = World(1)
    world.run(lambda key: True, lambda name: None if name == "t-mend-1" else False)
    assert world.landings() == {"t": "mending", "t-mend-1": "held"} and world.state.ended is not None
    world.record(RequestReceived("r", "retry", named, outcomes=() if named else ("failed",)))
    world.run(lambda key: True, lambda name: name == "t-mend-1")
    assert world.landings() == {"t": "landed", "t-mend-1": "landed"}


def test_a_mend_that_is_cancelled_is_the_last_one() -> None:
    world = World(3)

    def work(key: JobKey) -> bool:
        if key.task == "t-mend-1":
            world.record(RequestReceived("r", "cancel", ("t-mend-1",)))
        return key.task == "t"

    world.run(work, lambda name: False)
    assert world.landings() == {"t": "bounced", "t-mend-1": None}
    world.record(RequestReceived("r2", "retry", outcomes=("failed", "cancelled")))
    world.run(lambda key: True, lambda name: True)
    assert world.landings() == {"t": "landed", "t-mend-1": None}, "the mend is not tried again beside its owner"


@pytest.mark.parametrize("lands", [True, False])
def test_a_mend_does_not_count_any_more_after_a_follow_up(lands: bool) -> None:
    """What the follow-up makes is other work: it lands, or bounces, by itself."""
    world = World(1)

    def work(key: JobKey) -> bool:
        if key.task == "t-mend-1":
            world.record(RequestReceived("r", "continue", ("t",), text="more"))
        return True

    seen = []

    def look(key: JobKey) -> None:
        if key.task == "t-mend-1" and key.phase == "land":
            seen.append(world.landings()["t"])

    world.after = look

    def land(name: str) -> bool:
        return lands if name == "t-mend-1" else bool(world.state.tasks["t"].follow_ups)

    world.run(work, land)
    assert seen == ["waiting"], "its follow-up is at work when the mend lands, or bounces"
    assert world.landings() == {"t": "landed", "t-mend-1": "landed" if lands else "bounced"}
    assert world.state.ended is not None


@pytest.mark.parametrize("when", ["held", "cancelled", "cancelled when one is owed"])
def test_no_mend_begins_in_a_session_that_is_held_or_cancelled(when: str) -> None:
    world, held = World(2), when == "held"

    def land(name: str) -> bool:
        if "owed" not in when:
            world.record(RequestReceived("r", "hold" if held else "cancel"))
        return False

    def look(key: JobKey) -> None:
        if key.phase == "land" and "owed" in when:
            assert list(land_of(world.state).to_mend) == ["t"]
            world.record(RequestReceived("r", "cancel"))

    world.after = look
    world.run(lambda key: True, land)
    assert list(world.state.tasks) == ["t"]
    assert world.landings() == {"t": "mending" if held else "bounced"}
    assert (world.state.ended is None) is held
    assert list(land_of(world.state).to_mend) == (["t"] if held else [])
    if held:
        world.record(RequestReceived("r2", "release"))
        world.run(lambda key: True, lambda name: True)
        assert world.landings() == {"t": "landed", "t-mend-1": "landed"}

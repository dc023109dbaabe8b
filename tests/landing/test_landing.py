"""Landing work on a branch: batches, gates, conflicts, one of several attempts, and the forecast; on real git."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import eventually
from landings import CHECK, MAIN, Yard, make_yard
from simulation import make_session
from stages import put_first

from sessionrun.client.reading.comparison import rank_attempts
from sessionrun.git.private import open_fence
from sessionrun.landing import gates
from sessionrun.landing.phases import enclose_gates
from sessionrun.landing.queue import forecast
from sessionrun.landing.records import Entry, Gates, Report
from sessionrun.landing.target import Slot
from sessionrun.landing.turn import land
from sessionrun.model.asked import Cluster, Sandbox
from sessionrun.model.errors import SessionrunError
from sessionrun.model.keys import JobKey
from sessionrun.session.shared import Site
from sessionrun.store.session import SessionDir
from sessionrun.worktrees.request import EnvironmentProblem, EnvironmentRequest


@pytest.fixture
def yard(own_place: Path) -> Yard:
    """`main` is checked out nowhere."""
    return make_yard(own_place, detached=True)


# --- batches and gates ---


def test_a_batch_lands_as_one_merge_over_a_chain(yard: Yard) -> None:
    before = yard.git("rev-parse", "main")
    entries = [yard.add(name, {f"{name}.txt": name}) for name in ("one", "two", "three")]
    report = yard.land(CHECK)
    assert (report.old, report.new) == (before, yard.git("rev-parse", "main"))
    assert report.gate_runs == 1
    assert {fate.commit for fate in report.fates} == {report.new}
    assert yard.git("rev-parse", "main^1") == before, "the gated state is one first-parent commit"
    chain = yard.git("log", "--first-parent", "--format=%s", f"{before}..main^2").split("\n")
    assert chain == ["Merge task three: do three", "Merge task two: do two", "Merge task one: do one"]
    for entry in entries:
        yard.git("merge-base", "--is-ancestor", entry.tip, "main")
    assert yard.examine(["one", "two", "three"]) == []
    assert yard.git("status", "--porcelain") == "", "the user's checkout was not touched"
    assert yard.git("for-each-ref", "refs/sessionrun") == "", "nothing is left that needs the pin"


def test_on_a_full_disk_no_environment_of_gates_stays(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object) -> None:
        raise EnvironmentProblem("it cannot be made")

    dropped: list[Path] = []
    monkeypatch.setattr(gates, "provide_environment", fail)
    monkeypatch.setattr(gates, "drop_environment", dropped.append)
    request = yard.request()
    request = replace(request, gates=Gates(("true",), environment=EnvironmentRequest("", "", "")))
    Path(request.folder).mkdir(parents=True)
    with open_fence(request.repository) as fence, pytest.raises(OSError, match="No space left"):
        room = gates.open_gates(fence, request, yard.git("rev-parse", "main"))
        with open("/dev/full", "wb") as stream:
            room._run_all("", stream)
    assert dropped == [room.path]


def test_one_task_lands_by_its_own_merge_and_is_reverted_by_itself(yard: Yard) -> None:
    yard.add("one", {"one.txt": "1"}, trailers=("Sessionrun-Task: one",))
    yard.land()
    told = yard.git("log", "-1", "--format=%s|%(trailers:key=Sessionrun-Task,valueonly)", "main")
    assert told == "Merge task one: do one|one"
    yard.add("two", {"two.txt": "2"})
    yard.add("three", {"three.txt": "3"})
    yard.land()
    merge = yard.git("log", "--format=%H", "--grep=Merge task two", "main")
    yard.git("switch", "-q", "main")
    yard.git("revert", "--no-edit", "-m", "1", merge)
    assert "two.txt" not in yard.files() and "three.txt" in yard.files()
    assert yard.land().old == yard.git("rev-parse", "main"), "what a person took back does not land again"


def test_the_longest_green_prefix_lands_and_the_culprit_is_bounced(yard: Yard) -> None:
    for number in range(8):
        yard.add(f"t{number}", {f"t{number}.txt": "BAD" if number == 5 else "good"})
    report = yard.land(CHECK, batch=8)
    assert yard.statuses(report) == {f"t{number}": "bounced" if number == 5 else "landed" for number in range(8)}
    (bounced,) = (fate for fate in report.fates if fate.status == "bounced")
    assert bounced.reason == f"exit code 1 of: {CHECK}"
    assert CHECK in Path(bounced.output).read_text()
    assert report.gate_runs == 7, "8 red, the target, 4 green, 6 red, 5 green, 6 once more, and the two left"
    assert yard.examine([f"t{number}" for number in range(8) if number != 5]) == []


@pytest.mark.parametrize("order", [("left", "right"), ("right", "left")])
def test_of_two_that_are_red_only_together_the_first_in_the_queue_wins(yard: Yard, order: tuple[str, str]) -> None:
    for name in order:
        yard.add(name, {f"{name}.txt": name})
    report = yard.land("! test -e left.txt -a -e right.txt")
    assert yard.statuses(report) == {order[0]: "landed", order[1]: "bounced"}


@pytest.mark.parametrize(("tasks", "runs"), [(1, 4), (8, 3)])
def test_a_red_target_holds_and_blames_no_task(yard: Yard, tasks: int, runs: int) -> None:
    """Before a search for the culprit it is asked."""
    yard.git("update-ref", "refs/heads/main", yard.commit({"a.txt": "BAD"}))
    names = [yard.add(f"t{number}", {f"t{number}.txt": "good"}).task for number in range(tasks)]
    report = yard.land(CHECK, batch=8)
    assert report.hold is not None and report.hold.reason_class == "target_red"
    assert yard.statuses(report) == dict.fromkeys(names, "held")
    assert report.gate_runs == runs, "those of the tasks are red, and the target is twice"
    yard.git("update-ref", "refs/heads/main", yard.commit({"a.txt": "good"}))
    assert yard.statuses(yard.land(CHECK)) == dict.fromkeys(names, "landed")


@pytest.mark.parametrize(
    ("gate", "why"),
    [
        ("node_modules/.bin/jest", "not found: node_modules/.bin/jest"),
        ("no-such-program-anywhere -q", "not found: no-such-program-anywhere -q"),
        ("./a.txt", "not executable: ./a.txt"),
    ],
)
def test_a_gate_that_cannot_be_run_is_told_and_blames_no_task(yard: Yard, gate: str, why: str) -> None:
    yard.add("one", {"one.txt": "1"})
    yard.add("two", {"two.txt": "2"})
    report = yard.land(gate)
    assert report.hold is not None and report.hold.reason_class == "gate_not_run"
    assert report.hold.reason == f"the gate could not be run: {why}" and "git ignores" in report.hold.mend
    assert yard.statuses(report) == {"one": "held", "two": "held"} and report.gate_runs == 2


def test_work_that_takes_a_gate_s_program_away_is_bounced(yard: Yard) -> None:
    """The target's own version of the gate is there, so what it runs is what the work has taken away."""
    yard.git("update-ref", "refs/heads/main", yard.commit({"gate.sh": "sh ./inner.sh", "inner.sh": "exit 0"}))
    yard.add("good", {"good.txt": "1"})
    yard.add("bad", {"inner.sh": None})
    report = yard.land("sh gate.sh || exit 127")
    assert yard.statuses(report) == {"good": "landed", "bad": "bounced"}


def test_a_gate_that_is_red_once_is_flaky_and_blames_no_task(yard: Yard) -> None:
    yard.add("one", {"one.txt": "1"})
    mark = yard.top.parent / "tried"
    report = yard.land(f"test -e '{mark}' || {{ touch '{mark}'; exit 1; }}")
    assert yard.statuses(report) == {"one": "landed"}
    assert "flaky" in report.fates[0].reason
    assert report.gate_runs == 2


def test_a_landing_waits_until_the_one_before_it_has_ended_and_says_so(yard: Yard) -> None:
    yard.add("one", {"one.txt": "1"})
    request, told = yard.request(), list[str]()
    slot = Slot(request.repository, request.target)
    with ThreadPoolExecutor(1) as pool:
        with slot.hold():
            landing = pool.submit(land, request, told.append)
            eventually(lambda: told)
            assert told == ["another landing on main is under way: waiting for its end"]
            with pytest.raises(SessionrunError, match="was held for 0 s by another process"):
                slot.hold(limit_s=0.0).__enter__()
        assert landing.result().fates[0].status == "landed"
    assert yard.land().fates[0].status == "landed"


@pytest.mark.slow
def test_verdicts_are_kept_by_tree_and_gate(yard: Yard) -> None:
    """What was green needs no gate again; what was red is tried anew at the next landing."""
    yard.add("one", {"one.txt": "1"})
    yard.add("bad", {"bad.txt": "BAD"})
    assert yard.land(CHECK, batch=1).gate_runs == 3
    yard.git("update-ref", "refs/heads/main", "main~1")
    assert yard.land(CHECK, batch=1).gate_runs == 2, "two of what was red, none of what was green"


def test_a_name_that_is_not_utf_8_is_told(yard: Yard) -> None:
    yard.add("one", {'"\\377.txt"': "1\n"})
    yard.add("two", {'"\\377.txt"': "2\n"})
    (fate,) = yard.land().fates[1:]
    assert (fate.status, fate.files) == ("bounced", ("\\xff.txt",))
    assert fate.reason == "it conflicts with main in \\xff.txt, which one changed"


@pytest.mark.slow
def test_the_target_s_version_of_a_gate_counts_and_a_task_s_own_must_pass_too(yard: Yard) -> None:
    first = yard.commit({"gate.sh": "! grep -rqs BAD --include=*.txt .\n", "Makefile": "test:\n\tsh gate.sh\n"})
    yard.git("update-ref", "refs/heads/main", first)
    yard.add("bends", {"gate.sh": "true\n", "Makefile": "test:\n\ttrue\n", "bends.txt": "BAD"})
    yard.add("breaks", {"gate.sh": "false\n"})
    yard.add("betters", {"gate.sh": "! grep -rqs 'BAD\\|WORSE' --include=*.txt .\n"})
    report = yard.land("sh ./gate.sh && make -s test", batch=1)
    assert yard.statuses(report) == {"bends": "bounced", "breaks": "bounced", "betters": "landed"}
    assert report.fates[0].reason.endswith(" (with the target's Makefile, gate.sh)")
    assert "WORSE" in yard.read("gate.sh")


def test_a_gate_sees_the_candidate_alone_and_cannot_touch_the_repository(yard: Yard) -> None:
    yard.add("one", {"one.txt": "1"})
    yard.add("two", {"two.txt": "2"})
    branch = "git update-ref refs/heads/main HEAD~1 2>/dev/null; git checkout -q -b mine; echo x > left; rm a.txt"
    report = yard.land(f"test ! -e left -a -e a.txt; {branch}", batch=1)
    assert yard.statuses(report) == {"one": "landed", "two": "landed"}
    assert yard.git("for-each-ref", "refs/heads/mine") == ""
    assert yard.git("worktree", "list").count("\n") == 0


@pytest.mark.slow
def test_a_gate_has_a_limit_of_time_and_leaves_no_process(yard: Yard) -> None:
    yard.add("one", {"one.txt": "1"})
    place = yard.top.parent / "pids"
    place.mkdir()
    gate = f"sleep 600 & echo > '{place}'/$!; echo > '{place}'/$$; sleep 600"
    report = land(replace(yard.request(), gates=Gates((f"test ! -e one.txt || {{ {gate}; }}",), 0.2)))
    assert report.fates[0].reason.startswith("not done after 0.2 s of: test ! -e one.txt")
    left = [int(path.name) for path in place.iterdir()]
    assert len(left) == 4, "it ran twice"
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in left))


def test_walls_around_gates_name_places_of_this_machine_though_tasks_run_on_nodes(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a verdict holds for the same walls alone."""
    session, request = SessionDir(yard.top.parent / "session-s"), yard.request()
    (session.path / "jobs").mkdir(parents=True)
    spec = replace(make_session([]), repository=request.repository, cluster=Cluster("tls://h:1"))
    site, key = Site(session, lambda: spec), JobKey("one", 1, 1, "land", 1)
    monkeypatch.setattr(gates, "raise_if_any", lambda wish: None)
    digests = set()
    for sandbox in (None, Sandbox("project"), Sandbox("strict")):
        enclosed = enclose_gates(site, Gates(("true",)), MAIN, sandbox, key)
        assert sandbox is None or (enclosed.walls is not None and Path(enclosed.walls.cache).is_absolute())
        with open_fence(request.repository) as fence:
            digests.add(gates.open_gates(fence, replace(request, gates=enclosed), MAIN).digest)
    assert len(digests) == 3


def test_a_gate_dies_with_the_landing(yard: Yard) -> None:
    """Else it would go on in the room of the next one."""
    yard.add("one", {"one.txt": "1"})
    pids = yard.top.parent / "pids"
    request = yard.request(
        f"test -e '{pids}' || {{ echo $$ $PPID > '{pids}.new'; mv '{pids}.new' '{pids}'; sleep 600; }}"
    )
    child = os.fork()
    if child == 0:
        try:
            land(request)
        finally:
            os._exit(0)
    eventually(pids.exists)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    eventually(lambda: not any(psutil.pid_exists(int(pid)) for pid in pids.read_text().split()))
    assert yard.statuses(land(request)) == {"one": "landed"}


# --- what waits and what is refused ---


@pytest.mark.parametrize("old_git", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_conflict_is_bounced_with_its_files_and_leaves_nothing_dirty(
    yard: Yard, old_git: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by git before 2.38, which has no `merge-tree --write-tree`: by an index."""
    if old_git:
        says = '*" version "*) echo git version 2.37.1; exit;;'
        script = f'case " $* " in {says} *" merge-tree "*) exit 129;; esac'
        put_first(yard.top.parent, monkeypatch, script)
    yard.add("first", {"a.txt": "first\n", "other.txt": "x"})
    yard.add("second", {"a.txt": "second\n", "d/c.txt": "also\n"})
    yard.add("third", {"third.txt": "3"})
    report = yard.land(CHECK)
    assert yard.statuses(report) == {"first": "landed", "second": "bounced", "third": "landed"}
    fate = report.fates[1]
    assert (fate.reason_class, fate.files, fate.against) == ("conflict", ("a.txt",), ("first",))
    assert fate.reason == "it conflicts with main in a.txt, which first changed"
    assert yard.examine(["first", "third"]) == []
    assert yard.git("status", "--porcelain") == ""


def test_a_need_that_is_not_wanted_now_is_waited_for(yard: Yard) -> None:
    need = yard.add("need", {"need.txt": "n"}, wanted=False)
    yard.add("user", {"user.txt": "u"}, need.tip, needs=("need",))
    assert yard.statuses(yard.land()) == {"user": "waiting"}
    yard.git("update-ref", "refs/heads/main", need.tip)
    assert yard.statuses(yard.land()) == {"user": "landed"}, "whatever way it came there"


def test_a_need_is_tried_before_its_task_wherever_it_stands_in_the_queue(yard: Yard) -> None:
    yard.add("user", {"user.txt": "u"}, needs=("need",))
    yard.add("need", {"need.txt": "BAD"})
    yard.add("other", {"other.txt": "o"})
    assert yard.statuses(yard.land(CHECK)) == {"user": "waiting", "need": "bounced", "other": "landed"}


def test_what_is_there_by_content_has_landed(yard: Yard) -> None:
    yard.add("one", {"one.txt": "1"})
    squashed = yard.commit({"one.txt": "1"}, message="by hand")
    yard.git("update-ref", "refs/heads/main", squashed)
    report = yard.land(CHECK)
    assert (report.fates[0].status, report.fates[0].reason) == ("landed", "already there by content")
    assert report.new == squashed


def test_work_lands_only_from_a_branch_that_holds_it(yard: Yard) -> None:
    """A person rejects work by deleting its branch, or goes on in another way."""
    landed = yard.add("landed", {"landed.txt": "1"})
    yard.land()
    names = ("lost", "amended", "ahead", "none")
    entries = [landed, *(yard.add(name, {f"{name}.txt": "1"}) for name in names)]
    needs = yard.add("needs", {"needs.txt": "1"}, needs=("lost",))
    gone = Entry("gone", "f" * 40, landed.base)
    yard.git("branch", "-qD", "main-task-lost", "main-task-landed")
    yard.git("branch", "-qf", "main-task-amended", yard.commit({"amended.txt": "2"}, "main"))
    more = yard.commit({"more.txt": "1"}, entries[3].tip)
    yard.git("branch", "-qf", "main-task-ahead", more)
    branches = {name: f"main-task-{name}" for name in ("landed", "lost", "amended", "ahead", "needs")}
    yard.entries = [replace(entry, branch=branches.get(entry.task, "")) for entry in (*entries, needs)]
    yard.entries.append(gone)
    report = yard.land()
    ends = dict.fromkeys(("landed", "ahead", "none"), "landed") | dict.fromkeys(("lost", "amended"), "held")
    assert yard.statuses(report) == {**ends, "needs": "waiting", "gone": "bounced"}
    assert report.fates[-1].reason_class == "work_gone"
    yard.entries.remove(gone)
    reasons = {fate.task: fate.reason for fate in report.fates}
    assert f"git branch main-task-lost {entries[1].tip[:12]}" in reasons["lost"]
    assert "sessionrun merge 5e551011 amended --take-branches" in reasons["amended"]
    assert {"more.txt", "none.txt"} <= set(yard.files()) and not {"lost.txt", "amended.txt"} & set(yard.files())
    yard.git("gc", "-q", "--prune=now")  # the pin holds what was deleted
    taken = yard.statuses(yard.land(take="branches"))
    assert [taken[name] for name in (*names, "needs")] == ["held", "landed", "landed", "landed", "waiting"]
    assert yard.read("amended.txt") == "2"
    report = yard.land(take="recorded")
    assert (report.fates[1].status, report.fates[-1].status) == ("landed", "landed") and "lost.txt" in yard.files()


def test_a_new_link_to_another_repository_never_lands(yard: Yard) -> None:
    """A tool made a repository inside of the worktree: its files are in no commit of the task."""
    hollow = yard.add("hollow", {"fe": f"@{'a' * 40}"})
    later = yard.add("later", {"later.txt": "1"}, hollow.tip, needs=("hollow",))
    yard.add("other", {"other.txt": "1"})
    report = yard.land()
    assert yard.statuses(report) == {"hollow": "bounced", "later": "waiting", "other": "landed"}
    assert report.fates[1].reason == "it needs hollow, not landed"
    assert (report.fates[0].reason_class, report.fates[0].files) == ("repository_inside", ("fe",))
    yard.git("update-ref", MAIN, hollow.tip)  # where the target has the link, a task may move it
    moved = yard.commit({"x.txt": "1"}, later.tip)
    yard.entries[:] = [Entry("moves", moved, hollow.tip)]
    assert yard.statuses(yard.land()) == {"moves": "landed"}


@pytest.mark.slow
def test_what_setup_left_does_not_land(yard: Yard) -> None:
    base = yard.git("rev-parse", "main")
    setup = yard.commit({"set.txt": "set", "a.txt": "a\nset\n"}, message="Setup of task one")
    one = yard.add("one", {"one.txt": "1"}, setup)
    other = yard.commit({"set2.txt": "set"}, one.tip, message="Setup of task two")
    yard.add("two", {"two.txt": "2", "one.txt": "12"}, other, needs=("one",))
    clash = yard.commit({"gone.txt": "set"}, message="Setup of task clash")
    yard.add("clash", {"gone.txt": "set and more"}, clash)
    yard.setups = (setup, other, clash)
    report = yard.land()
    assert yard.statuses(report) == {"one": "landed", "two": "landed", "clash": "bounced"}
    assert (report.fates[2].reason_class, report.fates[2].files) == ("setup_conflict", ("gone.txt",))
    assert yard.git("diff", "--name-only", base, "main").split("\n") == ["one.txt", "two.txt"]
    assert yard.git("log", "--format=%s", "--grep=^Setup", "main") == ""
    assert yard.git("log", "--format=%s", "--grep=^Work", "main") == "Work of task two\nWork of task one"
    again = yard.land()
    assert yard.statuses(again) == yard.statuses(report), "what landed is known without any record"
    assert again.old == again.new


# --- one of several attempts at a task ---


def attempt(name: str, group: str = "x", **more: Any) -> dict[str, Any]:
    usual = {"id": name, "num": 1, "labels": {"task": group}, "check": None, "proof": None, "usage": None}
    return {**usual, "diff_stat": {"files": 1, "insertions": 5, "deletions": 0}, **more}


def stat(insertions: int, deletions: int = 0) -> dict[str, int]:
    return {"files": 1, "insertions": insertions, "deletions": deletions}


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"check": {"passed": True}, "diff_stat": stat(9)}, {}),
        ({"proof": "proved", "diff_stat": stat(9)}, {}),
        ({"diff_stat": stat(9)}, {"check": {"passed": False}}),
        ({"diff_stat": stat(9)}, {"check": {"passed": True}, "proof": "unproved"}),
        ({"diff_stat": stat(1, 2)}, {"diff_stat": stat(0, 4)}),
        ({"num": 2}, {"diff_stat": None}),
        ({"usage": {"cost_usd": 2.0}, "num": 2}, {"usage": {"cost_usd": 3.0}}),
        ({"usage": {"cost_usd": 9.0}, "num": 2}, {"usage": {"cost_usd": None}}),
        ({}, {"num": 2}),
    ],
)
def test_the_better_attempt_comes_first(better: Mapping[str, Any], worse: Mapping[str, Any]) -> None:
    tasks = [attempt("worse", **worse), attempt("better", **better)]
    assert rank_attempts(tasks) == rank_attempts(tasks[::-1]) == {"x": ["better", "worse"]}


def test_a_task_without_the_label_is_a_group_of_its_own() -> None:
    tasks = [attempt("a"), {**attempt("b"), "labels": {}}, attempt("c", "y"), attempt("d", num=2)]
    assert rank_attempts(tasks) == {"x": ["a", "d"], "b": ["b"], "y": ["c"]}


# --- on real git ---


def reasons(report: Report) -> dict[str, tuple[str, str]]:
    return {fate.task: (fate.status, fate.reason) for fate in report.fates}


def test_an_attempt_that_nobody_asked_for_but_that_landed_keeps_the_others_out(yard: Yard) -> None:
    first = yard.add("x1", {"x.txt": "1"}, wanted=False)
    yard.add("x2", {"x.txt": "2"})
    yard.git("update-ref", MAIN, first.tip)
    assert reasons(yard.land(groups=(("x2", "x1"),))) == {"x2": ("none", "x1 landed")}


def test_a_hold_ends_the_choice(yard: Yard) -> None:
    yard.git("update-ref", MAIN, yard.commit({"a.txt": "BAD"}))
    yard.add("x1", {"x.txt": "1"})
    yard.add("x2", {"x.txt": "2"})
    chosen = yard.land(CHECK, groups=(("x1", "x2"),))
    assert chosen.hold is not None and chosen.hold.reason_class == "target_red"
    told = reasons(chosen)
    assert (told["x1"][0], told["x2"]) == ("held", ("none", "x1 was chosen, and is held"))


@pytest.mark.slow
def test_of_the_best_that_conflict_the_next_best_is_tried(yard: Yard) -> None:
    """The best attempts at `x` and `y` conflict; the second best at `y` conflicts with `main`."""
    for name, file in {"x1": "shared.txt", "x2": "x.txt", "y1": "shared.txt", "y2": "b.txt"}.items():
        yard.add(name, {file: f"{name}\n"})
    yard.git("update-ref", MAIN, yard.commit({"b.txt": "moved\n"}))
    request = yard.request(CHECK, groups=(("x1", "x2"), ("y1", "y2")))
    for how, words in ((forecast, ("ready", "x1 would land")), (land, ("landed", "x1 landed"))):
        told = reasons(how(request))
        assert (told["x1"][0], told["x2"]) == (words[0], ("none", words[1]))
        assert (told["y1"][0], told["y2"][0]) == ("bounced", "bounced"), "x1 was first, and y2 clashes with main"


# --- the forecast ---


def test_a_forecast_says_what_would_land_and_what_is_in_the_way(yard: Yard) -> None:
    yard.add("one", {"a.txt": "1\n", "new.txt": "1\n"})
    yard.add("two", {"a.txt": "2\n"})
    yard.add("three", {"new.txt": "3\n"})
    yard.add("alone", {"alone.txt": "4\n"})
    yard.add("twin", {"alone.txt": "4\n"})
    need = yard.add("need", {"d/c.txt": "need\n"})
    yard.add("user", {"d/c.txt": "user\n"}, need.tip, needs=("need",))
    yard.add("both", {"both.txt": "b\n"}, yard.entries[1].tip, needs=("two",))
    report = forecast(yard.request(CHECK, batch=2))
    ready = dict.fromkeys(("one", "alone", "twin", "need", "user"), "ready")
    assert yard.statuses(report) == {**ready, "two": "bounced", "three": "bounced", "both": "waiting"}
    told = {fate.task: (fate.files, fate.against) for fate in report.fates}
    assert not any(fate.reason for fate in report.fates if fate.status == "ready"), "main has nothing of it yet"
    assert (told["two"], told["three"]) == ((("a.txt",), ("one",)), (("new.txt",), ("one",)))

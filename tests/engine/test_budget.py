"""Budgets: nothing starts that there is no money for, every task still ends, and it is said why.

Without task budgets the first job of each agent and model runs alone until its cost is known.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from agent_samples import sample_path
from conftest import Command, eventually
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulation import Drive, Fate, FateKind, SimulatedExecutor, make_session
from stages import make_program

from sessionrun.agents import table
from sessionrun.engine.money import find_task_budget, to_nano
from sessionrun.engine.state import BUDGET, Money, Rate, State
from sessionrun.engine.status import project
from sessionrun.engine.task import TaskState
from sessionrun.model.events import (
    BudgetRefused,
    Entry,
    Event,
    HoldPlaced,
    JobClaimed,
    JobFinished,
    RequestReceived,
)
from sessionrun.model.spec import SLOT, AgentSpec, Check, Job, Limits, SessionSpec, TaskSpec, Workspace
from sessionrun.model.usage import Usage

AGENTS = {
    "ai": AgentSpec(name="ai", argv=("ai",), output="claude"),
    "other": AgentSpec(name="other", argv=("ai",), output="claude"),
    "text": AgentSpec(name="text", argv=("ai",)),
    "shell": AgentSpec(name="shell", argv=("sh",), prompt_kind="script"),
}
KINDS: tuple[FateKind, ...] = ("exits", "exits", "exits", "lost", "void", "unstartable")
PRICES = {"ai": 1.0, "ai/m": 2.5, "other": 0.25}
PROFILE = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def make(*tasks: TaskSpec, slots: int | None = None, **limits: float) -> SessionSpec:
    resources = {} if slots is None else {SLOT: slots}
    return replace(make_session(tasks, resources=resources), agents=AGENTS, limits=Limits(**limits))  # type: ignore[arg-type]


def task(name: str, agent: str = "ai", **fields: Any) -> TaskSpec:
    return TaskSpec(id=name, prompts=("x",), agent=agent, **fields)


class Paid(Drive):
    """A session whose jobs cost what a table says, by task (US dollars, None: nobody knows); it checks itself.

    `fates` are by the key of a job, or by task and phase; `priced`: what has no cost told no tokens either.
    """

    def __init__(
        self,
        spec: SessionSpec,
        costs: Mapping[str, float | None],
        fates: Mapping[str, Fate] | None = None,
        planned: list[tuple[float, Event]] | None = None,
        *,
        priced: bool = True,
    ) -> None:
        def fate_of(job: Job) -> Fate:
            known = fates or {}
            return known.get(job.key.text()) or known.get(f"{job.key.task}/{job.key.phase}", Fate(duration_s=1.0))

        self.costs, self.priced = costs, priced
        self.works: dict[str, float] = {}
        self.most = 0
        self.shown: list[dict[str, Any]] = []
        super().__init__(spec, SimulatedExecutor(fate_of), planned or (), self._look, replays=True)

    def record(self, event: Event) -> None:
        """Say what a job cost that ran; note when the first WORK of a task was claimed."""
        if isinstance(event, JobClaimed) and event.key.phase == "work":
            self.works.setdefault(event.key.task, self.executor.clock())
        if isinstance(event, JobFinished) and event.key.phase == "work" and event.wait_status is not None:
            cost = self.costs.get(event.key.task, 1.0)
            known = self.state.spec.agents[self.state.tasks[event.key.task].spec.agent].prompt_kind == "text"
            used = Usage(10, 10, cost, cost_source="agent") if cost is not None and known else None
            used = used if self.priced else Usage(10, 10)
            event = replace(event, usage=used, model="m")
        super().record(event)

    def _look(self, state: State, entry: Entry) -> None:
        money = state.money
        assert money.reserved >= 0
        assert money.working >= 0
        self.most = max(self.most, money.spent + money.reserved)
        firsts = Counter(filter(None, (find_first(state, task) for task in state.tasks.values())))
        assert all(count == 1 for count in firsts.values()), "a second first job"
        self.shown.append(project(state))

    def run(self) -> Paid:
        super().run()
        return self

    @property
    def ends(self) -> dict[str, tuple[str | None, str | None]]:
        return {name: (one.outcome, one.reason_class) for name, one in self.state.tasks.items()}


class Obedient(Paid):
    """Its programs stop where the budget of their task ends, as those do that are told it."""

    def record(self, event: Event) -> None:
        """Say what a job cost, and no more than was left."""
        if isinstance(event, JobFinished) and (cost := self.costs.get(event.key.task)) is not None:
            one = self.state.tasks[event.key.task]
            spent = one.usage.cost_usd if one.usage and one.usage.cost_usd else 0.0
            whole = find_task_budget(self.state.spec.limits, one.spec) or 0.0
            self.costs = {**self.costs, one.spec.id: min(cost, max(0.0, whole - spent))}
        super().record(event)


def find_first(state: State, task: TaskState) -> str | None:
    """The agent and model of a task that works, if nothing is known of them that it would have to wait for."""
    limits, name = state.spec.limits, f"budget {task.agent}/{task.asked_model}".removesuffix("/None")
    works = task.job is not None and task.job.key.phase == "work" and task.agent in ("ai", "other")
    rate = state.money.rates.get(name, Rate())
    is_known = rate.known_jobs or rate.silent >= 3 or find_task_budget(limits, task.spec) is not None
    return name if works and not is_known and limits.budget_usd is not None else None


World = tuple[SessionSpec, dict[str, float | None], dict[str, Fate], list[Any]]
"""A spec, what its tasks cost, what becomes of their jobs, and what happens when."""


def run_world(world: World, kind: type[Paid] = Paid) -> Paid:
    """The session after its end, when no money is set aside for a job any more."""
    drive = kind(*world).run()
    assert drive.state.ended is not None
    assert (drive.state.money.reserved, drive.state.money.working) == (0, 0)
    return drive


# --- the rules ---


def test_the_hard_budget_lets_start_what_it_can_pay() -> None:
    spec = make(*(task(f"t{num}") for num in range(6)), slots=1, budget_usd=3.0)
    drive = Paid(spec, {}).run()
    assert list(drive.ends.values()) == [("succeeded", None)] * 3 + [("skipped", BUDGET)] * 3
    assert drive.state.money == Money(to_nano(3), 0, rates={"budget ai": Rate(to_nano(3), known_jobs=3)})
    assert drive.state.tasks["t5"].reason == "budget: $3 spent of $3; a job is taken to cost $1"


def test_of_what_waits_for_a_slot_nothing_is_decided() -> None:
    spec = make(task("a"), task("long", "shell"), task("b"), slots=1, budget_usd=1.0)
    drive = Paid(spec, {}, {"long/work": Fate(duration_s=9.0)}).run()
    assert [entry.mono for entry in drive.entries if isinstance(entry.event, BudgetRefused)] == [10.0]


def test_a_job_is_taken_to_cost_what_those_of_its_agent_and_model_do_on_average_else_all() -> None:
    costs = {"t0": 1.0, "t1": 0.5, "t2": 0.25, "t3": 1.0}
    tasks = [task("t0"), task("t1"), task("t2", "other"), task("t3"), task("t4", model="m"), task("t5")]
    drive = Paid(
        make(*tasks, task("long", "shell", priority=1), slots=2, budget_usd=3.4),
        costs,
        {"long/work": Fate(duration_s=9.0)},
    )
    drive.run()
    assert [drive.state.tasks[name].reason for name in ("t4", "t5")] == [
        "budget: $2.75 spent of $3.4; a job is taken to cost $0.6875",
        "budget: $2.75 spent of $3.4; a job is taken to cost $0.833333",
    ]


def test_what_runs_is_reserved_and_what_is_left_over_goes_to_who_waits() -> None:
    spec = make(*(task(f"t{num}") for num in range(4)), budget_usd=4.0, task_budget_usd=2.0)
    drive = Paid(spec, dict.fromkeys(("t0", "t1", "t2", "t3"), 0.5)).run()
    # two at once; then three may still cost 2 beside what was spent
    assert list(drive.works.values()) == [0.0, 0.0, 1.0, 2.0]
    assert set(drive.ends.values()) == {("succeeded", None)}
    assert drive.most <= to_nano(4)


def test_a_job_of_unknown_cost_counts_as_its_reservation() -> None:
    tasks = [task(f"t{num}", budget_usd=1.0) for num in range(4)]
    drive = Paid(make(*tasks, slots=1, budget_usd=3.0), dict.fromkeys((one.id for one in tasks), None)).run()
    assert [end for end, _ in drive.ends.values()] == ["succeeded"] * 3 + ["skipped"]


def test_a_job_that_never_ran_costs_nothing() -> None:
    fates = {"t0/work": Fate("unstartable"), "t1/work": Fate("void")}
    drive = Paid(make(task("t0"), task("t1"), task("t2"), slots=1, budget_usd=1.0), {}, fates).run()
    assert drive.ends["t2"] == ("succeeded", None)
    assert drive.state.money.spent == to_nano(1)


def test_who_has_begun_fails_and_its_worktree_is_released() -> None:
    """The second round of a task finds no money: its work is on its branch all the same."""
    worker = task("a", workspace=Workspace("worktree"), check=Check(("false",)), rounds=3)
    drive = Paid(make(worker, task("b"), slots=1, budget_usd=1.5), {}, {"a/check": Fate(wait_status=256)}).run()
    assert drive.ends == {"a": ("failed", BUDGET), "b": ("skipped", BUDGET)}
    assert [key.split("/")[3] for key in drive.claims()] == ["prepare", "work", "check", "release"]


@pytest.mark.parametrize("fields", [{"retries": 3}, {"check": Check(("false",)), "rounds": 3}])
def test_a_task_that_spent_its_budget_gets_no_further_chance(fields: dict[str, Any]) -> None:
    fates = {"a/work": Fate(wait_status=256)} if "retries" in fields else {"a/check": Fate(wait_status=256)}
    drive = Paid(make(task("a", budget_usd=1.5, **fields)), {}, fates).run()
    assert drive.ends == {"a": ("failed", BUDGET)}
    assert drive.state.money.spent == to_nano(2)
    assert "$2 spent of the $1.5 of this task" in (drive.state.tasks["a"].reason or "")


def test_a_request_to_retry_gives_a_task_its_budget_anew() -> None:
    again: tuple[float, Event] = (5.0, RequestReceived("r", "retry", ("a",)))
    fates = {"a/work": Fate(wait_status=256)}
    drive = Paid(make(task("a", budget_usd=0.5, retries=2)), {}, fates, [again]).run()
    assert drive.state.tasks["a"].attempt == 2
    assert drive.state.money.spent == to_nano(2)
    assert (drive.state.tasks["a"].reason or "").count(BUDGET) == 1
    again = (10.0, RequestReceived("r", "retry", ("a",)))
    drive = Paid(make(task("a", budget_usd=2.5, retries=2)), {}, fates, [again]).run()
    assert drive.state.tasks["a"].attempt == 6, "what it had spent before counted"


def test_the_soft_budget_holds_until_it_is_released_and_only_once() -> None:
    spec = make(*(task(f"t{num}") for num in range(5)), slots=1, soft_budget_usd=2.0)
    planned: list[tuple[float, Event]] = [
        (10.0, RequestReceived("one", "release", ("t4",))),
        (20.0, RequestReceived("all", "release")),
    ]
    drive = Paid(spec, {}, {}, planned).run()
    assert list(drive.works.values()) == [0.0, 1.0, 20.0, 21.0, 22.0]
    holds = [entry.event for entry in drive.entries if isinstance(entry.event, HoldPlaced)]
    assert [hold.resource for hold in holds] == [BUDGET]
    assert "the soft budget is spent ($2 of $2)" in holds[0].reason
    assert set(drive.ends.values()) == {("succeeded", None)}


def test_what_was_begun_under_a_soft_budget_is_finished() -> None:
    worker = task("a", workspace=Workspace("worktree"), check=Check(("true",)))
    drive = Paid(make(worker, soft_budget_usd=0.5), {}).run()
    assert drive.ends == {"a": ("succeeded", None)}


FIRST = "budget: one job of ai runs alone until its cost is known (with a task budget all may start)"


@pytest.mark.parametrize(
    ("tasks", "limits", "works"),
    [
        (  # each agent and each model has its own first
            [
                task("a"),
                task("b"),
                task("m", model="m"),
                task("n", model="m"),
                task("o", "other"),
                task("s", "shell"),
            ],
            {"budget_usd": 10.0},
            [0.0, 1.0, 0.0, 1.0, 0.0, 0.0],
        ),
        ([task("a"), task("b"), task("own", budget_usd=1.0)], {"budget_usd": 10.0}, [0.0, 1.0, 0.0]),
        ([task("a"), task("b")], {"soft_budget_usd": 9.0}, [0.0, 0.0]),
        # what is never told is not waited for
        ([task("a", "text"), task("b", "text"), task("c", "text")], {"budget_usd": 1.0}, [0.0, 0.0, 0.0]),
        ([task("a", "shell"), task("b", "shell")], {"budget_usd": 1.0}, [0.0, 0.0]),
    ],
    ids=["agents and models", "a budget of its own", "no hard budget", "text", "scripts"],
)
def test_who_waits_for_a_first_job(tasks: list[TaskSpec], limits: dict[str, Any], works: list[float]) -> None:
    drive = Paid(make(*tasks, **limits), {}).run()
    assert [drive.works[one.id] for one in tasks] == works


def test_tokens_without_a_price_are_waited_for_once_and_silence_three_times() -> None:
    costs = dict.fromkeys((f"t{num}" for num in range(6)), None)
    spec = make(*(task(name) for name in costs), budget_usd=1.0)
    assert [*Paid(spec, {}, priced=False).run().works.values()] == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert [*Paid(spec, costs).run().works.values()] == [0.0, 1.0, 2.0, 3.0, 3.0, 3.0]


# --- properties ---


@st.composite
def worlds(draw: st.DrawFn, *, own: bool) -> World:
    """With `own` budgets jobs never cost more than these say; else each of an agent and model the same.

    Where it tells.
    """
    tasks, costs, fates = [], {}, {}
    for num in range(draw(st.integers(1, 8))):
        name, agent = f"t{num}", draw(st.sampled_from(["ai", "ai", "other", "text", "shell"]))
        model = draw(st.sampled_from([None, "m"])) if agent == "ai" else None
        price = PRICES.get(f"{agent}/{model}" if model else agent)
        budget = draw(st.integers(1, 40)) / 10 if own else None
        tasks.append(
            task(
                name,
                agent,
                model=model,
                budget_usd=budget,
                retries=draw(st.integers(0, 2)),
                rounds=draw(st.integers(1, 3)),
                check=draw(st.sampled_from([None, Check(("true",))])),
                workspace=Workspace(draw(st.sampled_from(["none", "worktree"]))),
                needs=tuple(f"t{draw(st.integers(0, num - 1))}" for _ in range(min(num, draw(st.integers(0, 1))))),
            )
        )
        costs[name] = draw(st.none() | st.floats(0, budget) if budget else st.sampled_from([price, price, None]))
        for job, statuses in (
            (f"{name}/work", [0, 0, 256]),
            (f"{name}/1/1/work/1", [75 << 8, 76 << 8]),
            (f"{name}/check", [0, 0, 256]),
        ):
            fate = Fate(
                draw(st.sampled_from(KINDS)), float(draw(st.integers(0, 4))), draw(st.sampled_from(statuses))
            )
            if "/1/" not in job or draw(st.booleans()):
                fates[job] = fate
    largest = max(one.budget_usd or 0.0 for one in tasks)
    limits = {"budget_usd": largest + draw(st.integers(1, 60)) / 10} if not own or draw(st.booleans()) else {}
    if own and draw(st.booleans()):
        limits["soft_budget_usd"] = draw(st.integers(1, 60)) / 10
    kinds: st.SearchStrategy[Any] = st.sampled_from(["cancel", "retry", "hold", "release"])
    planned: list[tuple[float, Event]] = [
        (
            float(draw(st.integers(0, 20))),
            RequestReceived(f"r{number}", draw(kinds), draw(st.sampled_from([(), ("t0",)]))),
        )
        for number in range(draw(st.integers(0, 3)))
    ]
    # what was held on request until the first may come to the soft budget after it
    planned += [(at, RequestReceived(f"last {at}", "release")) for at in (5000.0, 9000.0)]
    return make(*tasks, slots=draw(st.sampled_from([None, 1, 2, 3])), **limits), costs, fates, planned


@PROFILE
@given(worlds(own=True))
def test_never_over_budget_when_reservations_hold(world: World) -> None:
    drive = run_world(world, Obedient)
    spec, _, _, planned = world
    retries = sum(event.kind == "retry" for _, event in planned)
    if spec.limits.budget_usd is not None:
        assert drive.most <= to_nano(spec.limits.budget_usd)
    for name, (outcome, reason_class) in drive.ends.items():
        if reason_class == BUDGET:
            one = drive.state.tasks[name]
            assert outcome == ("skipped" if one.usage is None and one.attempt == 1 else "failed")
    for one in drive.state.tasks.values():
        whole = find_task_budget(spec.limits, one.spec)
        spent = one.usage.cost_usd if one.usage and one.usage.cost_usd else 0.0
        assert whole is not None
        assert spent <= (1 + retries) * whole + 1e-9  # more only if the user had it tried again


@PROFILE
@given(worlds(own=False))
def test_every_session_ends_and_is_overspent_by_first_jobs_alone(world: World) -> None:
    spec, costs, *_ = world
    money = run_world(world).state.money
    firsts = sum(to_nano(PRICES.get(name.removeprefix("budget "), 0.0)) for name in money.rates)
    if None not in costs.values():
        assert sum(rate.known for rate in money.rates.values()) <= to_nano(spec.limits.budget_usd or 0.0) + firsts


# --- agents ---


def test_an_agent_is_told_its_budget_where_it_has_an_option() -> None:
    for name, agent in table.BUILTIN.items():
        for budget, told in ((0.25, "0.25"), (100000.0, "100000"), (None, None)):
            argv = table.build_argv(agent, model=None, approve=True, prompt_file="p", budget=budget)
            found = [word for word in argv if "budget" in word]
            assert found == ([f"--max-budget-usd={told}"] if told and name == "claude" else [])


# --- the command ---


@pytest.fixture
def paid(sessionrun: Command) -> Command:
    """An agent `ai` that prints claude's answer, which cost 0.000138 dollars, and waits for `go` when told to."""
    waits = 'while [ "$prompt" = wait ] && ! [ -e go ]; do sleep 0.05; done'
    said = f'echo "$@" >>argv\nread -r prompt\n{waits}\ncat {sample_path("claude", "ok")}'
    script = make_program(sessionrun.cwd / "ai", said)
    (sessionrun.cwd / "sessionrun.toml").write_text(
        f'[agents.ai]\nargv = ["{script}"]\noutput = "claude"\nbudget_args = ["--cap={{budget}}"]\n'
    )
    return sessionrun


def plan_of(*names: str, **fields: Any) -> str:
    tasks = [{"id": name, "prompt": "x\n", "agent": "ai"} for name in names]
    return json.dumps({"prompts": tasks, "max_parallel": 1, **fields})


def test_a_session_with_a_hard_budget(paid: Command) -> None:
    done = paid("--sync", "--budget", "0.0002", "--task-budget", "$0.00015", stdin=plan_of("a", "b"))
    assert done.returncode == 1
    told = "b skipped: budget: $0.000138 spent of $0.0002; a job is taken to cost $0.00015"
    assert told in " ".join(done.stdout.split())
    view = paid.status("last")
    assert [one["outcome"] for one in view["tasks"]] == ["succeeded", "skipped"]
    assert (paid.cwd / "argv").read_text() == "--cap=0.00015\n"
    assert view["budget"]["spent_usd"] == 0.000138


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (
            {"budget_usd": 0.0003, "task_budget_usd": 0.00016},
            "budget: $0 spent and $0.00016 reserved of $0.0003; a job is taken to cost $0.00016",
        ),
        ({"budget_usd": 1.0}, FIRST),
    ],
)
def test_a_task_that_waits_for_money_says_so(paid: Command, limits: dict[str, float], why: str) -> None:
    tasks = [{"id": "a", "prompt": "wait\n", "agent": "ai"}, {"id": "b", "prompt": "x\n", "agent": "ai"}]
    session_id = paid("-q", stdin=json.dumps({"prompts": tasks, "limits": limits})).stdout.strip()
    eventually((paid.cwd / "argv").exists)
    waiting = paid.until(session_id, lambda view: view["tasks"][1]["reason_class"] == "held")["tasks"][1]
    assert waiting["reason"] == f"held: {why}"
    (told,) = paid.load("explain", session_id, "b")["tasks"]
    assert (told["cause"], told["why"], told["budget"], told["tokens"]) == ("budget", why, why, [])
    if "task_budget_usd" in limits:
        assert "Budget: $0.0000 spent, $0.0002 reserved of $0.0003" in paid("status", session_id).stdout
    (paid.cwd / "go").touch()
    assert paid.wait(session_id)["outcome"] == "succeeded"  # it cost less than was reserved


def test_a_session_with_a_soft_budget_is_released(paid: Command) -> None:
    config = paid.cwd / "sessionrun.toml"
    config.write_text("task_budget_usd = 1\nbudget_usd = 5\n" + config.read_text())
    limits = {"soft_budget_usd": 9, "budget_usd": 4}  # flags beat these, and these the configuration
    done = paid("-q", "--soft-budget", "0.0001", stdin=plan_of("a", "b", limits=limits))
    session_id = done.stdout.strip()
    view = paid.until(session_id, lambda view: view["budget"]["held"])
    assert (view["budget"]["budget_usd"], (paid.cwd / "argv").read_text()) == (4.0, "--cap=1\n")
    assert "1 held Budget: " in " ".join(paid("status", session_id).stdout.split())
    for words in (("status", session_id), ("explain", session_id, "b")):
        assert "the soft budget is spent" in " ".join(paid(*words).stdout.split())
    assert paid.load("list")["sessions"][0]["budget"]["held"]
    assert "1 released" in paid("release", session_id).stdout
    assert paid("wait", session_id).returncode == 0
    assert [one["outcome"] for one in paid.status(session_id)["tasks"]] == ["succeeded", "succeeded"]


def test_a_budget_that_cannot_see_is_warned_of(paid: Command) -> None:
    with (paid.cwd / "sessionrun.toml").open("a") as config:
        for name in ("codex", "mine"):
            output = '"codex"' if name == "codex" else '"text"'
            config.write(f'[agents.{name}]\nargv = ["{paid.cwd / "ai"}"]\napprove_args = []\noutput = {output}\n')
    tasks = [{"prompt": "x", "agent": "codex"}, {"prompt": "x", "agent": "mine"}, {"prompt": "x", "agent": "ai"}]
    tasks += [{"prompt": "x", "agent": "codex", "model": "gpt-5"}, {"prompt": "true", "agent": "shell"}]
    done = paid("--dry-run", "--budget", "1", stdin=json.dumps(tasks))
    warnings = [line for line in done.stderr.splitlines() if "budget" in line]
    assert len(warnings) == 2
    assert "may not see what codex costs (no price for codex:default)" in warnings[0]
    rest = "its output is only text; the cost of its one task comes on top of the budget"
    assert warnings[1].endswith(f"cannot see what mine costs: {rest}")
    assert "budget" not in paid("--dry-run", stdin=json.dumps(tasks)).stderr

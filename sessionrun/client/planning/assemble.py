"""Settles a plan into a session spec: which agent runs each task; checks that each task can start at all."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sessionrun.agents import table
from sessionrun.client.graph import walk
from sessionrun.input.config import Config
from sessionrun.input.plan import Plan
from sessionrun.input.rows import MARKDOWN
from sessionrun.model.errors import AgentNotFound, InputError, suggest
from sessionrun.model.frozen import frozen
from sessionrun.model.repositories import has_worktree, ignore_leavings
from sessionrun.model.spec import AgentSpec, Price, SessionSpec, TaskSpec, hides_tests
from sessionrun.model.validation import refuse_task, validate_uses

if TYPE_CHECKING:
    from sessionrun.input.parse import Source
    from sessionrun.input.settings import Options


MAX_PROMPT_TOKENS: Final = 32_000
"""What the context of the models holds for which Markdown jobs are written."""

WARNED_SHARE: Final = 0.8
REFUSED_SHARE: Final = 0.9
"""Of these the prompt of a Markdown job may be so much, without a warning and at all."""


def add_agents(draft: Draft) -> Draft:
    """The agents of the tasks, each with its program, and what is known of their prices; then all is checked."""
    spec, config = draft.spec, draft.config
    tasks = tuple(task if task.agent else replace(task, agent=spec.agent) for task in spec.tasks)
    for num, task in enumerate(tasks, 1):
        for name in sorted(agents_of([task])):
            _find_agent(name, config.agents, f"{draft.source.name}: task {num} (ID: {task.id}): ")
        if task.cwd and task.upstream is None and not os.path.isdir(task.cwd):
            raise refuse_task(num, task, f"cwd {task.cwd} is not a directory")
    approve = draft.options.choose("approve", draft.plan.approve) is not False
    missing: list[str] | None = [] if draft.preview else None
    agents = {
        name: settle_agent(name, config.agents, missing, approve=approve) for name in sorted(agents_of(tasks))
    }
    repository, mirrors, leavings = spec.repository, spec.mirrors, table.leavings(agents.values())
    spec = replace(
        spec,
        tasks=tasks,
        agents=agents,
        approve=approve,
        repository=repository and replace(repository, excludes=ignore_leavings(repository.excludes, leavings)),
        mirrors=mirrors and replace(mirrors, excludes=ignore_leavings(mirrors.excludes, leavings)),
        prices=settle_prices(config, agents.values()),
    )
    validate_uses(spec)
    _check_briefs(spec)
    _check_budgets(spec)
    return replace(draft, spec=spec).remark(*(missing or ()))


def agents_of(tasks: Iterable[TaskSpec]) -> set[str]:
    """The names of all agents that tasks may come to use."""
    return {choice.agent for task in tasks for choice in task.choices}


def foresee(draft: Draft) -> Draft:
    """What the user should know before the start: of a budget, a verdict, a check, a prompt that will not do."""
    spec = draft.spec
    total, judgement = len(spec.tasks), []
    mute = {name for name, agent in spec.agents.items() if agent.prompt_kind == "script"}
    if count := sum(bool(task.check and task.check.verify) and task.agent in mute for task in spec.tasks):
        judgement.append(f"{count} of {total} tasks get no verdict: scripts do not judge")
    if count := sum(hides_tests(task) and task.sandbox is None for task in spec.tasks):
        which = "1 task" if count == 1 else f"{count} tasks"
        judgement.append(f"hidden tests are readable: {which} of {total} without walls; see --sandbox project")
    return draft.remark(*foresee_costs(spec), *judgement, *foresee_programs(spec), *foresee_prompts(spec))


def foresee_costs(spec: SessionSpec) -> list[str]:
    """What a budget of this session will not see: models whose price is not known."""
    limits = spec.limits
    amounts = (limits.budget_usd, limits.soft_budget_usd, limits.task_budget_usd)
    if not any(amounts) and all(task.budget_usd is None for task in spec.tasks):
        return []
    from sessionrun.agents.prices import find_price
    from sessionrun.engine.money import name_model

    remarks: dict[str, int] = {}
    choices = [(choice.agent, choice.model) for task in spec.tasks for choice in task.choices]
    for name, asked in sorted(choices, key=str):
        agent, model = spec.agents[name], name_model(name, None, asked)
        if agent.prompt_kind == "script" or agent.output in table.SAYS_COST:
            continue
        remark = f"the budget cannot see what {name} costs: its output is only text"
        if agent.output != "text":
            if find_price(spec.prices, model) is not None:
                continue
            hint = f'add [prices."{model}"] to sessionrun.toml'
            hint += "" if asked else ", or name a model"
            remark = f"the budget may not see what {name} costs (no price for {model}): {hint}"
        remarks[remark] = remarks.get(remark, 0) + 1
    return [
        f"{remark}; the cost of its {'one task' if count == 1 else f'{count} tasks'} comes on top of the budget"
        for remark, count in remarks.items()
    ]


def foresee_programs(spec: SessionSpec) -> list[str]:
    """Checks and gates whose program is not there, and which nothing that runs before them is there to install."""
    gates = spec.landing.gates if spec.landing else ()
    bare = [task for task in spec.tasks if not task.setup and task.environment is None and "PATH" not in task.env]
    if spec.cluster is not None or len(bare) < len(spec.tasks):
        gates = ()
    wanted = dict.fromkeys(gates, "gate")
    if spec.cluster is None:
        wanted |= {command: "check" for task in bare if task.check for command in task.check.commands}
    return [
        f"the {kind} {command!r} will fail: the program {command.split()[0]!r} is not found"
        for command, kind in wanted.items()
        if _lacks_program(command)
    ]


def _lacks_program(command: str) -> bool:
    """Whether its first word can only be the name of a program, and there is none, nor a word of the shell."""
    word = command.split(maxsplit=1)[0] if command.split() else ""
    if re.fullmatch(r"[\w.+-]+", word) is None or shutil.which(word) is not None:
        return False
    import subprocess  # most words are on PATH: a launch should not wait for its import

    return subprocess.run(["/bin/sh", "-c", 'command -v -- "$1"', "sh", word], capture_output=True).returncode != 0


def foresee_prompts(spec: SessionSpec) -> list[str]:
    """Prompts of Markdown jobs that nearly fill the context; one without room for the answer is refused."""
    if spec.dialect != MARKDOWN:
        return []
    from sessionrun.session.prompt import count_tokens

    remarks = []
    for num, task in enumerate(spec.tasks, 1):
        if task.brief is None or spec.agents[task.agent].edits:
            continue  # an agent that edits reads the files by itself
        count = count_tokens(task.brief, task.cwd or spec.cwd, "\n\n".join(task.prompts))
        percent = 100 * count // MAX_PROMPT_TOKENS
        size = f"its prompt has about {count} tokens, {percent} % of {MAX_PROMPT_TOKENS}"
        if count > REFUSED_SHARE * MAX_PROMPT_TOKENS:
            raise refuse_task(num, task, f"{size}: show it fewer or shorter files")
        if count > WARNED_SHARE * MAX_PROMPT_TOKENS:
            remarks.append(f"task {num} (ID: {task.id}): {size}: little room is left for the answer")
    return remarks


def choose_agent(plan: Plan, config: Config, *, preview: bool = False) -> tuple[str, str]:
    """The default agent, and why: the wanted one, else the first that is installed; for a `preview` any will do.

    Raises:
        InputError: it is not known, or none is installed.
    """
    if plan.agent:
        _find_agent(plan.agent, config.agents)
        return plan.agent, plan.agent_reason
    if all(task.agent for task in plan.tasks):
        return plan.tasks[0].agent, "named by the tasks"
    path = os.environ.get("PATH")
    for name in table.FIRST_FOUND:
        if table.find_program(config.agents[name], path):
            return name, "first found"
    if preview:
        return table.FIRST_FOUND[0], "the first in the order of choice; none is installed"
    looked_for = ", ".join(table.FIRST_FOUND)
    first = table.how_to_install(table.BUILTIN[table.FIRST_FOUND[0]])
    raise AgentNotFound(
        f"no agent CLI found on PATH (looked for {looked_for}); name one with --agent, or install one ({first})"
        f"{table.describe_path(path)}"
    )


def _find_agent(name: str, known: Mapping[str, AgentSpec], where: str = "") -> AgentSpec:
    agent = known.get(name)
    if agent is None:
        meant = suggest(name, known)
        raise InputError(f"{where}unknown agent {name!r}{meant}; there are: {', '.join(sorted(known))}")
    return agent


def settle_agent(
    name: str, known: Mapping[str, AgentSpec], missing: list[str] | None, *, approve: bool
) -> AgentSpec:
    """The agent with its program as an absolute path, looked up once."""
    agent = _find_agent(name, known)
    table.check_agent(agent)
    try:
        program = table.check_startable(agent, approve=approve, euid=os.geteuid(), environ=os.environ)
    except AgentNotFound as error:
        if missing is None:
            raise
        missing.append(str(error))
        return agent
    return replace(agent, argv=(program, *agent.argv[1:]))


def settle_prices(config: Config, used: Iterable[AgentSpec]) -> Mapping[str, Price]:
    """The prices of this session, which stay as they are; a script asks no model."""
    if all(agent.prompt_kind == "script" for agent in used):
        return {}
    from sessionrun.agents.prices import load_prices

    return load_prices(config.prices)


def _check_budgets(spec: SessionSpec) -> None:
    """Refuse a task's budget that is larger than the session's: the task could never start."""
    whole = spec.limits.budget_usd
    if whole is None:
        return
    from sessionrun.engine.money import find_task_budget

    for num, task in enumerate(spec.tasks, 1):
        own = find_task_budget(spec.limits, task)
        script = all(spec.agents[name].prompt_kind == "script" for name in agents_of([task]))
        if own is not None and own > whole and not script:
            raise refuse_task(num, task, f"its budget of ${own:g} is more than the session's of ${whole:g}")


def _check_briefs(spec: SessionSpec) -> None:
    """Refuse briefs with files that cannot be shown, as far as that can be known before the start."""
    from sessionrun.session.prompt import BriefProblem, check_brief

    briefed = [(num, task, task.brief) for num, task in enumerate(spec.tasks, 1) if task.brief is not None]
    writers: dict[str, set[str]] = {}
    by_id = {task.id: task for task in spec.tasks}
    for _, task, brief in briefed:
        for path in brief.outputs:
            writers.setdefault(path, set()).add(task.id)

    def needs_of(name: str) -> list[str]:
        return [need for need in by_id[name].needs if need in by_id] if by_id[name].base != "session" else []

    for num, task, brief in briefed:
        if task.upstream is not None:
            continue  # its files come with its repository
        # in a worktree is the work of all tasks that this one needs, near and far
        seen = set(walk([task.id], needs_of)) if has_worktree(task) else set(by_id)
        foreseen = frozenset(path for path, ids in writers.items() if ids & seen - {task.id})
        try:
            check_brief(brief, task.cwd or spec.cwd, foreseen)
        except BriefProblem as problem:
            raise refuse_task(num, task, str(problem)) from None


@frozen
class Draft:
    """An input on its way: each step returns it with one more thing settled in `spec`; a step knows no other one.

    `into` is the session, as it is now, to which the tasks will be added: its own configuration comes before.
    `place` lies in the repository of the worktrees.  In a `preview` agents need not be installed, and nothing is
    fetched.  `remarks` are for people; `skipped` counts the tasks that an earlier session finished.
    """

    source: Source
    plan: Plan
    options: Options
    config: Config
    spec: SessionSpec
    into: SessionSpec | None
    place: Path
    preview: bool
    remarks: tuple[str, ...] = ()
    skipped: int = 0

    def settle(self, **settled: Any) -> Draft:
        """The same, with these fields of `spec`."""
        return replace(self, spec=replace(self.spec, **settled))

    def remark(self, *lines: str) -> Draft:
        """The same, with more lines for people."""
        return replace(self, remarks=(*self.remarks, *lines))

"""Checks before a session is created whether its agents are signed in and ready, and what its tasks need is there.

No check costs money.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Final

from sessionrun.agents.installed import MENDS, Known, Use, find_known, find_sign_in, is_wrapper
from sessionrun.house import find_due
from sessionrun.model.errors import InputError
from sessionrun.model.spec import AgentSpec, SessionSpec, TaskSpec

STATUS_TIMEOUT_S: Final = 10.0

_Pair = tuple[str, str]
_START_ALL_THE_SAME = "--no-ready starts all the same"


def check_ready(spec: SessionSpec) -> None:
    """Refuse what would make every task of an agent fail.

    Raises:
        InputError: an agent is certainly not signed in, or its own check says that it is not ready.
    """
    outside = tell_signed_out(spec)
    if outside:
        raise InputError(f"{'; '.join(outside)} ({_START_ALL_THE_SAME})")
    if not any(agent.ready for agent in spec.agents.values()):
        return
    from sessionrun.agents.probing import find_unready

    unready = find_unready(spec.agents.values(), _list_models(spec))
    if unready:
        problems = "; ".join(
            f"agent {name!r} is not ready: {why}{_mend(spec, name)}" for name, why in unready.items()
        )
        raise InputError(f"{problems} ({_START_ALL_THE_SAME})")


def check_machine(spec: SessionSpec) -> list[str]:
    """Refuse what this machine cannot give the tasks; returns warnings.

    Raises:
        InputError: uv is wanted and not there, or walls cannot be built.
    """
    tasks = (*spec.tasks, *((spec.template,) if spec.template else ()))
    return [warning for check in find_due("start", tasks, spec) if (warning := check(spec)) is not None]


def tell_signed_out(spec: SessionSpec) -> list[str]:
    """A line for each installed agent that is certainly not signed in; only wrappers are run to find out."""
    signed_out = _find_signed_out(spec).items()
    return [
        f"agent {name!r} is not signed in: {how}"
        for name, how in signed_out
        if os.path.isabs(spec.agents[name].argv[0])
    ]


def _find_signed_out(spec: SessionSpec) -> dict[str, str]:
    """How to sign in, by the name of each agent that a task would certainly find not signed in."""
    signed_out: dict[str, str] = {}
    for name, cwd, args, model, env in dict.fromkeys(use for task in spec.tasks for use in _list_uses(task)):
        agent = spec.agents[name]
        about = None if name in signed_out else find_known(agent)
        use = Use((model,), args, (cwd or spec.cwd,))
        environ = {**os.environ, **agent.env, **dict(env)}
        if about is None:
            continue
        answer = find_sign_in(agent, environ, sys.platform, use)[0]
        if answer == "no" or (answer == "cannot tell" and is_wrapper(agent) and _says_no(agent, about, environ)):
            signed_out[name] = about.sign_in
    return signed_out


def _says_no(agent: AgentSpec, about: Known, environ: Mapping[str, str]) -> bool:
    """Whether the program says itself that it is not signed in; False if it says nothing of that."""
    from sessionrun.agents.probing import Question, ask

    question = Question((agent.argv[0], *about.status), environ)
    answers = ask({agent.name: question} if about.status else {}, timeout_s=STATUS_TIMEOUT_S)
    return any(answer.exit_code == 1 for answer in answers.values())


def _list_uses(task: TaskSpec) -> Iterator[tuple[str, str | None, tuple[str, ...], str | None, tuple[_Pair, ...]]]:
    """The agents of a task: name, directory, further arguments (which only the first gets), model, environment."""
    env = tuple(task.env.items())
    yield task.agent, task.cwd, task.args, task.model, env
    yield from ((other.agent, task.cwd, (), other.model, env) for other in task.fallback)


def _list_models(spec: SessionSpec) -> dict[str, dict[str | None, None]]:
    """For each agent the models that tasks want from it, in the order of the tasks."""
    models: dict[str, dict[str | None, None]] = {}
    for task in spec.tasks:
        for name, model in ((task.agent, task.model), *((other.agent, other.model) for other in task.fallback)):
            models.setdefault(name, {})[model] = None
    return models


def _mend(spec: SessionSpec, name: str) -> str:
    mend = MENDS.get(os.path.basename(spec.agents[name].argv[0]))
    return f"; {mend}" if mend else ""

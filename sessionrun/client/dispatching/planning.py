"""Makes the spec of a dispatch: a session without tasks, its feed, and what each task will be made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sessionrun.client.dispatching.frame import FRAME
from sessionrun.client.dispatching.settings import Settings
from sessionrun.client.planning.asked import Asked
from sessionrun.client.planning.plan import Planned, plan
from sessionrun.model.feeding import FeedSpec
from sessionrun.model.spec import SessionSpec
from sessionrun.queue.feed import Feed
from sessionrun.runtime.feeding.tasks import SCRIPT
from sessionrun.workspaces.git import Git

DIALECT = "queue"


def plan_dispatch(settings: Settings, feed: Feed, *, preview: bool = False) -> Planned:
    """Settle the session; its spec has no tasks yet.

    Raises:
        InputError: it cannot be started as it is asked for; nothing was created.
    """
    planned = plan(
        _describe(settings),
        Asked(
            dialect="prompts",
            name=settings.name,
            labels=settings.labels,
            worktree=True,
            base=settings.branch,
            cluster=settings.cluster,
        ),
        preview=preview,
        directory=settings.top,
        programs={settings.agent: settings.program} if settings.agent and settings.program else {},
    )
    assert isinstance(planned, Planned)
    return planned._replace(spec=_open(planned.spec, settings, feed))


def _open(spec: SessionSpec, settings: Settings, feed: Feed) -> SessionSpec:
    asked = FeedSpec(
        top=str(settings.top),
        backend=feed.name,
        group=settings.group,
        chosen=settings.tasks,
        watch=settings.watch,
        poll_s=settings.poll_s,
        sync_s=settings.sync_s,
        ingest=settings.ingest,
        take_back_s=settings.take_back_s if settings.takes_back else 0.0,
        take_back_most=settings.take_back_most,
        lands_again=settings.lands_again,
    )
    (template,) = spec.tasks
    if settings.frame == FRAME and spec.agents[template.agent].prompt_kind == "script":
        template = replace(template, prompts=(f"{SCRIPT}\n",))  # words around it would be commands
    if spec.landing is None and _is_branch(spec):
        template = replace(template, base="target")
    return replace(
        spec,
        dialect=DIALECT,
        source=str(feed.place),
        tasks=(),
        template=template,
        feed=asked,
        open_feed=True,
    )


def _is_branch(spec: SessionSpec) -> bool:
    """Whether tasks can begin at the end of a branch, and not only at a commit."""
    known = spec.repository
    return known is not None and Git(Path(known.top)).commit_of(f"refs/heads/{known.base_branch}") is not None


def _describe(settings: Settings) -> dict[str, Any]:
    """The session as a plan, with the one task of which all others are made."""
    task: dict[str, Any] = {
        "id": "task",
        "prompt": settings.frame,
        "cwd": str(settings.top),
        "base": "target" if settings.lands else "session",
        "retries": settings.retries,
        "expect_change": settings.expect_change,
    }
    if settings.timeout_s:
        task["timeout_s"] = settings.timeout_s
    if settings.checks:
        task["check"] = list(settings.checks)
    plan: dict[str, Any] = {"max_parallel": settings.workers, "prompts": [task]}
    plan |= {"agent": settings.agent} if settings.agent else {}
    plan |= {"model": settings.model} if settings.model else {}
    if settings.lands:
        plan["land"] = {"gates": list(settings.gates), "mends": settings.mends}
        if settings.branch:
            plan["land"]["into"] = settings.branch
        if settings.gate_timeout_s:
            plan["land"]["timeout_s"] = settings.gate_timeout_s
    if settings.on_nodes:
        return plan
    plan["worktrees"] = {"stay": settings.placement}
    if settings.placement == "sibling" and settings.prefix:
        plan["worktrees"]["prefix"] = settings.prefix
    return plan

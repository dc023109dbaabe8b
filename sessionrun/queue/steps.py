"""Settles a session that takes its tasks from a queue: where that is, and what each task is made of."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sessionrun.client.notices import notify
from sessionrun.client.planning.assemble import Draft
from sessionrun.input.given import read_text
from sessionrun.input.plan import SeatsWish
from sessionrun.input.prompts import FRAME
from sessionrun.input.rows import QUEUE
from sessionrun.model.asked import SLURM, TAKE_BACK_S, FeedSpec
from sessionrun.model.errors import InputError

if TYPE_CHECKING:
    from sessionrun.git.git import Git


def place_feed(draft: Draft) -> Draft:
    """The main checkout, which has the queue and from which the worktrees are made; they stay for the next task.

    Raises:
        InputError: there is no repository, the frame cannot be read, or worktrees would have to stay on nodes.
    """
    plan, given = draft.plan, draft.options.given
    if plan.feed is None:
        return draft
    from sessionrun.git.git import Git
    from sessionrun.git.repository import locate
    from sessionrun.queue.task import find_place

    root = Path(plan.repository.path or draft.place)
    if not os.path.isdir(root):  # which also says so of a name that is too long
        where = f"{draft.source.name}: repo_root: {root} is not a directory"
        raise InputError(f"{where}; it counts from the directory of this file")
    top = find_place(root).top
    git = Git(top)
    locate(git)
    if not draft.preview:
        _hide_suggestions(git)
    seats = plan.seats
    if draft.options.choose("cluster") in (None, SLURM):
        seats = seats or SeatsWish("inside")
    elif seats is not None:
        why = "worktrees that stay are of one machine, and cannot be had on the nodes of a cluster"
        key = plan.repository.keys.get("worktrees", "worktrees")
        raise InputError(f"{draft.source.name}: {key}: {why}: leave that out")
    (task,) = draft.spec.tasks
    task = replace(task, cwd=str(top), prompts=_find_frame(draft, task.prompts))
    wish = replace(plan.repository, path=None)
    if "land_into" in given:
        wish = replace(wish, base=given["land_into"], keys={**wish.keys, "--base": "--land-into"})
    draft = replace(draft, place=top, plan=replace(plan, seats=seats, repository=wish))
    return draft.settle(dialect=QUEUE, tasks=(task,))


def _hide_suggestions(git: Git) -> None:
    """Let git overlook the file of follow-ups: it is collected, and in commits it would conflict.

    The rules of what is ignored are read with the repository, so this comes first.
    """
    from sessionrun.git.repository import hide_name, locate
    from sessionrun.model.asked import SUGGESTIONS

    hide_name(locate(git)[1], SUGGESTIONS)
    if git.names("ls-files", "-z", "--", SUGGESTIONS):
        mend = f"git rm --cached {SUGGESTIONS}"
        notify(f"{SUGGESTIONS} is in the repository, so tasks that append to it conflict: take it out ({mend})")


def _find_frame(draft: Draft, own: tuple[str, ...]) -> tuple[str, ...]:
    """What stands around each task: the option's, or of the file that the input names, or its own."""
    asked: str | None = draft.options.given.get("prompt_template")
    if asked is not None:
        if not asked.strip():
            raise InputError("--prompt-template: the file is empty")
        return (asked,)
    if draft.plan.frame_file is None:
        return own
    try:
        text = read_text(draft.plan.frame_file)
        if not text.strip():
            raise InputError(f"{draft.plan.frame_file}: is empty")
    except InputError as error:
        raise InputError(f"{draft.source.name}: prompt_template: {error}") from None
    return (text,)


def add_feed(draft: Draft) -> Draft:
    """The queue in the place of tasks; each begins where the branch is by then, on which the work lands.

    Raises:
        InputError: there is no such queue.
    """
    values, spec = draft.plan.feed, draft.spec
    if values is None:
        return draft
    from sessionrun.git.git import Git
    from sessionrun.queue.open import open_queue

    queue = open_queue(draft.place, backend=values.get("backend"))
    (template,) = spec.tasks
    if template.prompts == (FRAME,) and spec.agents[template.agent].prompt_kind == "script":
        template = replace(template, prompts=("{script}\n",))  # words around it would be commands
    known, moves = spec.repository, spec.landing is not None
    if known is not None and not moves:  # else the base may be a commit
        moves = Git(Path(known.top)).commit_of(f"refs/heads/{known.base_branch}") is not None
    if moves:
        template = replace(template, base="target")
    more = {name: value for name, value in values.items() if name not in ("backend", "takes_back")}
    if not values.get("takes_back", True):
        more["take_back_s"] = 0.0
    return draft.settle(
        source=str(queue.place),
        tasks=(),
        template=template,
        feed=FeedSpec(str(draft.place), queue.name, **{"take_back_s": TAKE_BACK_S, **more}),
        open_feed=True,
    )

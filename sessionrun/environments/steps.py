"""Refuses tasks whose environments cannot be made on this machine, before they start."""

from __future__ import annotations

import os

from sessionrun.environments.inputs import NO_UV
from sessionrun.model.errors import InputError
from sessionrun.model.spec import SessionSpec
from sessionrun.store.programs import locate_uv


def check_environments(spec: SessionSpec) -> None:
    """Refuse tasks whose environment needs uv, which is not on this machine; nodes of a cluster have their own."""
    tasks = (*spec.tasks, *((spec.template,) if spec.template else ())) if spec.cluster is None else ()
    for task in tasks:
        if task.environment is None:
            continue
        if locate_uv({**os.environ, **task.env}) is None:
            raise InputError(f"environment of task {task.id}: {NO_UV}")

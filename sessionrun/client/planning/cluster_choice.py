"""Settles which cluster, if any, runs the jobs of a session."""

from __future__ import annotations

import os
from dataclasses import replace

from sessionrun.client.config import Config
from sessionrun.client.planning.pace import AskedPace
from sessionrun.model.cluster import SLURM, uses_replicas
from sessionrun.model.errors import InputError
from sessionrun.model.spec import SessionSpec


def choose_cluster(
    spec: SessionSpec, pace: AskedPace, config: Config, into: SessionSpec | None, *, preview: bool
) -> SessionSpec:
    """The spec with the cluster that runs its jobs.

    Args:
        spec: without it.
        pace: what the command line says of it.
        config: what the configuration says.
        into: the session to which its tasks will be added; they run where its own do.
        preview: nothing will be started, so nothing is fetched.

    Raises:
        InputError: the cluster cannot be used, or a task needs what it cannot give.
    """
    if into is not None:
        if uses_replicas(into.cluster):
            from sessionrun.client.cluster.address import settle_tasks  # few sessions have a cluster

            spec = spec if preview else replace(spec, tasks=settle_tasks(spec, into.tasks))
        return replace(spec, cluster=into.cluster)
    address = (config.cluster or None) if pace.cluster is None else pace.cluster
    if pace.slurm and address != SLURM:
        raise InputError("--slurm-option has no effect without --cluster slurm")
    if address is None or not spec.tasks:
        return spec
    if address == SLURM:
        from sessionrun.client.planning.slurm import check_options, open_slurm, parse_words

        options = {**check_options(config.slurm, "slurm"), **parse_words(pace.slurm)}
        return replace(spec, cluster=open_slurm(options, os.environ))
    from sessionrun.client.cluster.address import settle_cluster

    return settle_cluster(spec, address, os.environ, preview=preview)

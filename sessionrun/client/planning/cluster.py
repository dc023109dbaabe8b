"""Settles which cluster runs the jobs of a session."""

from __future__ import annotations

import os
from dataclasses import replace

from sessionrun.client.planning.draft import Draft
from sessionrun.model.cluster import SLURM, uses_replicas
from sessionrun.model.errors import InputError


def choose_cluster(draft: Draft) -> Draft:
    """The cluster of the session; tasks that are added to one run where its own do.

    Raises:
        InputError: the cluster cannot be used, or a task needs what it cannot give.
    """
    spec, into, options = draft.spec, draft.into, draft.options
    if into is not None:
        if uses_replicas(into.cluster) and not draft.preview:
            from sessionrun.client.cluster.address import settle_tasks  # few sessions have a cluster

            spec = replace(spec, tasks=settle_tasks(spec, into.tasks))
        return replace(draft, spec=replace(spec, cluster=into.cluster))
    address = options.choose("cluster") or None
    if "slurm" in options.given and address != SLURM:
        raise InputError("--slurm-option has no effect without --cluster slurm")
    if address is None or not spec.tasks:
        return draft
    if address == SLURM:
        from sessionrun.client.planning.slurm import check_options, open_slurm

        of_config = check_options(options.config.get("slurm", {}), "slurm")
        of_sbatch = {**of_config, **check_options(options.given.get("slurm", {}), "--slurm-option")}
        return replace(draft, spec=replace(draft.spec, cluster=open_slurm(of_sbatch, os.environ)))
    from sessionrun.client.cluster.address import settle_cluster

    return replace(draft, spec=settle_cluster(spec, address, os.environ, preview=draft.preview))

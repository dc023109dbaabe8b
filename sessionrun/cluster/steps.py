"""Settles which cluster runs the jobs of a session; of Slurm its options, and whether it takes such jobs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from sessionrun.client.planning.assemble import Draft
from sessionrun.model.asked import SLURM, Cluster, uses_replicas
from sessionrun.model.errors import InputError


def choose_cluster(draft: Draft) -> Draft:
    """The cluster of the session; tasks that are added to one run where its own do.

    Raises:
        InputError: the cluster cannot be used, or a task needs what it cannot give.
    """
    spec, into, options = draft.spec, draft.into, draft.options
    if into is not None:
        if uses_replicas(into.cluster) and not draft.preview:
            from sessionrun.cluster.address import settle_tasks  # few sessions have a cluster

            spec = replace(spec, tasks=settle_tasks(spec, into.tasks))
        return replace(draft, spec=replace(spec, cluster=into.cluster))
    address = options.choose("cluster") or ""
    if "slurm" in options.given and address != SLURM:
        raise InputError("--slurm-option has no effect without --cluster slurm")
    if not (address and spec.tasks):
        return draft
    if address == SLURM:
        of_config = check_options(options.config.get("slurm", {}), "slurm")
        of_sbatch = {**of_config, **check_options(options.given.get("slurm", {}), "--slurm-option")}
        return draft.settle(cluster=open_slurm(of_sbatch, os.environ))
    from sessionrun.cluster.address import settle_cluster

    return replace(draft, spec=settle_cluster(spec, address, os.environ, preview=draft.preview))


# --- Slurm ---

PROGRAMS: Final = ("sbatch", "squeue", "scancel", "sinfo")

OPTIONS: Final = frozenset(
    [
        "account",
        "constraint",
        "contiguous",
        "core-spec",
        "cores-per-socket",
        "cpus-per-gpu",
        "cpus-per-task",
        "deadline",
        "exclude",
        "exclusive",
        "gpus",
        "gres",
        "gres-flags",
        "hint",
        "licenses",
        "mem",
        "mem-per-cpu",
        "mem-per-gpu",
        "nice",
        "nodelist",
        "partition",
        "power",
        "prefer",
        "priority",
        "qos",
        "reservation",
        "sockets-per-node",
        "threads-per-core",
        "time",
        "time-min",
        "tmp",
        "wckey",
    ]
)
"""The options of sbatch that say where and how a job may run; the others are ours, or are for scripts."""


def check_options(options: Mapping[str, Any], where: str) -> dict[str, str]:
    """The options as words.  InputError: one is none that a user may give, or has a value that is no word."""
    checked: dict[str, str] = {}
    for key, value in options.items():
        name = key.removeprefix("--")
        if name not in OPTIONS:
            known = ", ".join(sorted(OPTIONS))
            raise InputError(
                f"{where} {name!r:.140}: is not an option that a session may give sbatch; there are {known}"
            )
        if value is False:
            continue
        if not isinstance(value, (str, int, float)):
            raise InputError(f"{where} {name}: must be text or a number, not {value!r:.140}")
        text = "" if value is True else str(value)
        if not text.isprintable():
            raise InputError(f"{where} {name}: holds a character that cannot be printed")
        checked[name] = text
    return checked


def open_slurm(options: Mapping[str, str], environ: Mapping[str, str]) -> Cluster:
    """Slurm as a cluster, once it says that it would take such jobs.

    Raises:
        InputError: its programs are not there, it does not answer, or refuses.
    """
    from sessionrun.cluster import slurm_programs  # few sessions are Slurm's

    for program in PROGRAMS:
        if shutil.which(program, path=environ.get("PATH")) is None:
            raise InputError(
                f"--cluster {SLURM}: {program} is not on PATH; sessions are started where Slurm's are"
            )
    words = ["sbatch", *slurm_programs.option_words(options), "--test-only", "--no-requeue"]
    words += ["--array=0-0", "--chdir=/", "--wrap=true"]
    try:
        slurm_programs.run_program(words, slurm_programs.make_environment(environ), slurm_programs.ASK_S)
    except slurm_programs.SlurmFault as fault:
        raise InputError(f"--cluster {SLURM}: {fault}") from None
    return Cluster(SLURM, options=dict(options))

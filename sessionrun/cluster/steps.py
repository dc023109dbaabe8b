"""Settles which cluster runs the jobs of a session; of Slurm its options, and whether it takes such jobs."""

from __future__ import annotations

import os
import re
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

PROGRAMS: Final = ("sbatch", "squeue", "scancel", "scontrol", "sinfo")
LARGEST_ARRAY: Final = 1000

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
    from sessionrun.cluster.slurm_programs import ARRAY_LIMIT  # few sessions are Slurm's

    checked: dict[str, str] = {}
    for key, value in options.items():
        name = key.removeprefix("--")
        if name not in OPTIONS and name != ARRAY_LIMIT:
            known = ", ".join(sorted((*OPTIONS, ARRAY_LIMIT)))
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
        if name == ARRAY_LIMIT and not re.fullmatch(r"[1-9][0-9]{0,5}", text):
            raise InputError(f"{where} {name}: must be a number from 1, not {text!r:.140}")
        checked[name] = text
    return checked


def open_slurm(options: Mapping[str, str], environ: Mapping[str, str]) -> Cluster:
    """Slurm as a cluster, once it says that it would take such jobs.

    Raises:
        InputError: its programs are not there, it does not answer, or refuses.
    """
    from sessionrun.cluster.slurm_programs import ASK_S, SlurmFault, make_environment, option_words, run_program

    for program in PROGRAMS:
        if shutil.which(program, path=environ.get("PATH")) is None:
            raise InputError(
                f"--cluster {SLURM}: {program} is not on PATH; sessions are started where Slurm's are"
            )
    environ = make_environment(environ)
    try:
        words = ["sbatch", *option_words(options), "--test-only", "--no-requeue", "--chdir=/", "--wrap=true"]
        run_program(words, environ, ASK_S)
        most = find_largest_array(run_program(["scontrol", "show", "config"], environ, ASK_S))
    except SlurmFault as fault:
        raise InputError(f"--cluster {SLURM}: {fault}") from None
    if most < 1:
        raise InputError(f"--cluster {SLURM}: this cluster takes no arrays (MaxArraySize)")
    return Cluster(SLURM, options=dict(options), max_array=most)


def find_largest_array(config: str) -> int:
    """How many jobs an array may have, of what ``scontrol show config`` prints; indexes begin with 0."""
    found = re.search(r"^MaxArraySize\s*=\s*([0-9]+)", config, re.MULTILINE)
    return LARGEST_ARRAY if found is None else min(LARGEST_ARRAY, int(found[1]))

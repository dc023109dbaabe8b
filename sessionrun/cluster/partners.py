"""What a cluster puts beside the supervisor: the executor that runs jobs on nodes, those of dask or of Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionrun.keeper.wire import say
from sessionrun.model.keys import JobKey

if TYPE_CHECKING:
    from sessionrun.cluster.ends import Opened
    from sessionrun.engine.state import State
    from sessionrun.session.partners import Partners
    from sessionrun.store.session import SessionDir


def open_partners(partners: Partners, session: SessionDir, state: State) -> Partners:
    """The partners, with an executor for the cluster that the session asks for.

    What has to run on this machine it gives to the executor that they had.
    """
    cluster, here = state.spec.cluster, partners.executor
    if cluster is None:
        return partners
    if cluster.is_slurm:
        from sessionrun.cluster.slurm_executor import SlurmExecutor

        opened = find_submitted(state)
        return partners._replace(executor=SlurmExecutor(session, state.spec, here, state.epoch, opened, say))
    from sessionrun.cluster.dask_executor import DaskExecutor

    dask = DaskExecutor(session, state.spec, here, state.epoch, find_opened(state), state.holds, say)
    return partners._replace(executor=dask)


def find_opened(state: State) -> dict[JobKey, Opened]:
    """The jobs that are open on nodes of ours: where they went, and in which epoch."""
    from sessionrun.cluster.ends import Opened

    running = [task.job for task in state.tasks.values() if task.job is not None]
    return {job.key: Opened(job.node, job.epoch or "") for job in running if job.node is not None}


def find_submitted(state: State) -> dict[JobKey, tuple[str, bool]]:
    """The jobs that are open at Slurm: in which batch they went there, and whether their beginning was told."""
    running = [task.job for task in state.tasks.values() if task.job is not None]
    return {job.key: (job.epoch or "", job.pid is not None) for job in running if job.node is not None}

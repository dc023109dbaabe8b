"""What a cluster puts beside the supervisor: the executor that runs jobs on nodes, those of dask or of Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionrun.keeper.wire import say

if TYPE_CHECKING:
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
    away = [task.job for task in state.tasks.values() if task.job is not None and task.job.node is not None]
    if cluster.is_slurm:
        from sessionrun.cluster.slurm_executor import SlurmExecutor

        batches = {job.key: (job.epoch or "", job.pid is not None) for job in away}
        return partners._replace(executor=SlurmExecutor(session, state.spec, here, state.epoch, batches, say))
    from sessionrun.cluster.dask_executor import DaskExecutor
    from sessionrun.cluster.ends import Opened

    opened = {job.key: Opened(job.node or "", job.epoch or "") for job in away}
    dask = DaskExecutor(session, state.spec, here, state.epoch, opened, state.holds, say)
    return partners._replace(executor=dask)

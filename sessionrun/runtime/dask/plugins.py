"""Brings our ends into a cluster of dask's that runs: permits into its scheduler, a bridge into each worker.

dask keeps what a worker is to have, and gives it to workers that come later.  There it must do no harm where
`sessionrun` is not installed: what cannot be loaded would end such a worker.  So what travels to workers is text
that any Python of theirs can read, and the import in it fails for the log alone.
"""

from __future__ import annotations

from typing import Any, Final

from distributed.diagnostics.plugin import SchedulerPlugin

from sessionrun.cluster.messages import PROTOCOL
from sessionrun.runtime.dask import scheduler as our_end

PERMITS: Final = f"sessionrun-permits-{PROTOCOL}"
BRIDGE: Final = f"sessionrun-bridge-{PROTOCOL}"

_BRIDGE_TEXT: Final = (
    "type('SessionrunBridge', (__import__('distributed').WorkerPlugin,), {'setup': lambda self, worker: "
    "__import__('importlib').import_module('sessionrun.runtime.dask.worker').join(worker)})()"
)


class Permits(SchedulerPlugin):
    """The permits, in a scheduler that was started without them."""

    idempotent = True
    name = PERMITS

    async def start(self, scheduler: Any) -> None:
        """Begin, unless the scheduler has them by ``--preload``."""
        if our_end.HEAD not in scheduler.handlers:
            await our_end.dask_setup(scheduler)


class _Bridge:
    """Stands for a plug-in of workers that is made where it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (_BRIDGE_TEXT,)


async def register(rpc: Any) -> dict[str, str]:
    """Register both; of workers that could not take theirs the reason, by address.

    Raises what the library raises, if the scheduler refuses.
    """
    from distributed.protocol.pickle import dumps

    permits, bridge = dumps(Permits()), dumps(_Bridge())  # type: ignore[no-untyped-call]
    await rpc.register_scheduler_plugin(plugin=permits, name=PERMITS, idempotent=True)
    answers = await rpc.register_worker_plugin(plugin=bridge, name=BRIDGE, idempotent=True)
    failed = {address: answer for address, answer in answers.items() if answer.get("status") == "error"}
    return {address: _describe(answer) for address, answer in failed.items()}


def _describe(answer: dict[str, Any]) -> str:
    from distributed.core import clean_exception

    _, error, _ = clean_exception(answer["exception"], answer.get("traceback"))
    return str(error) or type(error).__name__

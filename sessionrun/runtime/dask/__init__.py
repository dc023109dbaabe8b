"""What carries the messages of a cluster: dask.distributed, as membership, transport and TLS.

In the scheduler's process the permits; in each worker's process a bridge to its node; in a session's supervisor an
executor.  No job is a task of dask's own: when a worker dies, such a task is lost or runs twice, and its processes
live on.
Not in: the protocol (`cluster`), and what a node does (`runtime.node`).
"""

"""A node of a cluster: a root, its keeper, and in the supervisor's place a process that links them to the cluster.

In: orders of sessions that run elsewhere; out: their output and their ends.  The jobs' files are in the node's own
directory until the session has them.
Not in: what carries the messages (`runtime.dask`), and any decision on tasks.
"""

"""Jobs on other machines: the protocol (permits, leases, who may say what to whom), nodes, dask, Slurm.

In: all that a session with a cluster needs beside the core, and what the verb `cluster` does.
Not in: a job's own work: a node runs it as this machine would.
"""

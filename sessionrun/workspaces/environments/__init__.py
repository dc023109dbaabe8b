"""Environments: what a task's checkout needs to run its project, built once for each digest, then copied.

In: which inputs count, the order of installs, the cache, the copy and the paths in it, its removal.
Not in: which task wants one, and what its jobs are given because of that.
"""

"""Executors: where jobs run.  One protocol; on this machine, or in a simulation.

In: starting and stopping jobs, and telling what became of them.
Not in: which job runs when.
"""

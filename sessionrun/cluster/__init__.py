"""The protocol by which sessions have jobs run on other machines: permits, leases, and who may say what to whom.

In: messages and times; out: messages.  All of it is pure, so a simulation runs this very code.
Not in: files, clocks, processes and networks.  What carries the messages is in `runtime`.
"""

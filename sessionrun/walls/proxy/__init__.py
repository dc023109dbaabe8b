"""The proxy of a session: the one way to the network for jobs inside of walls that have a list of hosts.

A process of its own, which the supervisor starts (see `runtime.proxying`), on the standard library alone.  Each
job has a socket, with a list of its own.  `hosts` and `request` are pure.  Nothing here knows sessions or tasks.
"""

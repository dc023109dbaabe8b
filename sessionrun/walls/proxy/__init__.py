"""The one way to the network for programs inside of walls that have a list of hosts.

A process outside of the walls, on the standard library alone: it starts bubblewrap and ends with it.  `request` is
pure.  Nothing here knows sessions or tasks.
"""

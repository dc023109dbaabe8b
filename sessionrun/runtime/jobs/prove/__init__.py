"""PROVE, as a process: the task's check, done in clean rooms on the work, on what it began with, and crosswise.

In: the request, running a check in a room, the verdict.
Not in: how a room or a tree of files is made, which is `workspaces`; what a failed proof leads to.
"""

"""Feeding: tasks of a queue come into a session that runs, and the queue learns what became of them.

In: what is wanted of the queue next, which task of the session a task of the queue becomes, the thread that asks.
Not in: what a backend of the queue does, and what the session does with its tasks.
"""

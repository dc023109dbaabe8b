"""The feed of a session: claims tasks of a queue for it, and tells the queue what became of them.

In: which task comes next, when a task of the queue is done, what a crash left, claims of sessions that are gone.
Not in: how a queue is kept, which is `queue`; how a task runs or lands, which is `engine` and `jobs`.
"""

"""The task queue of a repository: what is to be done, in what order, who has claimed what, who works through it.

In: the rules of a queue, its backends (a file, Beads), the lists that can be imported, and the sessions that take
their tasks from a queue.
Not in: printing.  A backend does not know what runs its tasks.
"""

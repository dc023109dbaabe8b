"""`dispatch`: settles a session that takes its tasks from the queue of the repository.

In: the configuration file, what has to be there before the start, the spec, lists to import.
Not in: the queue, which is `queue`; how tasks are claimed and settled while it runs, which is `runtime.feeding`.
"""

"""What lives while a session runs: the supervisor, its partners, and the jobs.

In: how its processes are launched; a key becomes a process to start, and the end of that process a verdict;
prompts, exports, notifications, limits of accounts.
Not in: what becomes of a task next (that is the engine's), and how processes are kept (`keeper`).  Of a business
it knows what the rows of the house say.
"""

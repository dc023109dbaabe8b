"""What lives while a session runs: the supervisor, its partners, and the jobs.

In: a key becomes a process to start, and the end of that process a verdict; where jobs run.
Not in: what becomes of a task next (that is the engine's business), and any business of the house.
"""

"""The task queue of a repository, for any door: shown, filled, and told to the sessions that are fed from it.

In: a module for each way by which tasks come into it.
Not in: sessions that take tasks out: that is `dispatching`.
"""

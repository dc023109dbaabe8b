"""The engine: events in, orders out.  Pure, so that a test can hand it any history.

In: the state, what changes it, what decides on it, and what readers are shown of it.
Not in: files, clocks, processes, and the rules of a business, which it calls (`rules`).  It knows `model` alone.
"""

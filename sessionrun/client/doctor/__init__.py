"""The checks of `doctor`, and the repairs that are provably safe.

In: looking at a session, its surroundings or this machine; findings.
Not in: printing, and repairs that could lose anything.
"""

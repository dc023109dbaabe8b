"""The checks of `doctor`, a module for each kind of evidence, and the repairs that are provably safe.

In: looking at a session or at the environment; findings.
Not in: printing, and repairs that could lose anything.
"""

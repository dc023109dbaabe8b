"""The checks of `doctor`, and the repairs that are provably safe.

In: looking at a session, its surroundings or this machine; a business's own checks stand in its room.
Not in: printing, and repairs that could lose anything.
"""

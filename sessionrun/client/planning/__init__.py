"""Makes a settled plan of what `run` is given: input, configuration and flags; and says what it would do.

In: reading the input, and the steps by which the core settles it.
Not in: the steps of a business, which stand in its room, and the start of a session: that is `launch`.
"""

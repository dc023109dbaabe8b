"""Makes a settled plan of what `run` is given: input, configuration and flags; and says what it would do.

In: a module for each kind of setting; `plan` calls them.
Not in: the start of a session: that is `launching`.
"""

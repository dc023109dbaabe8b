"""Jobs: a key becomes a process to start, and the end of that process a verdict.

In: what each phase runs, is given, and means when it ends.
Not in: which job runs when; git itself.
"""

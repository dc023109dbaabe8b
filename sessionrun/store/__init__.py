"""A session's files: directory, logs, locks, requests, and safe ways to open what others may have planted.

In: names and formats of files, and how each is created, replaced, found and locked; what the system says of
processes, programs and space.
Not in: what the events of a journal add up to, which is the engine's; decisions; git.
"""

"""Exports: files in other programs' formats that show a session while it runs, outside of its directory.

In: a module for each format, what all of them do, and the writer.
Not in: the session's own files.
"""

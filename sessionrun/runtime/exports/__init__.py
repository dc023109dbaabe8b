"""Exports: files in other programs' formats that show a session while it runs, outside of its directory.

In: a module for each format, and the writer that they share.
Not in: the session's own files.
"""

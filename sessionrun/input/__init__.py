"""Dialects: foreign input in, a `Plan` out.  One module for each input format, one table.

In: formats, their fields and their errors.
Not in: files, sessions, agents that are installed: a dialect is handed text and settings.
"""

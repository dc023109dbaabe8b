"""Dialects: foreign input in, a `Plan` out.  One module for each input format, one table of them, one of settings.

In: formats, their fields and their errors; which settings there are, and which of two that are said wins.
Not in: files, sessions, agents that are installed: a dialect is handed text and settings.  A format of one
business stands in that business's room.
"""

"""Finds what is true of sessions and tasks, from their files alone.

In: views, answers, outputs, and waiting, which is reading again and again.
Not in: anything that changes a file.
"""

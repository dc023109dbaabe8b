"""Builds and fetches ahead what the tasks of an input would ask for.

In: the work of `precache`.
Not in: removing what is in the cache: that is `cleaning`.
"""

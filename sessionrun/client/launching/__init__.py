"""Starts a session of a settled spec.

In: what is checked and written before its processes begin.
Not in: the settling: that is `planning`.
"""

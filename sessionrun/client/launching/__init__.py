"""Starts a session of a settled spec.

In: what is checked and written before its processes begin; a session that plays another one again.
Not in: the settling: that is `planning`.
"""

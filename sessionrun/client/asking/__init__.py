"""Asks a session that runs for a change, and waits until its supervisor has taken the request.

In: a module for each kind of request, and the way that all of them take.
Not in: the change itself: the session's own processes make it.
"""

"""Lands the work of tasks on a branch, for `merge`.

In: which work may land, and inside which walls.
Not in: the landing itself: that is the room `landing`.
"""

"""What people look at in a browser: the report of a session, and the pages that `serve` shows as they go.

In: what a page is made of, its drawings, its looks.
Not in: what is true of a session, and in which words it is told: that is `client` and `model.wording`.
"""

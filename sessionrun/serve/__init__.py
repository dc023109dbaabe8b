"""Shows sessions to a browser, and lets it cancel, retry and land if that was asked for: `sessionrun serve`.

In: pages, requests, who may ask.
Not in: what a session is and how it changes: that is the client's.  The library of the server is an extra.
"""

"""The report of a session as one HTML page that needs no network and no script.

What may come in: parts of the page, made from what a reader sees.  What may not: reading of files beside
`gathering`, and text that is not escaped; see `markup`.
"""

"""What the verbs print with `--json`, and the files of a session, as JSON Schemas.

In: shapes of what verbs print, made of `model.shown` and of records where these are printed.
Not in: making or printing the objects.
"""

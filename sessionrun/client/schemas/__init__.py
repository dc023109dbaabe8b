"""What the verbs print with `--json`, and the files of a session, as JSON Schemas.

In: tables of keys and kinds, one for each object.
Not in: making or printing the objects.
"""

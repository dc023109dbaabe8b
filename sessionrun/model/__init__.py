"""The records and words that all rooms share.

In: frozen records, published words, checks on them that need nothing else.
Not in: files, clocks, processes, and any other room.
"""

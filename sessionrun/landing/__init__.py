"""Landing: the work of tasks goes onto one branch, in batches whose merge passed its gates.

In: what to land, in which order and how; the records by which the next process mends what a killed one left.
Not in: sessions and their views (`client`), processes of a session (`session`), and printing.
"""

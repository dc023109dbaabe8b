"""What any door calls: plan, launch, ask, wait, read, explain, change, clean, doctor.

In: whole errands on sessions, with records and warnings as answers.
Not in: click, and printing, which are the door's; and what only one business does, which is a row of the house.

Programs of others use the public names, which are those of `sessionrun.api`.
"""

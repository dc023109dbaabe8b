"""What any door calls: plan, launch, ask, wait, read, explain, change, clean, doctor.

In: whole errands on sessions, with records and warnings as answers.
Not in: click, and printing: that is the business of the door.

Programs of others use the public names, which are those of `sessionrun.api`.
"""

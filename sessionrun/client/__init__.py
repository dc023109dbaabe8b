"""What any door calls: plan, launch, ask, wait, read, explain, clean, doctor.

In: whole errands on sessions, with records and warnings as answers.
Not in: click, and printing: that is the business of the door.
"""

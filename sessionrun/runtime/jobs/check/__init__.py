"""The CHECK of a task with a brief, as a process: the answer becomes files, commands run, an agent judges.

In: reading an answer, writing its files, running the commands.
Not in: what a failed check leads to.
"""

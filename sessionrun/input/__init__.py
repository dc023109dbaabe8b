"""What a user says, up to a `Plan`: the input, settings, configuration.  One module for each input format.

In: reading the input and the files of configuration; formats, their fields and their errors; which settings there
are, and which of two that are said wins.
Not in: sessions, and agents that are installed.  A dialect is handed text and settings, and knows no files.  A
format of one business stands in that business's room.
"""

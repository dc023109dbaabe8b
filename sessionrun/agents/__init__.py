"""The agent CLIs: how each is started, how its output is read, what it costs.  One small module each, one table.

In: all that is known of one agent and of no other; what an end and an answer mean together.
Not in: processes, sessions, retries: an agent's module starts nothing and decides nothing.
"""

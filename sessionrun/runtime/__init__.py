"""What lives while a session runs: root, keeper, supervisor, jobs, exports; and how they are started.

In: processes, the loop around the engine, executors, and files of other programs that show a session.
Not in: what people are told, and input formats.
"""

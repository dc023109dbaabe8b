"""For one release: a supervisor of an older version starts the CHECK of a task with a brief by this path."""

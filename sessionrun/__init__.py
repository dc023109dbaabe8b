"""sessionrun: many AI coding-agent CLIs at once, in detached sessions, with true outcomes."""

__version__ = "0.1.0"

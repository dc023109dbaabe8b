"""The real agent CLIs in real sessions, against a model server on loopback: ``make agents``."""

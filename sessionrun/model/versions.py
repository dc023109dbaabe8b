"""The version of what verbs print; files of a session count their own, see `spec.SCHEMA_VERSION`."""

from typing import Final

OUTPUT_VERSION: Final = 2
"""The `schema_version` of each object that a verb prints with `--json`."""

"""Makes the README of an index out of README.md: there a link needs the address of the repository before it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ReadmeHook(MetadataHookInterface):
    """The `readme` of the project's metadata; [project.urls] has the address."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add it.  The links are to the files of this version, not to those of today."""
        place = f"{metadata['urls']['Source']}/blob/v{metadata['version']}/"
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = re.sub(r"\]\((?!https:)", f"]({place}", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}

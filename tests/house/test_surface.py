"""The surface is what it was: whoever changes it changes `surface.txt` with it, and the diff shows what."""

from __future__ import annotations

import difflib

from house.surface import KEPT, describe_surface


def test_the_surface_is_as_kept() -> None:
    kept, now = KEPT.read_text().splitlines(), describe_surface().splitlines()
    changed = "\n".join(difflib.unified_diff(kept, now, "kept", "now", lineterm="", n=0))
    assert not changed, f"python -m tests.house.surface writes it anew:\n{changed}"

"""Counts the calls of processes that change a file, and kills before one of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that counts calls, and kills."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    library = tmp_path_factory.mktemp("preload") / "killed_calls.so"
    source = Path(__file__).with_name("killed_calls.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library

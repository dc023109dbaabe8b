"""Small Python projects and wheels, made without a network, and a uv that installs them.

The build backend lies in the project (PEP 517 `backend-path`), so that uv fetches nothing.
"""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Final

from stages import make_program, write_files
from uv import find_uv_bin

BACKEND: Final = """
import os, zipfile
NAME = "demo"

def build_editable(folder, config_settings=None, metadata_directory=None):
    here = os.getcwd()
    if os.path.exists("broken"):
        raise RuntimeError("the build of demo failed")
    os.makedirs("src/demo.egg-info", exist_ok=True)
    open("src/demo.egg-info/PKG-INFO", "w").write("Name: demo\\nfrom: " + here + "\\n")
    open("src/demo/_fast.so", "wb").write(b"\\0compiled")
    mapping = "MAPPING = " + repr({"demo": here + "/src/demo"}) + "\\n"
    return pack(folder, {
        "__editable__.demo.pth": here + "/src\\n",
        "__editable___demo_finder.py": mapping,
        **describe("demo = demo:main"),
    })

def build_wheel(folder, config_settings=None, metadata_directory=None):
    return pack(folder, {"demo/__init__.py": open("src/demo/__init__.py").read(), **describe("demo = demo:main")})

def describe(script):
    info = "demo-1.0.dist-info/"
    extras = "Provides-Extra: test\\nRequires-Dist: pytest; extra == \\"test\\"\\n"
    return {
        info + "METADATA": "Metadata-Version: 2.1\\nName: demo\\nVersion: 1.0\\n" + extras,
        info + "WHEEL": "Wheel-Version: 1.0\\nGenerator: here\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        info + "entry_points.txt": "[console_scripts]\\n" + script + "\\n",
    }

def pack(folder, files):
    record = "demo-1.0.dist-info/RECORD"
    name = "demo-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        wheel.writestr(record, "".join(path + ",,\\n" for path in [*files, record]))
    return name
"""

PROJECT: Final = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["build_backend"]

[project]
name = "demo"
version = "1.0"

[project.scripts]
demo = "demo:main"

[project.optional-dependencies]
test = ["pytest"]
"""

DEMO: Final = 'WHERE = __file__\n\ndef main():\n    print("demo at", WHERE)\n'
PYTEST: Final = 'import sys\n\ndef main():\n    print("pytest in", sys.prefix)\n'

UV: Final = """#!/bin/sh
{{ echo "$1 $2" >> {log}; }} 2>/dev/null || :  # inside of walls it cannot be written
export UV_OFFLINE=1 UV_NO_INDEX=1 UV_FIND_LINKS={wheels} UV_NO_CONFIG=1
if [ -w {cache} ]; then export UV_CACHE_DIR={cache}; fi
for word do shift; [ "$word" = --seed ] || set -- "$@" "$word"; done  # there is no pip to begin with
exec {program} "$@"
"""


def lay_out_project(top: Path) -> Path:
    """A project `demo` with a package below `src`, which an install in editable form compiles in place."""
    files = {
        "pyproject.toml": PROJECT,
        "build_backend/backend.py": BACKEND,
        "src/demo/__init__.py": DEMO,
        ".gitignore": "*.egg-info/\n*.so\n__pycache__/\n",
    }
    write_files(top, files)
    return top


def make_wheels(folder: Path) -> Path:
    """A folder of wheels with a `pytest` of a few lines of pure Python."""
    info = "pytest-1.0.dist-info"
    files = {
        "pytest/__init__.py": PYTEST,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: pytest\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: here\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\npytest = pytest:main\n",
    }
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "pytest-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
        wheel.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD")))
    return folder


def make_uv(folder: Path, wheels: Path) -> Path:
    """A program `uv` in `folder` that installs from `wheels` alone: uv itself lies beside it.

    Beside it is also `uv.log`, with the first two words of each time that it was run; returns that file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log, cache, program = folder / "uv.log", folder / "uv-cache", folder / "uv-itself"
    log.touch()
    cache.mkdir(exist_ok=True)
    shutil.copy2(find_uv_bin(), program)
    make_program(folder / "uv", UV.format(log=log, wheels=wheels, cache=cache, program=program))
    return log

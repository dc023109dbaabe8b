"""Small Python projects and wheels, made without a network, and programs that install them.

The build backend lies in the project (PEP 517 `backend-path`), so that an installer fetches nothing.  `UV` stands
in for uv where a test is not about an installer: it makes a real environment without pip, in a tenth of the time.
"""

from __future__ import annotations

import base64
import hashlib
import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

BACKEND: Final = """
import os, zipfile
NAME = "demo"

def build_editable(folder, config_settings=None, metadata_directory=None):
    here = os.getcwd()
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
"""
EXTRAS: Final = '\n[project.optional-dependencies]\ntest = ["pytest"]\n'

DEMO: Final = 'WHERE = __file__\n\ndef main():\n    print("demo at", WHERE)\n'
PYTEST: Final = 'import sys\n\ndef main():\n    print("pytest in", sys.prefix)\n'

UV: Final = """#!{python} -IS
import json, os, subprocess, sys, zipfile
words = sys.argv[1:]
try:
  with open({log!r}, "a") as log:
    log.write(" ".join(words[:2]) + "\\n")
except OSError:
  pass  # inside of walls
if words == ["--version"]:
    print("uv 0.0 (for tests)")
elif words[0] == "venv":
    sys.exit(subprocess.call([words[words.index("--python") + 1], "-I", "-m", "venv", "--without-pip", words[-1]]))
elif words[:2] == ["pip", "install"]:
    python = words[3]
    env = os.path.dirname(os.path.dirname(python))
    lib = os.path.join(env, "lib")
    site = os.path.join(lib, os.listdir(lib)[0], "site-packages")
    def install(wheel, **extra):
        with zipfile.ZipFile(wheel) as found:
            found.extractall(site)
            names = found.namelist()
        info = next(name for name in names if name.endswith("/RECORD")).rpartition("/")[0]
        for name, text in extra.items():
            open(os.path.join(site, info, name), "w").write(text)
            names.append(info + "/" + name)
        points = os.path.join(site, info, "entry_points.txt")
        for line in open(points) if os.path.exists(points) else ():
            name, _, place = line.strip().partition(" = ")
            if place:
                program = os.path.join(env, "bin", name)
                module, _, function = place.partition(":")
                text = "import sys\\nfrom " + module + " import " + function + "\\nsys.exit(" + function + "())\\n"
                open(program, "w").write("#!" + python + "\\n" + text)
                os.chmod(program, 0o755)
                names.append("../../../bin/" + name)
        import base64, hashlib
        with open(os.path.join(site, info, "RECORD"), "w") as record:
            for name in names:
                content = open(os.path.join(site, name), "rb").read()
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                row = (name, "", "") if name.endswith("RECORD") else (name, "sha256=" + digest, str(len(content)))
                record.write(",".join(row) + "\\n")
    wheels = {{name.partition("-")[0]: os.path.join({wheels!r}, name) for name in os.listdir({wheels!r})}}
    wanted = words[4:]
    for word, following in zip(wanted, wanted[1:] + [""]):
        if word == "-e":
            if os.path.exists("broken"):
                sys.exit("error: the build of demo failed")
            sys.path.insert(0, os.path.abspath("build_backend"))
            import backend, tempfile
            with tempfile.TemporaryDirectory() as folder:
                name = backend.build_editable(folder)
                url = "file://" + os.getcwd()
                install(os.path.join(folder, name), **{{"direct_url.json": json.dumps({{"url": url}})}})
            if "[test]" in following and "pytest" not in wheels:
                sys.exit("error: no pytest")
            if "[test]" in following:
                install(wheels["pytest"])
        elif word == "-r":
            for line in open(following):
                install(wheels[line.strip()])
        elif not word.startswith(".") and not word.endswith(".txt"):
            if word not in wheels:
                sys.exit("error: there is no " + word)
            install(wheels[word])
else:
    sys.exit(2)
"""


def lay_out_project(top: Path, *, extras: bool = True) -> Path:
    """A project `demo` with a package below `src`, which an install in editable form compiles in place."""
    files = {
        "pyproject.toml": PROJECT + (EXTRAS if extras else ""),
        "build_backend/backend.py": BACKEND,
        "src/demo/__init__.py": DEMO,
        ".gitignore": "*.egg-info/\n*.so\n__pycache__/\n",
    }
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    return top


def make_wheel(folder: Path, name: str, files: Mapping[str, str], script: str = "") -> Path:
    """A wheel of pure Python in `folder`, with its digests."""
    info = f"{name}-1.0.dist-info"
    whole = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: here\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **({f"{info}/entry_points.txt": f"[console_scripts]\n{script}\n"} if script else {}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        rows = []
        for inner, text in whole.items():
            wheel.writestr(inner, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            rows.append(f"{inner},sha256={digest},{len(text.encode())}\n")
        wheel.writestr(f"{info}/RECORD", "".join([*rows, f"{info}/RECORD,,\n"]))
    return path


def make_wheels(folder: Path) -> Path:
    """A folder of wheels with a `pytest` of a few lines."""
    make_wheel(folder, "pytest", {"pytest/__init__.py": PYTEST}, "pytest = pytest:main")
    return folder


def make_uv(folder: Path, wheels: Path, python: str | None = None) -> Path:
    """A program `uv` in `folder`, and beside it `uv.log` with what it was asked; returns that file.

    It is run by `python`; None: by the interpreter of the tests, without the environment around it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "uv.log"
    log.touch()
    program = folder / "uv"
    base = python or os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    program.write_text(UV.format(python=base, log=str(log), wheels=str(wheels)))
    program.chmod(0o755)
    return log

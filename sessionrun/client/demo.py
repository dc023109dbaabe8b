"""The demo: a repository and tasks for scripts in the place of agents; two of them say more than they did."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from sessionrun.model.errors import InputError
from sessionrun.workspaces.git import Git

_FILES: Final = {
    "README.md": "# Demo\n",
    "count.sh": "seq 3\n",
    "tasks.yaml": """\
prompts:
  - {id: greet, title: Write a greeting, prompt: "sleep 1; echo 'echo hello' > greet.sh; echo 'I wrote greet.sh.'"}
  - {id: notes, title: Describe it, needs: greet, prompt: "echo 'Run greet.sh.' >> README.md; echo 'I did.'"}
  - {id: boast, title: Write a loop, prompt: "echo 'while then' > loop.sh; echo 'Done! All tests pass.'"}
  - {id: tests, title: Test the loop, needs: boast, prompt: "echo never printed"}
  - {id: idle, title: Tidy up, prompt: "echo 'I tidied up all the files.'"}
""",
}
CHECK: Final = 'for f in *.sh; do sh -n "$f" || exit; done'
EXPECTED: Final = {"landed": 2, "failed": 1, "skipped": 1, "changed_nothing": 1}
"""How many tasks end so."""


def make_demo(folder: Path) -> None:
    """Make the repository, with one commit.

    Raises:
        InputError: there is no git; the folder is there, or cannot be made.
    """
    if shutil.which("git") is None:
        raise InputError("the demo works in a git repository, and git is not installed")
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}; name another directory: sessionrun demo DIR") from None
    for name, text in _FILES.items():
        (folder / name).write_text(text)
    git = Git(folder)
    git("init", "-q", "-b", "main")
    git("add", ".")
    git("commit", "-q", "-m", "Begin")

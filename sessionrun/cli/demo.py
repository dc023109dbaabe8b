"""`demo`: a session of scripts in a repository of its own, for people who have not seen one."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click


@click.command("demo")
@click.argument("folder", metavar="[DIR]", default="sessionrun-demo", type=click.Path(path_type=Path))
def command(folder: Path) -> int:
    """Show in a minute what sessionrun does: five tasks in a new repository, DIR/project.

    No agent is needed, and none is started: each prompt is a small script.  Exit code 1: it went otherwise than it
    should.  DIR is sessionrun-demo by default; to end it all, remove that directory.
    """
    from sessionrun.cli import group
    from sessionrun.client.installation import CHECK, EXPECTED, make_demo, name_command
    from sessionrun.client.lookup import open_session
    from sessionrun.client.reading.view import load_view

    project, name = folder / "project", name_command()
    make_demo(project)
    os.chdir(project)
    words = ["tasks.yaml", "--sync", "--agent", "shell", "--worktree", "--check", CHECK, "--land"]
    click.echo(f"$ cd {shlex.quote(str(project))}\n$ {name} {shlex.join(words)}")
    code = group.main(["run", *words], prog_name="sessionrun", standalone_mode=False)
    if code not in (0, 1):
        return int(code)
    click.echo(f"""
Two tasks said more than they did; `use` did not run, for it needs one of them.  Look around:
  cd {shlex.quote(str(project))}
  {name} status
  {name} results last --failed
  {name} diff last greet
  git log --oneline
Then in a repository of yours, with an agent of yours:
  {name} --worktree --check 'make test' -p 'Fix the login'""")
    counts = load_view(open_session(None, "last"))["counts"]
    return int({word: count for word, count in counts.items() if count} != EXPECTED)

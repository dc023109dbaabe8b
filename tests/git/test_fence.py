"""One task's git settings are its own affair: our git neither obeys them nor waits for them, whatever they say."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Command, eventually, slow
from test_workspaces import Project
from test_worktrees import by_id, project, start, wait

from sessionrun.git.git import ENVIRONMENT, OVERRIDES, READER_LIMIT_S, Git, GitError
from sessionrun.git.private import furnish, open_fence, read_settings
from sessionrun.git.repository import find_repository
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.places import GitSettings
from sessionrun.worktrees.release import release
from sessionrun.worktrees.request import WorkspaceRequest
from sessionrun.worktrees.worktree import prepare

__all__ = ["project"]

SHARED = "C=$(git rev-parse --path-format=absolute --git-common-dir)\n"

PROGRAMS = """
for key in core.fsmonitor core.pager pager.diff pager.status core.editor sequence.editor core.askPass \\
    core.sshCommand core.gitProxy core.alternateRefsCommand credential.helper diff.external \\
    interactive.diffFilter gpg.program gpg.ssh.program uploadpack.packObjectsHook \\
    filter.zap.clean filter.zap.smudge filter.late.process diff.zap.textconv diff.zap.command \\
    merge.zap.driver alias.diff alias.config trailer.x.command
do cp "$X" "$X-$key"; git config $key "$X-$key"; done
git config filter.zap.required true
git config commit.gpgSign true
git config merge.zap.name zap
git config core.hooksPath "$C/planted"
mkdir -p "$C/planted" "$C/hooks" "$C/info"
for hook in reference-transaction post-checkout post-index-change pre-auto-gc post-commit pre-commit
do cp "$X" "$C/hooks/$hook"; cp "$X" "$C/planted/$hook"; done
echo '* filter=zap diff=zap merge=zap text eol=crlf working-tree-encoding=UTF-16 ident' > "$C/info/attributes"
printf '[filter "late"]\\n\\tclean = %s\\n' "$X" > "$C/more"
git config include.path "$C/more"
for key in core.fsmonitor core.pager core.editor core.sshCommand filter.zap.smudge
do cp "$X" "$X-$key-if"; git config --file "$C/conditional" $key "$X-$key-if"; done
git config --file "$C/conditional" core.hooksPath "$C/planted"
git config --file "$C/conditional" planted.seen yes
git config includeIf.gitdir:/.path "$C/conditional"
git config includeIf.onbranch:**.path "$C/conditional"
git config core.autocrlf input
git config core.safecrlf true
git config core.symlinks false
git config core.fileMode false
git config core.attributesFile "$C/info/attributes"
git config core.splitIndex true
"""

LAZY = """
git config protocol.ext.allow always
git config protocol.allow always
git config extensions.partialClone evil
git config remote.evil.promisor true
git config remote.evil.url "ext::sh $X"
git config remote.evil.uploadpack "$X"
"""


WAIT_FOR = "until [ -e {} ]; do sleep 0.05; done\n"


def _plant(project: Project, steps: str) -> tuple[str, Path]:
    """A script that plants settings which run a program, and the file that this program makes."""
    ran, program = project.root / "ran", project.root / "program"
    program.write_text(f'#!/bin/sh\necho "$0 $*" >> {ran}\nexit 0\n')
    program.chmod(0o755)
    return f"X={program}\n{SHARED}{steps}", ran


WORK = """
printf 'print(1)\\n' > hello.py
printf 'one\\r\\ntwo\\r\\n' > dos.txt
printf 'a\\000b' > bin
ln -s hello.py link
printf '#!/bin/sh\\n' > run.sh; chmod +x run.sh
"""


def _check_work(project: Project, branch: str) -> None:
    assert project.show(branch, "hello.py") == b"print(1)\n"
    assert project.show(branch, "dos.txt") == b"one\r\ntwo\r\n"
    assert project.show(branch, "bin") == b"a\0b"
    assert project.show(branch, "link") == b"hello.py"
    modes = Git(project.top).names("ls-tree", "-z", branch, "link", "run.sh")
    assert [entry[:6] for entry in modes] == ["120000", "100755"]


def _run_every_verb(sessionrun: Command, session_id: str, codes: tuple[int, ...] = (0, 1)) -> None:
    for words in (
        ("status", session_id),
        ("results", session_id),
        ("diff", session_id),
        ("diff", "--stat", session_id),
        ("diff", "--json", session_id),
        ("explain", session_id),
        ("logs", session_id),
        ("cost", session_id),
        ("list",),
        ("overview",),
        ("doctor", session_id),
        ("clean", "--worktrees", "--dry-run", session_id),
    ):
        done = sessionrun(*words)
        assert "Traceback" not in done.stderr and done.returncode in codes, (words, done.stderr)


@pytest.mark.parametrize(
    "steps", [PROGRAMS, pytest.param(LAZY, marks=pytest.mark.slow)], ids=["programs", "lazy fetch"]
)
def test_what_a_task_plants_runs_nothing_and_changes_no_work(
    sessionrun: Command, project: Project, steps: str
) -> None:
    script, ran = _plant(project, steps)
    begun, planted, go = (project.root / name for name in ("begun", "planted", "go"))
    lost = project.run("rev-parse", "HEAD:a.txt") if steps is LAZY else ""
    take = f'mv "$C/objects/{lost[:2]}/{lost[2:]}" {project.root}/blob\n' if lost else ""
    bad = f"{script}{take}echo b > a.txt\ntouch {planted}\n"
    plan = [
        {"id": "bad", "prompt": f"{WAIT_FOR.format(begun)}{bad}{WAIT_FOR.format(go)}"},
        {"id": "good", "prompt": f"touch {begun}\n{WAIT_FOR.format(planted)}{WORK}{WAIT_FOR.format(go)}"},
        {"id": "later", "prompt": WORK, "needs": ["bad"]} if not lost else {"id": "later", "prompt": "true"},
    ]
    session_id = start(sessionrun, project, plan, "--worktree")
    eventually(planted.exists)
    _run_every_verb(sessionrun, session_id, (0, 1, 3) if lost else (0, 1))  # 3: the diff wants what is missing
    go.touch()
    tasks = by_id(wait(sessionrun, session_id))
    assert tasks["good"]["outcome"] == "succeeded", tasks["good"]
    if lost:  # a commit without a file that it has cannot be made: the work stays where it is
        assert (Path(tasks["good"]["worktree"]) / "hello.py").read_text() == "print(1)\n"
        os.rename(project.root / "blob", project.top / ".git/objects" / lost[:2] / lost[2:])
    else:
        _check_work(project, "main-task-good")
        assert tasks["later"]["outcome"] == "succeeded", tasks["later"]
        _check_work(project, "main-task-later")
    _run_every_verb(sessionrun, session_id)
    plan_file = project.root / "again.json"
    plan_file.write_text('["true"]')
    for words in (
        ("wait", session_id),
        ("resume", session_id),
        ("retry", session_id),
        ("hold", session_id),
        ("release", session_id),
        ("cancel", session_id),
        ("run", "--dry-run", "--worktree", "--agent", "shell", str(plan_file)),
    ):
        done = sessionrun(*words)
        assert "Traceback" not in done.stderr and done.returncode in (0, 1, 2), (words, done.stderr)
    assert sessionrun("clean", "--worktrees", session_id).returncode == 0
    _check_work(project, "main-task-good")
    assert not ran.exists(), ran.read_text()
    if not lost:
        assert project.run("config", "planted.seen") == "yes"  # the user's git does include it
    _launch_anew(sessionrun, project, ran)


def _launch_anew(sessionrun: Command, project: Project, ran: Path) -> None:
    """A new launch takes over the filters of that moment; nothing else that is planted runs."""
    first = start(sessionrun, project, [{"id": "a", "prompt": "echo b > b.txt; exit 1"}], "--worktree")
    assert by_id(wait(sessionrun, first))["a"]["reason_class"] == "exit_code"
    second = start(sessionrun, project, [{"id": "a", "prompt": "echo b > b.txt; exit 1"}], "--worktree")
    assert by_id(wait(sessionrun, second))["a"]["reason_class"] == "exit_code"
    for session_id in (first, second):
        _run_every_verb(sessionrun, session_id)
        assert sessionrun("clean", "--worktrees", session_id).returncode in (0, 1)
    lines = ran.read_text().splitlines() if ran.exists() else []
    assert [line for line in lines if not line.startswith(f"{project.root}/program-filter.")] == []


@pytest.mark.slow
def test_settings_that_hang_hold_nobody_up(sessionrun: Command, project: Project) -> None:
    """Git waits for ever at a FIFO that is included; ours does not read it."""
    begun, planted = project.root / "begun", project.root / "planted"
    include = '[includeIf "gitdir:/"]\\n\\tpath = pipe\\n[include]\\n\\tpath = pipe\\n'
    plant = f"{SHARED}mkfifo $C/pipe; printf '{include}' >> $C/config; touch {planted}; exec sleep 600"
    plan = [
        {"id": "bad", "prompt": f"{WAIT_FOR.format(begun)}{plant}"},
        {"id": "good", "prompt": f"touch {begun}\n{WAIT_FOR.format(planted)}{WORK}"},
        {"id": "later", "prompt": "echo later > later.txt", "needs": ["good"]},
    ]
    session_id = start(sessionrun, project, plan, "--worktree")
    assert sessionrun("wait", session_id, "good", "later").returncode == 0
    _run_every_verb(sessionrun, session_id)
    assert sessionrun("cancel", session_id, "--now").returncode == 0
    tasks = by_id(wait(sessionrun, session_id))
    assert [tasks[name]["outcome"] for name in ("bad", "good", "later")] == ["cancelled", "succeeded", "succeeded"]
    assert all(task["worktree_kept"] is None for task in tasks.values())
    assert sessionrun("clean", "--worktrees", session_id).returncode == 0
    (project.top / ".git/config").write_text((project.top / ".git/config").read_text().split("[include")[0])
    for branch in ("main-task-good", "main-task-later"):
        _check_work(project, branch)
    assert project.show("main-task-later", "later.txt") == b"later\n"


def test_settings_of_the_launch_hold(project: Project) -> None:
    """What the user has set is applied as ever, with filters, attributes and line ends."""
    (project.root / "attributes").write_text("*.up filter=up\n")
    project.run("config", "core.attributesFile", str(project.root / "attributes"))
    project.run("config", "filter.up.clean", "tr a-z A-Z")
    project.run("config", "filter.up.smudge", "tr A-Z a-z")
    (project.top / ".git/info/attributes").write_text("*.txt text eol=crlf\n")
    (project.top / "one.up").write_text("word\n")
    project.run("add", "-A")
    project.run("commit", "-qm", "filtered")
    assert project.show("main", "one.up") == b"WORD\n"
    request, place = project.prepare()
    path = Path(place.worktree or "")
    assert (path / "one.up").read_text() == "word\n" and (path / "a.txt").read_bytes() == b"a\r\n"
    (path / "two.up").write_text("new\n")
    (path / "b.txt").write_bytes(b"b\r\n")
    project.run("config", "--unset", "filter.up.clean")
    (project.top / ".git/info/attributes").unlink()
    released = release(replace(request, place=place), project.folder())
    assert released.kept is None and released.diff_stat == {"files": 2, "insertions": 2, "deletions": 0}
    assert project.show("main-task-t", "two.up") == b"NEW\n" and project.show("main-task-t", "b.txt") == b"b\n"


def test_a_filter_that_gives_another_answer_each_time_keeps_the_worktree(project: Project) -> None:
    """A commit that differs from what lies there, by the settings of the launch, keeps the worktree."""
    project.run("config", "filter.odd.clean", f"cat; date +%N >> {project.root}/n; cat {project.root}/n")
    (project.top / ".git/info/attributes").write_text("*.odd filter=odd\n")
    place, path = project.cycle(lambda path: (path / "x.odd").write_text("x"))
    assert place.kept == "x.odd changed while the work was parked" and (path / "x.odd").read_text() == "x"


def test_git_that_does_not_return_is_ended(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, pid = project.root / "bin", project.root / "pid"
    folder.mkdir()
    (folder / "git").write_text(f"#!/bin/sh\nsleep 600 & echo $! > {pid}.new; mv {pid}.new {pid}; wait\n")
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    with pytest.raises(GitError, match="not done after 2 s"):
        Git(project.top, limit_s=2)("status")
    eventually(lambda: pid.exists() and not Path(f"/proc/{pid.read_text().strip()}").exists())


def test_every_kind_of_value_survives_the_copy(project: Project) -> None:
    values = {
        "filter.a b.clean": 'say "x" \\ # ; \t end ',
        "filter.dotted.name.smudge": "line\nline",
        "filter.ünï.required": "true",
        "merge.x.driver": "",
        "lfs.url": " leading",
    }
    for key, value in values.items():
        project.run("config", key, value)
    repository = project.repository()
    with open_fence(repository) as fence:
        for key, value in values.items():
            assert fence.main()("config", "--get", key) == value.encode() + b"\n", key
        listed = fence.main()("config", "--list").decode()
        assert "user.name" not in listed and "core.hookspath=/dev/null" in listed


def test_nothing_but_the_settings_of_the_launch_is_in_force(project: Project, tmp_path: Path) -> None:
    _, settings = read_settings(project.top, project.top / ".git", project.top / ".git")
    made = tmp_path / "made"
    made.mkdir()
    furnish(made, project.top / ".git", settings)
    own = {path.name for path in made.iterdir() if not path.is_symlink()}
    assert own == {"config", "HEAD", "info", "user-attributes"}
    linked = {path.name for path in made.iterdir() if path.is_symlink()}
    assert linked.isdisjoint({"config", "hooks", "info", "config.worktree"}) and {"refs", "objects"} <= linked


def test_git_lfs_keeps_its_files_in_the_repository(project: Project, tmp_path: Path) -> None:
    """What a filter's program stores beside the objects must not lie in what is deleted."""
    settings = GitSettings((("filter.lfs.clean", "git-lfs clean"),), "", "", str(project.top / ".git"))
    made = tmp_path / "made"
    made.mkdir()
    furnish(made, project.top / ".git", settings)
    (made / "lfs" / "objects").mkdir()
    assert (project.top / ".git/lfs/objects").is_dir()


def test_a_sparse_checkout_stays_one(project: Project) -> None:
    project.run("sparse-checkout", "set", "--no-cone", "/a.txt")
    request, place = project.prepare()
    path = Path(place.worktree or "")
    assert sorted(one.name for one in path.iterdir()) == [".git", "a.txt"]
    (path / "a.txt").write_text("new\n")
    released = release(replace(request, place=place), project.folder())
    assert released.kept is None and project.files("main-task-t") == project.files("main")


def test_a_partial_clone_has_to_have_the_files(project: Project) -> None:
    """Our git fetches nothing, so what is missing is said before anything starts."""
    project.run("config", "uploadpack.allowFilter", "true")
    clone = project.root / "clone"
    project.run("clone", "-q", "--no-checkout", "--filter=blob:none", f"file://{project.top}", str(clone))
    with pytest.raises(InputError, match="partial clone without 3 of the files") as caught:
        find_repository(clone, base=None, worktree_dir=None, keep="never")
    command = str(caught.value).rpartition("(")[2].rstrip(")")
    subprocess.run(["sh", "-c", command], check=True)
    repository, _ = find_repository(clone, base=None, worktree_dir=None, keep="never")
    _, place = project.prepare(repository=repository)
    assert (Path(place.worktree or "") / "a.txt").read_text() == "a\n"


def test_users_git_knows_the_worktree(project: Project) -> None:
    """The books are made by us, and read by all other gits."""
    _, place = project.prepare()
    path = Path(place.worktree or "")
    assert project.run("status", "--porcelain", cwd=path) == ""
    assert project.run("branch", "--show-current", cwd=path) == "main-task-t"
    listed = project.run("worktree", "list", "--porcelain")
    assert f"worktree {path}\n" in listed + "\n" and "branch refs/heads/main-task-t" in listed
    assert project.run("worktree", "prune", "--verbose", "--expire=now") == ""
    subprocess.run(["git", "fsck", "--no-progress"], cwd=path, check=True, capture_output=True)
    project.run("worktree", "move", str(path), str(path.with_name("moved")))
    assert project.run("rev-parse", "HEAD", cwd=path.with_name("moved")) == place.base_commit


def test_what_a_damaged_spec_names_is_an_error_in_a_line(project: Project) -> None:
    repository, _ = find_repository(project.top, base=None, worktree_dir=None, keep="never")
    with (
        pytest.raises(SessionrunError, match="are missing: spec"),
        open_fence(replace(repository, settings=None)),
    ):
        pass
    with pytest.raises(GitError, match="null byte"):
        Git(project.top).line("for-each-ref", "--merged=refs/heads/a\0b")


def test_the_tables_have_a_reason_for_each_row() -> None:
    rows = {**OVERRIDES, **ENVIRONMENT}
    assert all(reason for _, reason in rows.values()) and READER_LIMIT_S <= 60
    assert ENVIRONMENT["GIT_ALLOW_PROTOCOL"][0] == "" and ENVIRONMENT["GIT_NO_LAZY_FETCH"][0] == "1"


LAYOUTS = {
    "sha256": "git init -q --object-format=sha256 top",
    "a separate git directory": "git init -q --separate-git-dir ../gitdir top",
    "a checkout of a bare repository": "git init -q lib && git -C lib commit -q --allow-empty -m 0 && "
    "git clone -q --bare lib bare && git -C bare worktree add -q ../top main",
    "a submodule": "git init -q lib && git -C lib commit -q --allow-empty -m 0 && git init -q outer && "
    "git -C outer -c protocol.file.allow=always submodule add -q ../lib top && ln -s outer/top top",
    "shared with a group": "git init -q --shared=group top",
    "settings of each worktree": "git init -q top && git -C top config extensions.worktreeConfig true && "
    "git -C top config --worktree core.sparseCheckout false",
    "packed refs": "git init -q top && git -C top commit -q --allow-empty -m 0 && git -C top pack-refs --all",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*list(LAYOUTS)[1:4], *slow(*list(LAYOUTS)[:1], *list(LAYOUTS)[4:])])
def test_kinds_of_repositories(own_place: Path, name: str) -> None:
    for words in (("user.name", "Ann"), ("user.email", "ann@example.org"), ("init.defaultBranch", "main")):
        subprocess.run(["git", "config", "--global", *words], check=True)
    subprocess.run(["sh", "-c", LAYOUTS[name]], cwd=own_place, check=True, capture_output=True)
    top = (own_place / "top").resolve()
    (top / "a.txt").write_text("a\n")
    for line in ("git add -A", "git commit -qm first"):
        subprocess.run(line.split(), cwd=top, check=True, capture_output=True)
    repository, _ = find_repository(top, base=None, worktree_dir=own_place / "trees", keep="never")
    request = WorkspaceRequest(repository, "s1", "t", "do it", patch=str(own_place / "patch"))
    folders = [own_place / "jobs" / f"a1-r1-{phase}" for phase in ("prepare", "release")]
    for folder in folders:
        folder.mkdir(parents=True)
    place = prepare(request, folders[0])
    path = Path(place.worktree or "")
    (path / "own").write_text("own\n")
    subprocess.run(["sh", "-c", "git add own && git commit -qm own"], cwd=path, check=True, capture_output=True)
    (path / "new").write_text("new\n")
    released = release(replace(request, place=place), folders[1])
    assert (released.kept, released.branch, path.exists()) == (None, "main-task-t", False)
    assert released.diff_stat == {"files": 2, "insertions": 2, "deletions": 0}
    listed = subprocess.run(
        ["git", "ls-tree", "--name-only", "main-task-t"], cwd=top, check=True, capture_output=True, text=True
    )
    assert {"a.txt", "own", "new"} <= set(listed.stdout.split())
    subprocess.run(["git", "fsck", "--no-progress"], cwd=top, check=True, capture_output=True)
    assert find_changes(top) == ""


def find_changes(top: Path) -> str:
    return subprocess.run(
        ["git", "status", "--porcelain"], cwd=top, check=True, capture_output=True, text=True
    ).stdout

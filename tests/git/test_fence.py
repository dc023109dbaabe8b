"""One task's git settings are its own affair: our git neither obeys them nor waits for them, whatever they say."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Command, eventually
from stages import commit_all, make_program, put_first
from test_workspaces import Project
from test_worktrees import by_id, finish, project, start, wait

from sessionrun.git.clone import take_large_files
from sessionrun.git.git import Git, GitError
from sessionrun.git.private import furnish, open_fence, read_settings
from sessionrun.git.repository import find_repository
from sessionrun.model.errors import InputError, SessionrunError
from sessionrun.model.places import GitSettings
from sessionrun.worktrees.clean import clean_claimed
from sessionrun.worktrees.findings import sweep_repository
from sessionrun.worktrees.release import release
from sessionrun.worktrees.site import describe_problem, place_link

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

WAIT_FOR = "until [ -e {} ]; do sleep 0.05; done\n"


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


def _run(sessionrun: Command, *words: str) -> None:
    done = sessionrun(*words)
    assert "Traceback" not in done.stderr and done.returncode in (0, 1, 2), (words, done.stderr)


def _run_every_verb(sessionrun: Command, session_id: str) -> None:
    for verb in ("status", "results", "diff", "diff --stat", "diff --json", "explain", "logs", "cost", "doctor"):
        _run(sessionrun, *verb.split(), session_id)
    _run(sessionrun, "clean", "--worktrees", "--dry-run", session_id)
    for verb in ("list", "overview"):
        _run(sessionrun, verb)


def test_what_a_task_plants_runs_nothing_and_changes_no_work(sessionrun: Command, project: Project) -> None:
    ran, program = project.root / "ran", project.root / "program"
    make_program(program, f'echo "$0 $*" >> {ran}')
    script = f"X={program}\n{SHARED}{PROGRAMS}"
    begun, planted, go = (project.root / name for name in ("begun", "planted", "go"))
    bad = f"{script}echo b > a.txt\ntouch {planted}\n"
    plan = [
        {"id": "bad", "prompt": f"{WAIT_FOR.format(begun)}{bad}{WAIT_FOR.format(go)}"},
        {"id": "good", "prompt": f"touch {begun}\n{WAIT_FOR.format(planted)}{WORK}{WAIT_FOR.format(go)}"},
        {"id": "later", "prompt": WORK, "needs": ["bad"]},
    ]
    session_id = start(sessionrun, project, plan, "--worktree")
    eventually(planted.exists)
    _run_every_verb(sessionrun, session_id)
    go.touch()
    tasks = by_id(wait(sessionrun, session_id))
    for name in ("good", "later"):
        assert tasks[name]["outcome"] == "succeeded", tasks[name]
        _check_work(project, f"main-task-{name}")
    _run_every_verb(sessionrun, session_id)
    plan_file = project.root / "again.json"
    plan_file.write_text('["true"]')
    for verb in ("wait", "resume", "retry", "hold", "release", "cancel"):
        _run(sessionrun, verb, session_id)
    _run(sessionrun, "run", "--dry-run", "--worktree", "--agent", "shell", str(plan_file))
    assert sessionrun("clean", "--worktrees", session_id).returncode == 0
    _check_work(project, "main-task-good")
    assert not ran.exists(), ran.read_text()
    assert project.run("config", "planted.seen") == "yes"  # the user's git does include it
    for _ in range(2):  # a new launch takes over the filters of that moment; nothing else that is planted runs
        session_id = start(sessionrun, project, [{"id": "a", "prompt": "echo b > b.txt; exit 1"}], "--worktree")
        assert by_id(wait(sessionrun, session_id))["a"]["reason_class"] == "exit_code"
        _run_every_verb(sessionrun, session_id)
        assert sessionrun("clean", "--worktrees", session_id).returncode in (0, 1)
    lines = ran.read_text().splitlines() if ran.exists() else []
    assert [line for line in lines if not line.startswith(f"{program}-filter.")] == []


def test_settings_of_the_launch_hold(project: Project) -> None:
    """What the user has set is applied as ever, with filters, attributes and line ends."""
    (project.root / "attributes").write_text("*.up filter=up\n")
    project.run("config", "core.attributesFile", str(project.root / "attributes"))
    project.run("config", "filter.up.clean", "tr a-z A-Z")
    project.run("config", "filter.up.smudge", "tr A-Z a-z")
    (project.top / ".git/info/attributes").write_text("*.txt text eol=crlf\n")
    (project.top / "one.up").write_text("word\n")
    commit_all(project.top, "filtered")
    assert project.show("main", "one.up") == b"WORD\n"
    request, path = project.begin_work()
    assert (path / "one.up").read_text() == "word\n" and (path / "a.txt").read_bytes() == b"a\r\n"
    (path / "two.up").write_text("new\n")
    (path / "b.txt").write_bytes(b"b\r\n")
    project.run("config", "--unset", "filter.up.clean")
    (project.top / ".git/info/attributes").unlink()
    released = release(request, project.folder())
    assert released.kept is None and released.diff_stat == {"files": 2, "insertions": 2, "deletions": 0}
    assert project.show("main-task-t", "two.up") == b"NEW\n" and project.show("main-task-t", "b.txt") == b"b\n"


def test_a_filter_that_gives_another_answer_each_time_keeps_the_worktree(project: Project) -> None:
    """A commit that differs from what lies there, by the settings of the launch, keeps the worktree."""
    project.run("config", "filter.odd.clean", f"cat; date +%N >> {project.root}/n; cat {project.root}/n")
    (project.top / ".git/info/attributes").write_text("*.odd filter=odd\n")
    place, path = project.cycle(lambda path: (path / "x.odd").write_text("x"))
    assert place.kept == "x.odd changed while the work was parked" and (path / "x.odd").read_text() == "x"


def test_git_that_does_not_return_is_ended(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = project.root / "pid"
    put_first(project.root, monkeypatch, f"sleep 600 & echo $! > {pid}.new; mv {pid}.new {pid}; wait")
    with pytest.raises(GitError, match="not done after 2 s"):
        Git(project.top, limit_s=2)("status")
    eventually(lambda: pid.exists() and not Path(f"/proc/{pid.read_text().strip()}").exists())


def test_the_lock_of_a_table_of_refs_is_named() -> None:
    failed = GitError(("update-ref",), 128, "fatal: update_ref failed for ref 'refs/x': cannot lock references")
    assert str(failed).endswith("then rm reftable/tables.list.lock in its git directory")


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


def test_git_lfs_keeps_its_files_in_the_repository(project: Project, tmp_path: Path) -> None:
    """What a filter's program stores beside the objects must not lie in what is deleted."""
    settings = GitSettings((("filter.lfs.clean", "git-lfs clean"),), "", "", str(project.top / ".git"))
    made = tmp_path / "made"
    made.mkdir()
    furnish(made, project.top / ".git", settings)
    (made / "lfs" / "objects").mkdir()
    assert (project.top / ".git/lfs/objects").is_dir()
    (made / "lfs" / "objects").rmdir()
    Path(project.repository().worktree_dir, "w").mkdir(parents=True)
    sweep_repository(project.repository())
    assert (made / "lfs").exists(), "tasks of another session may be at work"


def test_a_sparse_checkout_stays_one(project: Project) -> None:
    project.run("sparse-checkout", "set", "--no-cone", "/a.txt")
    request, path = project.begin_work()
    assert sorted(one.name for one in path.iterdir()) == [".git", "a.txt"]
    (path / "a.txt").write_text("new\n")
    released = release(request, project.folder())
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


def test_what_a_damaged_spec_names_is_an_error_in_a_line(project: Project) -> None:
    repository, _ = find_repository(project.top, base=None, worktree_dir=None, keep="never")
    with pytest.raises(SessionrunError, match="are missing: spec"), open_fence(replace(repository, settings=None)):
        pass
    with pytest.raises(GitError, match="null byte"):
        Git(project.top).line("for-each-ref", "--merged=refs/heads/a\0b")


# What git ignores is settled at launch: no task can make it overlook the work of another, or its own.


def test_clean_keeps_to_what_was_ignored_at_launch(project: Project) -> None:
    """If one of the three is believed, the files of all tasks are missing."""
    request, path = project.begin_work()
    poison = """
    echo "*" >> "$(git rev-parse --git-common-dir)/info/exclude"
    echo "*.txt" > "$HOME/rules"; git config core.excludesFile "$HOME/rules"
    mkdir -p "$XDG_CONFIG_HOME/git"; echo "*" > "$XDG_CONFIG_HOME/git/ignore"
    """
    project.shell(f"{poison}echo work > work.txt; echo no > no.log", path)
    found = [finding.removed for finding in clean_claimed(project.claim(request), dry_run=False)]
    assert (found, project.files("main-task-t") - project.files("main")) == ([True, False], {"work.txt"})


def test_the_users_file_is_found_where_git_finds_it(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(os.environ["HOME"])
    for folder, text in ((home / ".config", "home"), (home / "config", "xdg")):
        (folder / "git").mkdir(parents=True)
        (folder / "git" / "ignore").write_text(text)
    common = project.top / ".git"
    shutil.rmtree(common / "info")
    assert read_settings(project.top, common, common)[0] == "xdg\n"
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    assert read_settings(project.top, common, common)[0] == "home\n"
    (home / "mine").write_text("mine")
    project.run("config", "--global", "core.excludesFile", "~/mine")
    assert read_settings(project.top, common, common)[0] == "mine\n"
    project.run("config", "core.excludesFile", "")
    assert read_settings(project.top, common, common)[0] == "\n"


def test_the_copy_ignores_what_git_ignores(project: Project) -> None:
    """One list out of two files must not change which rule has the last word."""
    rules = b"\xef\xbb\xbf*.o\n!keep.o\n!caf\xe9\n# comment\n/build/\n\\#odd\nsub/*.c\nspace\\ \n"
    (project.root / "rules").write_bytes(rules)
    project.run("config", "core.excludesFile", str(project.root / "rules"))
    (project.top / ".git/info/exclude").write_text("!sub/b.c\n*.x\r\nkeep.o\n")
    (project.top / "sub/.gitignore").write_text("!a.x\n")
    for name in ("a.o", "keep.o", "build/z", "#odd", "sub/a.c", "sub/b.c", "sub/a.x", "b.x", "space ", "plain"):
        (project.top / name).parent.mkdir(exist_ok=True)
        (project.top / name).write_text("")
    words = ("ls-files", "-z", "--others", "--exclude-standard")
    with open_fence(project.repository()) as fence:
        listed = fence.main().names(*words)
    assert listed == Git(project.top).names(*words)
    assert {"sub/b.c", "sub/a.x", "plain"} <= set(listed) and "keep.o" not in listed


def test_a_file_that_came_along_is_known_again_when_the_rules_were_changed(project: Project) -> None:
    exclude = project.top / ".git/info/exclude"
    exclude.write_text("secret\n")
    (project.top / ".worktreeinclude").write_text("secret\n*.log\n")
    (project.top / "secret").write_text("secret")
    (project.top / "env.log").write_text("env")

    def work(path: Path) -> None:
        assert (path / "secret").exists() and (path / "env.log").exists()
        exclude.unlink()
        (path / ".gitignore").unlink()

    place, _ = project.cycle(work)
    assert project.files(place.commit or "") == {"a.txt", "sub/b.txt"}


# Large files that tasks bring out of their walls.


def test_only_files_with_the_digest_of_their_content_come_out(
    own_place: Path, make_deep: Callable[[Path, int], None]
) -> None:
    view, common_dir = own_place / "view", own_place / "repo"
    names = {}
    for kind in ("good", "forged", "linked", "there"):
        name = hashlib.sha256(kind.encode()).hexdigest()
        names[kind] = Path("lfs", "objects", name[:2], name[2:4], name)
        (view / names[kind]).parent.mkdir(parents=True)
        (view / names[kind]).write_text(kind)
    (view / names["forged"]).write_text("other")
    (view / names["linked"]).unlink()
    (own_place / "outside").write_text("linked")
    (view / names["linked"]).symlink_to(own_place / "outside")
    (view / "lfs" / "objects" / "note").write_text("x")
    make_deep(view / "lfs" / "objects", 1500)
    common_dir.mkdir()
    take_large_files(view, common_dir)
    assert os.listdir(common_dir) == [], "the repository has no large files"
    (common_dir / names["there"]).parent.mkdir(parents=True)
    (common_dir / names["there"]).write_text("as it was")
    take_large_files(view, common_dir)
    found = [path for path in common_dir.rglob("*") if not path.is_dir()]
    assert sorted(found) == sorted(common_dir / names[kind] for kind in ("good", "there"))
    assert (common_dir / names["there"]).read_text() == "as it was"
    (view / "lfs").rename(own_place / "elsewhere")
    (view / "lfs").symlink_to(own_place / "elsewhere")
    (common_dir / names["good"]).unlink()
    take_large_files(view, common_dir)
    assert not (common_dir / names["good"]).exists()


def test_two_tasks_may_bring_out_the_same_large_file_at_once(
    own_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = hashlib.sha256(b"large").hexdigest()
    place = Path("lfs", "objects", name[:2], name[2:4], name)
    for view in ("one", "two"):
        (own_place / view / place).parent.mkdir(parents=True)
        (own_place / view / place).write_text("large")
    common_dir = own_place / "repo"
    (common_dir / "lfs").mkdir(parents=True)
    rename, pid = os.rename, os.getpid()

    def rename_late(draft: Path, copy: Path) -> None:
        monkeypatch.setattr(os, "rename", rename)
        monkeypatch.setattr(os, "getpid", lambda: pid + 1)
        take_large_files(own_place / "two", common_dir)
        rename(draft, copy)

    monkeypatch.setattr(os, "rename", rename_late)
    take_large_files(own_place / "one", common_dir)
    assert [path for path in common_dir.rglob("*") if path.is_file()] == [common_dir / place]
    assert (common_dir / place).read_text() == "large"


# Links to what lies outside of the repository: they come along, and are never work.


@pytest.mark.slow
def test_links_out_of_the_repository_are_never_work(
    own_place: Path, sessionrun: Command, project: Project
) -> None:
    """Neither what parking nor what the agent's own git commits holds them; what they lead to stays."""
    home = Path(os.environ["HOME"])
    for folder in (own_place / "far" / ".shared", home / "notes", project.top.parent / "beside it"):
        folder.mkdir(parents=True)
        (folder / "f").write_text("there")
    links = [str(own_place / "far" / ".shared"), "~/notes", "../beside it"]
    prompt = "cat .shared/f notes/f 'beside it/f' && echo more > notes/g && echo work > new &&"
    plan = [
        {"id": "parks", "prompt": f"{prompt} true", "links": links},
        {"id": "commits", "prompt": f"{prompt} git add -A && git commit -qm all", "links": links},
        {"id": "idle", "prompt": "true", "links": links},
    ]
    found = by_id(finish(sessionrun, project, plan))
    assert [task["reason"] for task in found.values()] == [None, None, None]
    for name in ("parks", "commits"):
        assert found[name]["diff_stat"] == {"files": 1, "insertions": 1, "deletions": 0}
        assert project.run("diff", "--name-only", "main", found[name]["branch"]) == "new"
        assert found[name]["worktree"] is None
    assert found["idle"]["branch"] is None
    assert (home / "notes" / "g").read_text() == "more\n"
    assert (own_place / "far" / ".shared" / "f").exists()
    assert project.run("status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("link", "target", "name"),
    [
        ("node_modules/", "/r/top/node_modules", "node_modules"),
        ("a/../b/c", "/r/top/b/c", "b/c"),
        ("../x", "/r/x", "x"),
        ("/r/top/inner/y", "/r/top/inner/y", "inner/y"),
        ("/r/topmost", "/r/topmost", "topmost"),
        ("~/z", "/home/u/z", "z"),
    ],
)
def test_where_links_stand_and_lead(monkeypatch: pytest.MonkeyPatch, link: str, target: str, name: str) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    assert place_link("/r/top", link)[:2] == (name, target)


def test_links_that_no_worktree_can_have(own_place: Path) -> None:
    top = str(own_place / "top")
    Path(top, ".git").mkdir(parents=True)
    for link in (".", "..", "/", ".git", "../top", "../../.git", top, str(own_place)):
        assert describe_problem(top, [link], link) is not None, link

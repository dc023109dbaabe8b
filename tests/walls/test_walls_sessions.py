"""Sessions with walls through the real command: what a task can do inside, and what is seen of it outside."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import eventually
from walled import Walled, closed, is_running, make_walled, reasons
from walled import site as own

from sessionrun.agents.programs import PROGRAMS
from sessionrun.walls.policy import SECRET_FILES, SECRET_FOLDERS, SECRET_VARIABLES

__all__ = ["own"]

pytestmark = pytest.mark.slow

POLICIES = ["project", "strict"]
KEY = "secret-of-the-user"
AGENT_VARIABLES = [
    f"{agent.folder_variable}/{agent.in_variable}/key" for agent in PROGRAMS.values() if agent.folder_variable
]


@pytest.fixture(params=[False, True], ids=["self", "other user"])
def site(request: pytest.FixtureRequest) -> Iterator[Walled]:
    with make_walled(other=request.param) as made:
        yield made


HOSTILE_GIT = {
    "filter": "git config filter.zap.clean true; mkdir -p $C/info; echo '* filter=zap' > $C/info/attributes",
    "hook": "! touch $C/hooks/post-commit; mkdir -p h; git config core.hooksPath h",
    "books": "rm -rf $C/worktrees/main-task-status; mkdir -p $C/worktrees/x; echo x > $C/worktrees/x/HEAD",
    "branches": "git branch -f main HEAD; git update-ref -d refs/heads/topic; git branch -m main gone",
    "objects": "rm -rf $C/objects/??; ! rm -rf $C/base-objects/??; ! rm -rf $C/base-objects",
    "settings": "git config core.bare true; git config core.worktree /; echo '[' >> $C/config",
    "remote": "git config protocol.ext.allow always; git config extensions.partialClone e; "
    "git config remote.e.promisor true; git config remote.e.url 'ext::sh x'",
    "locks": "touch $C/packed-refs.lock $C/index.lock $C/HEAD.lock $C/refs/heads/main.lock",
    "fifos": "rm -f $C/config; mkfifo $C/config; rm -f $C/packed-refs; mkfifo $C/packed-refs",
    "links": "rm -f $C/HEAD; ln -s /etc/passwd $C/HEAD; rm -rf $C/info; ln -s / $C/info",
}
"""What a task may do to git; none of it is seen outside, and what lies in its worktree is parked."""

HONEST_GIT = {
    "status": "git status; git log --oneline | grep first; git diff",
    "commit": "echo 1 > n; git add n; git commit -qm one; echo 2 > n; "
    "git commit -qam two --amend; git reset -q --soft HEAD~; "
    "git commit -qm again",
    "rebase": "git switch -qc side; echo s > s; git add s; git commit -qm side; "
    "git switch -q -; echo m > m; git add m; "
    "git commit -qm m; git cherry-pick side; git rebase -q --onto HEAD~2 HEAD~1",
    "branches": "git branch x; git branch -m x y; git branch -d y; git checkout -q -b z; "
    "git switch -q -; git branch -D z",
    "stash": "echo 1 >> a.txt; git stash -q; git stash pop -q; echo 2 >> a.txt; git stash -q; echo kept > kept",
    "tags": "git tag v1; git tag -d v1; git tag -a -m x v2; git notes add -m note; git tag -d v2",
    "trees": "git worktree add -q /tmp/wt -b inner; git worktree remove /tmp/wt; "
    "git branch -D inner; git worktree prune",
    "gc": "echo g > g; git add g; git commit -qm g; git gc -q; git repack -adq; git fsck --no-progress",
    "config": "git config user.name Zoe; git config alias.st status; git st; echo c > c; "
    "git add c; git commit -qm c; "
    "git log -1 --format=%an | grep Zoe; git sparse-checkout set --no-cone '/*'",
    "ignored": "echo x > kept.log; git add -f kept.log; git commit -qm forced; "
    "echo y > staged.log; git add -f staged.log",
    "removed": "echo p > precious; git add p* ; git commit -qm precious; git rm -q precious; "
    "git commit -qm removed; "
    "echo '[' > $C/config",
}


@pytest.mark.parametrize("policy", POLICIES)
def test_all_of_git_works_inside_and_nothing_of_it_is_seen_outside(site: Walled, policy: str) -> None:
    site.git("branch", "topic")
    site.git("tag", "v0")
    site.sh(
        "echo stashed >> a.txt; git stash -q; git pack-refs --all; echo mine > untracked; echo edited >> sub/b.txt"
    )
    signs = "[commit]\n\tgpgsign = true\n[tag]\n\tgpgsign = true\n[gpg]\n\tprogram = false\n"
    for settings in (site.home / ".gitconfig", site.top / ".git/config"):  # the key is not there inside
        settings.write_text(settings.read_text() + signs)
    before, refs = site.snapshot(), site.git("for-each-ref")
    head = "C=$(git rev-parse --path-format=absolute --git-common-dir); echo x > told.txt; "
    plan = [
        *({"id": f"h-{name}", "prompt": f"set -e; {head}{text}"} for name, text in HONEST_GIT.items()),
        *({"id": f"x-{name}", "prompt": f"{head}{text}; exit 0"} for name, text in HOSTILE_GIT.items()),
    ]
    tasks = site.run([{**task, "sandbox": closed(policy)} for task in plan], "--max-parallel", "3")
    assert reasons(tasks) == {}
    assert site.snapshot() == before
    others = "\n".join(line for line in site.git("for-each-ref").splitlines() if "/main-task-" not in line)
    assert others == refs
    site.git("fsck", "--no-progress")
    kept = {name: task["worktree_kept"] for name, task in tasks.items() if task["worktree_kept"]}
    assert set(kept) <= {"x-links", "x-fifos", "x-settings", "x-books", "x-branches"}, kept
    for name, task in tasks.items():
        if name not in kept:
            assert site.git("show", f"main-task-{name}:told.txt") == "x", (name, task)
    assert site.git("log", "-2", "--format=%s", "main-task-h-commit").splitlines()[1] == "again"
    assert {"kept.log", "staged.log"} <= site.files("main-task-h-ignored")
    assert site.git("log", "--format=%s", "main-task-h-removed").splitlines()[1:3] == ["removed", "precious"]
    assert site.git("log", "--format=%an", "-1", "main-task-h-config~") == "Zoe"
    left = "stayed inside of its walls: a stash"
    assert tasks["h-stash"]["worktree_remark"] == left
    session_id = tasks["h-stash"]["session"].session_id
    for verb in ("results", "explain"):
        assert left in site.command(verb, session_id, "h-stash", code=None).stdout, verb
    remarks = [name for name, task in tasks.items() if task["worktree_remark"]]
    assert set(remarks) <= {"h-stash", "h-rebase", "x-branches"}, [
        tasks[name]["worktree_remark"] for name in remarks
    ]


def test_codes_signals_and_what_is_left_running_in_sessions(site: Walled) -> None:
    codes = [1, 2, 126, 127, 128, 137, 143, 255]
    numbers = [1, 2, 3, 6, 9, 11, 15, 34, 64]
    mark = f"{os.getpid()}{site.number}77"
    daemon = f"(env -i setsid sh -c 'trap \"\" TERM HUP; exec sleep {mark}' &); "
    plan: list[dict[str, Any]] = [{"id": f"c{code}", "prompt": f"exit {code}"} for code in codes]
    plan += [{"id": f"s{number}", "prompt": f"kill -{number} $$"} for number in numbers]
    plan += [
        {"id": "all", "prompt": "kill -9 -1; sleep 1000"},
        {"id": "daemon", "prompt": f"{daemon} true", "setup": [f"{daemon} true"], "check": f"{daemon} true"},
        {
            "id": "chain",
            "prompt": "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sessionrun\\.' || true; ls /proc",
        },
    ]
    tasks = site.run([{**task, "sandbox": closed("project")} for task in plan], "--max-parallel", "3")
    for code in codes:
        assert (tasks[f"c{code}"]["exit_code"], tasks[f"c{code}"]["signal"]) == (code, None)
    for number in numbers:
        assert tasks[f"s{number}"]["signal"] == number, tasks[f"s{number}"]
    assert tasks["all"]["outcome"] == "failed" and tasks["daemon"]["outcome"] == "succeeded"
    assert next(line for line in site.printed(tasks["chain"]).split() if line.isdecimal()) == "0"
    assert not is_running(mark)


def test_a_cancel_reaches_the_program_inside(own: Walled) -> None:
    script = "trap 'echo bye > bye; exit 5' TERM; touch begun; while :; do sleep 0.1; done"
    session = own.start([{"id": "t", "prompt": script, "sandbox": closed("strict")}])
    worktree = own.root / "repo-worktrees" / "main-task-t"
    eventually((worktree / "begun").exists)
    own.command("cancel", session.session_id)
    task = own.finish(session)["t"]
    assert task["outcome"] == "cancelled"
    assert "bye" in own.files("main-task-t")


def test_a_limit_of_processes_holds_for_those_inside_alone() -> None:
    with make_walled(other=os.geteuid() == 0) as site:
        script = "for n in $(seq 28); do sleep 5 & done; wait"
        sandbox = {**closed("project"), "processes": 20}
        tasks = site.run(
            [
                {"id": "many", "prompt": script, "sandbox": sandbox},
                {"id": "few", "prompt": "sleep 0.1 & sleep 0.1 & wait; true", "sandbox": sandbox},
            ]
        )
        assert tasks["few"]["outcome"] == "succeeded"
        assert "fork" in Path(tasks["many"]["session"].error_path("many")).read_text().lower()


@pytest.mark.parametrize("policy", POLICIES)
def test_no_secret_can_be_read_and_nothing_outside_be_written(site: Walled, policy: str) -> None:
    states = [state.folder for state in PROGRAMS.values()]
    files = [f"{folder}/deep/key" for folder in (*SECRET_FOLDERS, *states)] + [*SECRET_FILES, ".claude.json"]
    linked = (".ssh", ".netrc")
    for name in files:
        if not name.startswith(linked):
            site.write(f"home/{name}", f"{KEY} {name}\n")
    site.write("elsewhere/keys/id", f"{KEY} linked folder\n")
    site.write("elsewhere/netrc", f"{KEY} linked file\n")
    site.write("home/plain", "readable\n")
    for name in ("other", "gone"):  # projects with results of their own, of which one is there no more
        folder = site.write(f"home/{name}/notes", "readable\n").parent
        env = {"SESSIONRUN_RESULTS_DIR": str(folder / "results")}
        site.command("--sync", "--agent", "shell", "-p", f"echo {KEY}", cwd=folder, env=env)
    shutil.rmtree(site.home / "gone")
    assert KEY in site.sh("cat ~/other/results/*/task-*.txt; grep -c home/other ~/state/sessionrun/sessions")
    (site.home / ".ssh").symlink_to(site.root / "elsewhere" / "keys")
    (site.home / ".netrc").symlink_to("../elsewhere/netrc")
    shutil.rmtree(site.home / ".aws")
    (site.home / ".aws").symlink_to("nowhere")
    reads = "; ".join(
        f"cat ~/{shlex.quote(name)} 2>/dev/null" for name in [*files, ".ssh/id", "../elsewhere/keys/id"]
    )
    own = [site.home, site.top, site.top / ".git", site.root, site.results, site.root / "elsewhere"]
    own.append(site.root.parent)
    tries = "".join(f"touch {path}/planted 2>/dev/null; " for path in own)
    tries += "for f in / /usr /etc /proc/sys/kernel; do if [ -w $f ]; then echo W$f; fi; done"
    tries += "; for f in /proc/sys/kernel/hostname /proc/sys/vm/swappiness /proc/sysrq-trigger /sys/kernel "
    tries += "/sys/fs/cgroup /etc/passwd /dev/mem /dev/sda; do if [ -w $f ]; then echo W$f; fi; done"
    nested = "unshare -Urpf --mount-proc sh -c 'test -w /proc/sys/kernel/hostname && echo Wnested' 2>/dev/null"
    script = (
        f"{reads}; "
        f"grep -rs {KEY} ~ / --include='*key*' --include='id' --include='*rc' -l 2>/dev/null | head; {tries}; "
    )
    script += (
        "cat ~/other/results/*/task-*.txt ~/other/results/*/prompts/* ~/state/sessionrun/sessions; ls ~/gone; "
    )
    script += f"{nested}; cat ~/plain ~/other/notes; ls {site.results} {site.root}/repo-worktrees; echo end; true"
    plan = [{"id": name, "prompt": script, "sandbox": closed(policy)} for name in ("one",)]
    plan.append({"id": "two", "prompt": "true", "sandbox": closed(policy)})
    env = {"GITHUB_TOKEN": KEY, "SSH_AUTH_SOCK": "/tmp/x", "AWS_SECRET_ACCESS_KEY": KEY}
    tasks = site.run([*plan, {"id": "env", "prompt": "env", "sandbox": closed(policy)}], env=env)
    said = site.printed(tasks["one"])
    assert KEY not in said and KEY not in site.printed(tasks["env"])
    lines = said.splitlines()
    assert [line for line in lines if line.startswith("W")] == [], said
    folders = [path for path in (*own, site.root / "repo-worktrees") if path.is_dir()]
    assert [path for path in folders if "planted" in os.listdir(path)] == []
    assert lines.count("readable") == (2 if policy == "project" else 0) and "home/other" not in said
    assert "main-task-two" not in said and "session-" not in said
    assert lines[-1] == "end"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", ["files", "folders"])
def test_no_secret_can_be_read_where_a_variable_says_that_it_is(site: Walled, policy: str, kind: str) -> None:
    env = {}
    for place in (*SECRET_VARIABLES, *AGENT_VARIABLES):
        variable, _, name = place.partition("/")
        inside = name or ("" if kind == "files" else "deep/key")
        env[variable] = str(site.home / "odd" / variable)
        site.write(f"home/odd/{variable}/{inside}".rstrip("/"), KEY)
    site.write("repo/kube", KEY)
    site.write("home/odd/plain", "readable\n")
    for agent in PROGRAMS.values():
        site.write(f"home/{agent.folder}/key", KEY)  # a variable names another folder, and this is there, too
    env["KUBECONFIG"] += f":{site.top}/kube"
    script = f"grep -rls {KEY} ~ {site.top}; cat ~/odd/plain; echo new > new; git add new; git commit -qm new"
    task = site.run([{"id": "t", "prompt": script, "sandbox": closed(policy)}], env=env)["t"]
    assert task["outcome"] == "succeeded", task["reason"]
    assert site.printed(task).split() == (["readable"] if policy == "project" else [])
    assert site.git("log", "-1", "--format=%s", "main-task-t") == "new"


@pytest.mark.parametrize("policy", POLICIES)
def test_variables_that_name_what_a_task_needs_break_nothing(own: Walled, policy: str) -> None:
    """Nor does one that the plan lets in: it is there to be used."""
    tree = own.root / "repo-worktrees" / "main-task-t"
    own.write("home/kube", "readable\n")
    places = [
        own.home,
        own.top,
        tree,
        tree / "a.txt",
        tree / "sub",
        own.top / ".git",
        own.root,
        "/",
        "/etc",
        "/usr",
    ]
    places += ["/proc/self", "/dev/fd", "/dev/null", "/etc/passwd", "/bin/sh", "nowhere", "~", sys.prefix, "/tmp"]
    plain = [name for name in SECRET_VARIABLES if "/" not in name and name != "KUBECONFIG"]
    env = {name: str(place) for name, place in zip(plain, places, strict=False)}
    assert len(env) == len(places)
    env["KUBECONFIG"] = str(own.home / "kube")
    script = "cat a.txt sub/b.txt; cat $KUBECONFIG; python3 -c 'print(3)'; git log --format=%s; echo n > n"
    sandbox = {**closed(policy), "env": ["KUBECONFIG"], "read": [str(own.home / "kube")]}
    task = own.run([{"id": "t", "prompt": script, "sandbox": sandbox}], env=env)["t"]
    assert task["outcome"] == "succeeded", task["reason"]
    assert own.printed(task).split() == ["a", "b", "readable", "3", "first"]
    assert "n" in own.files("main-task-t") and task["worktree_kept"] is None


@pytest.mark.parametrize("policy", POLICIES)
def test_devices_that_the_plan_names_are_there_and_no_others(own: Walled, policy: str) -> None:
    named = next(path for path in ("/dev/net", "/dev/dri", "/dev/pts", "/dev/kmsg") if os.path.exists(path))
    others = [name for name in ("fuse", "kvm", "kmsg", "loop0", "net") if os.path.exists(f"/dev/{name}")]
    script = (
        f"for name in {' '.join(others)}; do test -e /dev/$name && echo $name; done; test -e {named} && echo ok"
    )
    sandbox = {**closed(policy), "devices": [named]}
    tasks = own.run(
        [
            {"id": "with", "prompt": f"{script}; true", "sandbox": sandbox},
            {"id": "without", "prompt": f"{script}; true", "sandbox": closed(policy)},
        ]
    )
    assert [word for word in own.printed(tasks["with"]).split() if f"/dev/{word}" != named] == ["ok"]
    assert [word for word in own.printed(tasks["without"]).split() if word != "ok" or named != "/dev/pts"] == []


@pytest.mark.parametrize("policy", POLICIES)
def test_a_task_that_fills_the_disk_is_ended(own: Walled, policy: str) -> None:
    """Where all that it writes can be counted; what fits is let be."""
    fill = "head -c 30M /dev/urandom > {}; trap '' TERM; while :; do sleep 1; done"
    prompts = {
        "tmp": fill.format("/tmp/much"),
        "tree": fill.format("much.log"),
        "view": fill.format("$(git rev-parse --git-common-dir)/much"),
        "fits": "head -c 1M /dev/urandom > /tmp/little; head -c 1M /dev/urandom > little; sleep 3",
    }
    sandbox = {**closed(policy), "disk": "20M"}
    plan: list[dict[str, Any]] = [
        {"id": name, "prompt": prompt, "sandbox": sandbox} for name, prompt in prompts.items()
    ]
    plan.append({"id": "setup", "setup": [prompts["tmp"]], "prompt": "true", "sandbox": sandbox})
    tasks = own.run(plan)
    full = ("failed", "disk_limit", "disk_limit: what it can write came to more than 20M")
    ends = {name: (task["outcome"], task["reason_class"], task["reason"]) for name, task in tasks.items()}
    assert ends.pop("fits")[0] == "succeeded"
    assert ends == dict.fromkeys(ends, full)
    kept = [own.root / "results", own.root / "repo-worktrees"]
    assert [path for folder in kept for path in folder.rglob("much*")] == [], "what they wrote is gone"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_link_to_a_link_of_the_checkout_can_be_read_and_not_written(own: Walled, policy: str) -> None:
    own.sh(
        "mkdir data; echo shared > data/f; ln -s ../data repo/shared; echo shared >> repo/.git/info/exclude",
        own.root,
    )
    prompt = "cat shared/f; echo new > shared/f; test -L shared && echo new > new.txt"
    plan = {"id": "t", "prompt": prompt, "sandbox": closed(policy), "links": ["shared"], "check": "cat shared/f"}
    tasks = own.run([plan])
    assert reasons(tasks) == {}
    assert own.printed(tasks["t"]) == "shared\n"
    assert (own.root / "data" / "f").read_text() == "shared\n"


COMMIT_TWO = "cd repo; echo 2 >> a.txt; git commit -qam two; git config uploadpack.allowFilter true; cd ..; "
LAYOUTS = {
    "results below the repository": "echo out >> repo/.git/info/exclude",
    "packed refs": "cd repo; git branch one; git tag two; git pack-refs --all; git gc -q",
    "alternates": "mv repo origin; git clone -q --shared origin repo",
    "shallow": f"{COMMIT_TWO} mv repo origin; git clone -q --depth 1 file://$PWD/origin repo",
    "partial clone": f"{COMMIT_TWO} mv repo origin; git clone -q --filter=blob:none file://$PWD/origin repo",
    "reftable": "rm -rf repo",
    "sha256": "rm -rf repo",
    "linked worktree": "mv repo origin; cd origin; git switch -q -c other; git worktree add -q ../repo main",
    "a checkout of a bare repository": "mv repo origin; git clone -q --bare origin bare; "
    "git -C bare worktree add -q ../repo main",
    "a separate git directory": "cd repo; git init -q --separate-git-dir ../gitdir",
    "shared with a group": "cd repo; git init -q --shared=group",
    "settings of worktrees": "cd repo; git config extensions.worktreeConfig true; "
    "git config --worktree user.name Wor; git config --worktree core.sparseCheckout false",
    "a submodule": "mv repo origin; git init -q outer; ln -s outer/top repo; cd outer; "
    "git -c protocol.file.allow=always submodule --quiet add ../origin top",
    "with a submodule": "git init -q lib; cd lib; echo l > l; git add l; git commit -qm l; cd ../repo; "
    "git -c protocol.file.allow=always submodule --quiet add ../lib lib; git commit -qm sub",
    "in a masked folder": "mkdir home/.docker; mv repo home/.docker; ln -s home/.docker/repo repo",
    "the home directory is that of the system": "cd repo; git config user.name Ann; git config user.email a@b",
}
FORMATS = {"reftable": "--ref-format=reftable", "sha256": "--object-format=sha256"}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_repositories_of_all_kinds(own: Walled, kind: str) -> None:
    """With walls and without."""
    if kind in FORMATS and own.call("git", "init", "-q", FORMATS[kind], "../other", code=None).returncode:
        pytest.skip(f"{own.git('--version')} has no {kind}")
    own.sh(LAYOUTS[kind], own.root)
    if kind in FORMATS:
        own.make_repository(FORMATS[kind])
    if kind == "results below the repository":
        own.environ["SESSIONRUN_RESULTS_DIR"] = str(own.top / "out")
    if "home directory" in kind:
        own.environ["HOME"] = "/"
    refs = own.git("for-each-ref")
    script = "set -e; git log --oneline > log.txt; echo new > new.txt; git add -A; git commit -qm work; git status"
    script += "; cat lib/l" if kind == "with a submodule" else ""
    policies = ("none", *POLICIES)
    boxes = {policy: closed(policy) if policy in POLICIES else "none" for policy in policies}
    plan = [
        # beside other tasks git finds worktrees that are half made; those in walls see their own alone
        {"id": one, "prompt": f"{script}; {'' if box == 'none' else 'git fsck; '}echo > more", "sandbox": box}
        for one, box in boxes.items()
    ]
    tasks = own.run(plan)
    assert reasons(tasks) == {}, [own.printed(task) for task in tasks.values()]
    for policy, task in tasks.items():
        assert {"new.txt", "more"} <= own.files(f"main-task-{policy}")
        assert own.git("log", "-1", "--format=%s", f"main-task-{policy}~") == "work"
        assert (task["worktree_kept"], task["worktree_remark"]) == (None, None)
        assert task["diff_stat"]["files"] == 3
    assert [line for line in own.git("for-each-ref").splitlines() if "main-task" not in line] == refs.splitlines()
    own.git("fsck", "--no-progress")
    assert own.git("status", "--porcelain") == ""


# What hostile tasks try on results, settings and objects of others, and against limits.


@pytest.fixture(params=POLICIES)
def sandbox(request: pytest.FixtureRequest) -> dict[str, Any]:
    return closed(request.param)


G = "G=$(git rev-parse --path-format=absolute --git-common-dir)"


def test_no_planted_remote_is_asked_for_an_object_that_was_taken_away(
    own: Walled, sandbox: dict[str, Any]
) -> None:
    program = own.write("x.sh", f"#!/bin/sh\necho ran > {own.root}/ran\n")
    program.chmod(0o755)
    prompt = (
        f"{G}; echo b > a.txt; git config protocol.ext.allow always; git config extensions.partialClone evil; "
        f"git config remote.evil.promisor true; git config remote.evil.url 'ext::sh {program}'; "
        "B=$(git rev-parse HEAD:a.txt); O=$(echo $B | cut -c1-2)/$(echo $B | cut -c3-); "
        "for d in objects base-objects; do mv $G/$d/$O /tmp/blob; done; "
        "touch told; while ! test -e go; do sleep 0.1; done"
    )
    session = own.start([{"id": "e", "prompt": prompt, "sandbox": sandbox}])
    tree = own.root / "repo-worktrees" / "main-task-e"
    eventually((tree / "told").exists)
    own.command("diff", session.session_id)
    own.git("fsck", "--no-progress")
    (tree / "go").touch()
    assert reasons(own.finish(session)) == {}
    own.git("show", "main-task-e")
    assert not (own.root / "ran").exists()


def test_nothing_that_is_planted_where_a_variable_leads_is_run_outside(
    own: Walled, sandbox: dict[str, Any]
) -> None:
    """A module where one of the plan leads, and a program in a relative folder of the path."""
    planted = f"open('{own.root}/ran-module', 'w')"
    program = f"printf '#!/bin/sh\\ntouch {own.root}/ran-program\\n'"
    plant = f"mkdir -p bin; {program} > bin/git; chmod +x bin/git; cp bin/git bin/bwrap"
    twice = {"sandbox": sandbox, "check": ["false"], "rounds": 2}
    plan = [
        {"id": "module", "prompt": f'echo "{planted}" > orjson.py', "env": {"PYTHONPATH": "."}, **twice},
        {"id": "program", "prompt": f'{plant}; touch "$$"', **twice},
    ]
    own.finish(own.start(plan, env={"PATH": f"bin:{own.environ['PATH']}"}))
    assert list(own.root.glob("ran-*")) == []


def test_a_pipe_among_the_settings_stops_no_git_of_ours(own: Walled, sandbox: dict[str, Any]) -> None:
    os.mkfifo(own.top / "pipe")
    outer, inner = f"git config include.path {own.top}/pipe", "mkfifo inner; git config include.path $PWD/inner"
    plan = [
        {"id": "outer", "prompt": f"{outer}; echo w > w", "sandbox": sandbox},
        {"id": "inner", "prompt": f"{inner}; echo w > w", "sandbox": sandbox},
    ]
    tasks = own.run(plan)
    assert reasons(tasks) == {} and "w" in own.files("main-task-outer")
    hangs = f"{inner}; touch told; git status"
    session = own.start([{"id": "hang", "prompt": hangs, "sandbox": sandbox}])
    eventually((own.root / "repo-worktrees" / "main-task-hang" / "told").exists)
    own.command("cancel", session.session_id, "--now")
    assert own.finish(session)["hang"]["outcome"] == "cancelled"


@pytest.mark.parametrize("place", ["results.json", "out/results.json"])
def test_no_planted_link_takes_the_place_of_results(own: Walled, sandbox: dict[str, Any], place: str) -> None:
    notes, results = own.write("notes", "precious"), own.top / place
    results.parent.mkdir(exist_ok=True)
    folder = results.parent
    prompt = f"rm -f {results}; ln -s {notes} {results}; mv {folder} {folder}-gone; ln -s {own.root} {folder}"
    plan = {
        "agents": ["shell"],
        "models": ["m"],
        "worktree_base": "../repo-worktrees",
        **({} if place == "results.json" else {"output": place}),
        "tasks": [{"id": "a", "name": "A", "prompts": [f"{prompt}; true"], "sandbox": sandbox["policy"]}],
    }
    file = own.write("matrix.json", json.dumps(plan))
    own.command("--sync", "--sandbox", sandbox["policy"], str(file))
    assert notes.read_text() == "precious"
    assert not results.is_symlink() and not folder.is_symlink()
    assert json.loads((own.top / "results.json").read_text())


@pytest.mark.parametrize("who", ["$$", "$PPID"], ids=["itself", "inner"])
def test_a_stopped_process_is_ended_when_its_time_is_up(own: Walled, sandbox: dict[str, Any], who: str) -> None:
    mark = f"{os.getpid()}.77"
    prompt = f"(setsid sleep {mark} &); touch told; kill -STOP {who}; exit 0"
    for seconds in (3, 10, 30, 90):  # of which the first in which it comes so far is enough
        plan = [{"id": f"t{seconds}", "prompt": prompt, "sandbox": sandbox, "timeout": f"{seconds}s"}]
        (task,) = own.run(plan).values()
        assert (task["outcome"], task["reason_class"]) == ("timed_out", "timeout")
        assert not is_running(mark)
        if has_told := task["branch"] is not None and "told" in own.files(task["branch"]):
            break
    assert has_told


def test_a_home_that_is_a_link_hides_the_same(own: Walled, sandbox: dict[str, Any]) -> None:
    real = own.root / "disk" / "ann"
    real.parent.mkdir()
    own.home.rename(real)
    own.home.symlink_to(real)
    (real / ".ssh").mkdir()
    (real / ".ssh" / "id").write_text("KEY")
    (real / ".netrc").write_text("KEY")
    (real / "plain").write_text("readable\n")
    reads = " ".join(f"{home}/{name}" for home in (real, own.home, "~") for name in (".ssh/id", ".netrc"))
    prompt = f"cat {reads}; cat ~/plain; git log -1 --format=%an; echo n > n; touch ~/planted"
    tasks = own.run([{"id": "t", "prompt": f"{prompt}; true", "sandbox": sandbox}])
    assert reasons(tasks) == {}
    assert own.printed(tasks["t"]).split() == (["readable"] if sandbox["policy"] == "project" else []) + ["Ann"]
    assert "n" in own.files("main-task-t") and not (real / "planted").exists()

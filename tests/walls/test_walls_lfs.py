"""Large files inside of walls, by a program that does what Git LFS does: it keeps files by their digest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from walled import Walled, make_walled

from sessionrun.git.large_files import take_large_files

LFS = """\
#!/usr/bin/env python3
import hashlib, os, subprocess, sys
common = subprocess.run(["git", "rev-parse", "--path-format=absolute", "--git-common-dir"], capture_output=True)
common = common.stdout.decode().strip()
def place(top, name):
    return os.path.join(top, "lfs", "objects", name[:2], name[2:4], name)
content = sys.stdin.buffer.read()
if sys.argv[1] == "clean":
    name = hashlib.sha256(content).hexdigest()
    os.makedirs(os.path.dirname(place(common, name)), exist_ok=True)
    with open(place(common, name), "wb") as stream:
        stream.write(content)
    print("version https://git-lfs.github.com/spec/v1")
    print(f"oid sha256:{name}")
    print(f"size {len(content)}")
else:
    name = content.decode().split("sha256:")[1].split()[0]
    tops = [common]
    try:
        with open(os.path.join(common, "objects", "info", "alternates")) as lines:
            tops += [os.path.dirname(line.strip()) for line in lines]
    except OSError:
        pass
    found = [place(top, name) for top in tops if os.path.exists(place(top, name))]
    with open(found[0], "rb") as stream:
        sys.stdout.buffer.write(stream.read())
"""


@pytest.fixture
def site(own_place: Path) -> Iterator[Walled]:
    with make_walled(other=False) as made:
        made.make_repository()
        made.write("bin/git-lfs", LFS).chmod(0o755)
        made.environ["PATH"] = f"{made.root}/bin:{made.environ['PATH']}"
        for name in ("clean", "smudge"):
            made.git("config", f"filter.lfs.{name}", f"git-lfs {name}")
        made.git("config", "filter.lfs.required", "true")
        made.sh("echo '*.bin filter=lfs' > .gitattributes; echo old > old.bin; git add -A; git commit -qm large")
        made.sh("echo new > old.bin; git commit -qam newer")
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["project", "strict"])
def test_large_files_of_commits_come_out_and_those_of_the_repository_are_there(site: Walled, policy: str) -> None:
    script = (
        "set -e; cat old.bin; git checkout -q HEAD~ -- old.bin; cat old.bin; echo mine > my.bin; git add -A; "
        "git commit -qm mine; git show HEAD:my.bin | grep -q oid; echo later > later.bin; "
        f"! touch {site.top}/.git/lfs/objects/planted"
    )
    sandbox = {"policy": policy, "network": "none", "read": [str(site.root / "bin")]}
    task = site.run([{"id": "t", "prompt": script, "sandbox": sandbox}])["t"]
    assert task["outcome"] == "succeeded" and task["worktree_kept"] is None, task
    assert site.printed(task).split() == ["new", "old"]
    for name, content in (("my", b"mine\n"), ("later", b"later\n")):
        assert hashlib.sha256(content).hexdigest() in site.git("show", f"main-task-t:{name}.bin")
    site.git("checkout", "-q", "main-task-t")
    assert (site.top / "my.bin").read_text() == "mine\n" and (site.top / "later.bin").read_text() == "later\n"


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

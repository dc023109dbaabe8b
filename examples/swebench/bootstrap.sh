#!/bin/sh
# Makes the repository that the instances are about, and artifacts/instances.jsonl.  Done again, it begins anew.
set -eu
cd "$(dirname "$0")"

mkdir -p artifacts
printf '*\n' > artifacts/.gitignore
rm -rf artifacts/repo
cp -R source artifacts/repo

GIT_AUTHOR_NAME=example GIT_AUTHOR_EMAIL=example@localhost GIT_AUTHOR_DATE='2026-01-01T00:00:00Z'
GIT_COMMITTER_NAME=example GIT_COMMITTER_EMAIL=example@localhost GIT_COMMITTER_DATE='2026-01-01T00:00:00Z'
export GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL GIT_AUTHOR_DATE GIT_COMMITTER_NAME GIT_COMMITTER_EMAIL GIT_COMMITTER_DATE
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
in_repo() { git -C artifacts/repo -c core.hooksPath=/dev/null -c commit.gpgSign=false "$@"; }

in_repo init -q
in_repo add .
in_repo commit -q -m 'Three functions about words'
base=$(in_repo rev-parse HEAD)
# What was fixed later: an agent must not see it.
sed -i.bak -e 's/text.split(" ")/text.split()/' artifacts/repo/wordtool/__init__.py
rm artifacts/repo/wordtool/__init__.py.bak
in_repo commit -q -a -m 'Fix count'
sed "s/BASE_COMMIT/$base/g" instances.in.jsonl > artifacts/instances.jsonl
echo "artifacts/instances.jsonl: $(wc -l < artifacts/instances.jsonl | tr -d ' ') instances at $base"

#!/bin/sh
# red: a file is broken, or the two of a pair both claim what only one can have
if grep -rqs BROKEN work; then echo "work is broken"; exit 1; fi
for one in work/one-*; do
    two="work/two-${one#work/one-}"
    if [ -f "$one" ] && [ -f "$two" ] && grep -q claims "$one" && grep -q claims "$two"; then
        echo "$one and $two both claim the same"
        exit 1
    fi
done
exit 0

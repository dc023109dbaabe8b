#!/bin/sh
# Plays a coding agent.  The title of the task says what it does.
prompt=$(cat)
keep() { git add -A && git -c user.name=storm -c user.email=storm@example.org commit -qm "$*"; }
mend() {
    for file in $(git grep -l '^<<<<<<< '); do
        sed -i -e '/^||||||| /,/^=======$/d' -e '/^<<<<<<< /d' -e '/^=======$/d' -e '/^>>>>>>> /d' "$file"
    done
    for one in work/one-*; do
        two="work/two-${one#work/one-}"
        if [ -f "$one" ] && [ -f "$two" ]; then echo yields >"$two"; fi
    done
    keep mended
}
case "$SESSIONRUN_TASK" in
*-mend-*) mend; echo mended; exit 0 ;;
esac
set -- $(printf '%s\n' "$prompt" | sed -n 's/.*storm \([a-z]*\) \([0-9]*\).*/\1 \2/p' | head -n 1)
mkdir -p work
case "$1" in
commit) echo "$1 $2" >"work/$1-$2"; keep "$1" "$2" ;;
leave) echo "$1 $2" >"work/$1-$2" ;;
crash) echo "$1 $2" >"work/$1-$2"; keep "$1" "$2"; exit 3 ;;
once) mkdir "$(dirname "$0")/once-$2" 2>/dev/null && exit 3; echo "$1 $2" >"work/$1-$2" ;;
left | right)
    if grep -q base "shared/$2"; then echo "$1 $2" >"shared/$2"; else echo "$1 $2" >>"shared/$2"; fi
    keep "$1" "$2" ;;
one | two) echo claims >"work/$1-$2"; keep "$1" "$2" ;;
break) echo BROKEN >"work/$1-$2"; keep "$1" "$2" ;;
*) echo "no storm in the prompt"; exit 4 ;;
esac
echo "did $1 $2"

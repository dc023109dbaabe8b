cp -r "$EXAMPLES"/markdown work; sessionrun -q --agent shell work

cp -r "$EXAMPLES"/swebench bench; (cd bench; ./bootstrap.sh)
sessionrun -q --agent shell --from swebench --no-environment --cache-dir ../cache --output-dir ../out \
    bench/artifacts/instances.jsonl

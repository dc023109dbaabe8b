sessionrun queue add 'echo 1 > one' --backend file
sessionrun queue add 'exit 3' --backend file
sessionrun dispatch -q --once --agent shell --workers 2 --retries 1 --no-ready --backend file \
    --prompt-template template

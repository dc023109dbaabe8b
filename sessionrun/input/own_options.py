"""Options of `run` that only one input format has, as plain records.

The command line adds them to `run`, hidden; ``run --help-format NAME`` shows them.  A dialect finds what was said
in `Options.own`.  An option of another format is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from sessionrun.model.errors import InputError

Value = Literal["text", "texts", "count", "positive", "flag", "file"]
"""What an option's value is: of "texts" there may be several; of a "file" the dialect is given the text."""


class OwnOption(NamedTuple):
    """One option: its name in `Options.own`, its spellings, the name of its value, and a line for people."""

    name: str
    spellings: tuple[str, ...]
    value: Value
    metavar: str | None
    help: str


class SharedOption(NamedTuple):
    """An option that all formats have and that means something of its own in this format."""

    spelling: str
    help: str


OWN_OPTIONS: Final[Mapping[str, tuple[OwnOption, ...]]] = {
    "swebench": (
        OwnOption("instances", ("--instances",), "text", "FILE", "The instances, in place of [FILE]."),
        OwnOption("sample", ("--sample", "--limit", "-n"), "positive", "N", "Run only N instances."),
        OwnOption("start", ("--start",), "count", "N", "Leave out the first N instances.  [default: 0]"),
        OwnOption("instance", ("--instance",), "texts", "ID", "Run this instance; repeatable."),
        OwnOption("filter", ("--filter",), "text", "REGEX", "Run instances in whose id this is found."),
        OwnOption("shuffle", ("--shuffle",), "count", "SEED", "Shuffle the instances first, always alike."),
        OwnOption("iterations", ("--iterations",), "positive", "N", "As --rounds.  [default: 5]"),
        OwnOption("no_mcp", ("--no-mcp",), "flag", None, "Start the agent without MCP servers."),
        OwnOption(
            "output_dir", ("--output-dir",), "text", "DIR", "Where results go.  [default: artifacts/results]"
        ),
        OwnOption("prompt_template", ("--prompt-template",), "file", "FILE", "What the agent is asked to do."),
        OwnOption(
            "history", ("--history",), "count", "N", "So many commits before the base are there.  [default: 50]"
        ),
        OwnOption(
            "no_environment", ("--no-environment",), "flag", None, "Make no Python environment; take that of PATH."
        ),
        OwnOption("docker", ("--docker",), "flag", None, "Refused: tests run here; so is SWEBENCH_USE_DOCKER=1."),
    ),
}
"""The options by the format that has them."""

OWN_VARIABLES: Final[Mapping[str, Mapping[str, str]]] = {"swebench": {"SWEBENCH_USE_DOCKER": "docker"}}
"""Environment variables that stand for a flag, by the format; in `Options.own` its value is then their name."""

SHARED_OPTIONS: Final[Mapping[str, tuple[SharedOption, ...]]] = {
    "swebench": (
        SharedOption("--workers N, -j N", "How many instances run at once, as --max-parallel.  [default: 4]"),
        SharedOption("--timeout TIME", "Time limit of each round.  [default: 600]"),
        SharedOption("--run-name NAME", "Name of the run, as --name.  [default: run-DATE-TIME]"),
        SharedOption("--agent NAME", "The agent.  [default: claude]"),
        SharedOption("--cache-dir DIR", "Where mirrors are kept.  [default: artifacts/cache]"),
        SharedOption("--worktree-dir DIR", "Where worktrees go.  [default: artifacts/worktrees]"),
        SharedOption("--require-cache", "Fetch nothing; also SWEBENCH_REQUIRE_CACHE=1."),
        SharedOption("--rerun", "Run again, too, what has ended in a run of this name."),
    ),
    "markdown": (
        SharedOption("--job ID", "Only this job file, whatever became of it; repeatable."),
        SharedOption("--resume", "Also job files that were begun and did not end."),
        SharedOption("--rerun", "Run again, too, what has ended."),
    ),
    "matrix": (SharedOption("--rerun", "Run again, too, what succeeded before."),),
    "prompts": (),
}
"""What ``run --help-format`` says beside the own options."""


class DefaultInput(NamedTuple):
    """The input of a format where none is named: a file below the current directory, and how one comes by it."""

    file: str
    hint: str


DEFAULT_INPUTS: Final[Mapping[str, DefaultInput]] = {
    "swebench": DefaultInput(
        "artifacts/instances.jsonl",
        "give a FILE of instances (JSON or JSON Lines; - is standard input). Those of SWE-bench are data sets of "
        "huggingface.co, such as princeton-nlp/SWE-bench_Verified: with the package datasets, "
        "load_dataset(NAME, split='test').to_json('artifacts/instances.jsonl')",
    )
}
"""The formats that have one."""


def imply_dialect(own: Mapping[str, Any]) -> str | None:
    """The one format that has all these options; None: there are none, or no format has all."""
    for dialect, options in OWN_OPTIONS.items():
        if own and own.keys() <= {option.name for option in options}:
            return dialect
    return None


def refuse_others(dialect: str, own: Mapping[str, Any]) -> None:
    """Refuse options that only other formats have.

    Raises:
        InputError: the first of them.
    """
    known = {option.name for option in OWN_OPTIONS.get(dialect, ())}
    for name in own:
        for other, options in OWN_OPTIONS.items():
            option = next((option for option in options if option.name == name), None)
            if option is not None and name not in known:
                raise InputError(
                    f"{option.spellings[0]} is an option of the input format {other}, "
                    f"and this input is read as {dialect}; leave it out, or add --from {other}"
                )

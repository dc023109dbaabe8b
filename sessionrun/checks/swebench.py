"""The swebench dialect: instances of SWE-bench, a task for each, judged by tests that its agent does not see.

Owns the keys of an instance, the choice among instances, what an instance becomes, and the defaults of the
SWE-Bench Runner.  Its directories count from where the command was started, as they do there.  The instance's own
patch goes nowhere, its tests go into no prompt.  Must not know sessions or the file system;
``sessionrun-input(5)`` is its contract.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final

from sessionrun.input import kinds
from sessionrun.input.formats import keep_letters
from sessionrun.input.levels import list_levels, settle_agent, settle_defaults
from sessionrun.input.parse import Document, Source
from sessionrun.input.plan import Plan, RepositoryWish
from sessionrun.input.reading import Field, Reading, Spot
from sessionrun.input.settings import Options, first
from sessionrun.input.text import Breach, parse_json, plain, quote
from sessionrun.model.checks import TEST_COMMAND, HiddenTests
from sessionrun.model.errors import InputError, suggest
from sessionrun.model.frozen import frozen
from sessionrun.model.places import Upstream
from sessionrun.model.spec import INSTANCE_RESULTS, Check, Environment, Export, Prove, TaskSpec, Workspace

AGENT: Final = "claude"
MAX_PARALLEL: Final = 4
ROUNDS: Final = 5
ROUND_TIMEOUT_S: Final = 600.0
TESTS_TIMEOUT_S: Final = 1800.0
"""How long the hidden tests may take: as in the official harness."""
HISTORY: Final = 50
ARTIFACTS: Final = "artifacts"
LINKS: Final = (".claude", ".mcp-the-force", ".gcp", "claude_hooks")
"""What each worktree has a link to, as far as it is there: the settings of agents."""

_CHECK: Final = Check((), timeout_s=TESTS_TIMEOUT_S, reset="hard")
"""In each round the tests have to pass that passed before, as far as they are there without the patch.

An instance without such tests has it, too, because a further round has to begin with the files as they were.
"""

_NO_MCP: Final[Mapping[str, tuple[str, ...]]] = {"claude": ("--strict-mcp-config",)}
"""How an agent is started so that it has no MCP server: without ``--mcp-config`` this names none."""

_NO_DOCKER: Final = (
    "{} is not supported: sessionrun runs the tests in an environment on this machine, so its scores are "
    "unofficial; leave it out, and give predictions.jsonl to the official harness, which has the containers"
)

TEMPLATE: Final = """\
You are in a checkout of the repository {repo} at commit {base_commit}.

Solve the issue below. Change the source files in this directory so that the behaviour is as the issue asks.

- Find the cause first: read the code that the issue is about.
- Write a test that shows the issue, and run it before and after your change, with the tests that are there.
- Change as little as the issue needs, in the style of the code around it.
- Changes to tests and to test set-up do not count. Other tests, which you do not see, decide.
- Do not look for the fix elsewhere: not in the history, not in an installed copy, not in the network.
- Leave your changes in the working directory. At the end say in a few sentences what you changed, and why.

<issue>
{problem_statement}
</issue>
"""
"""What an agent is asked; it never gets the instance's own patch or its tests."""

_TOKEN: Final = re.compile(r"\{(instance_id|repo|base_commit|problem_statement|hints_text|version)\}")


def load(source: Source, options: Options) -> Plan:
    if options.choose("docker"):
        raise InputError(_NO_DOCKER.format("--docker" if options.given.get("docker") else "SWEBENCH_USE_DOCKER"))
    reading = Reading(source.name)
    chosen = choose_instances(read_instances(reading, source.document), options.given, source.name)
    started_in = source.started_in or source.directory
    name = options.given.get("name")
    name = f"run-{options.stamp}" if name is None else name
    if not name.strip() or name.startswith(".") or "/" in name or not name.isprintable():
        why = "a directory has this name, so it holds no / and begins with no ."
        raise InputError(f"--run-name {quote(name)}: {why}")
    settings = _Settings(options)
    tasks = tuple(
        settings.make_task(instance, kinds.resolve_repo(source.directory, kinds.as_repo(instance.repo)))
        for instance in chosen
    )
    parallel = first(options.choose("max_parallel"), MAX_PARALLEL)
    return Plan(
        tasks=tasks,
        name=name,
        max_parallel=parallel or None,
        agent=settings.agent,
        agent_reason="asked for" if settings.was_named else "the usual one of this format",
        repository=RepositoryWish(
            worktree_dir=kinds.resolve(started_in, f"{ARTIFACTS}/worktrees"),
            cache_dir=kinds.resolve(started_in, f"{ARTIFACTS}/cache"),
        ),
        optional_links=tuple(kinds.resolve(started_in, link) for link in LINKS),
        exports=(_export(chosen, settings, name, started_in, parallel),),
        warnings=(*reading.warnings(), *_warn_of_no_tests(chosen, source.name)),
    )


def _warn_of_no_tests(chosen: Sequence[Instance], name: str) -> list[str]:
    bare = [one for one in chosen if not one.fail_to_pass + one.pass_to_pass]
    half = [one for one in chosen if one.pass_to_pass and not one.fail_to_pass]
    unsolved = "nothing can tell whether the work solves the issue"
    return [
        f"{plain(name)}: {len(lacking)} of {len(chosen)} instances to run name {what}, "
        f"such as {quote(lacking[0].instance_id)}: agents work on them, but {so}"
        for lacking, what, so in (
            (bare, "no tests", "nothing can judge the work"),
            (half, "no test of FAIL_TO_PASS", unsolved),
        )
        if lacking
    ]


class _Settings:
    """What all tasks of a run have in common."""

    def __init__(self, options: Options) -> None:
        own = options.given
        agent, self.model = settle_agent(list_levels(options, {}, {}))
        self.was_named = bool(agent)
        self.agent = agent or AGENT
        self.options = options
        self.rounds = own.get("rounds", ROUNDS)
        self.template = own.get("prompt_template") or TEMPLATE
        if "{problem_statement}" not in self.template:
            why = "a prompt template must hold {problem_statement}: it is what the agent is to do"
            raise InputError(f"--prompt-template: {why}")
        self.with_mcp = not own.get("no_mcp")
        self.args = () if self.with_mcp else _NO_MCP.get(self.agent, ())
        if not self.with_mcp and own.get("fallback"):
            raise InputError("--no-mcp does not go with --fallback: it holds for one agent alone; leave one out")
        if not self.with_mcp and not self.args:
            known = ", ".join(_NO_MCP)
            raise InputError(f"--no-mcp: agent {self.agent!r} has no option for that (only {known}); leave it out")

    def make_task(self, instance: Instance, repo: str) -> TaskSpec:
        options, levels = self.options, ((self.agent, self.model),)
        hidden = HiddenTests(
            patch=instance.test_patch,
            fail_to_pass=instance.fail_to_pass,
            pass_to_pass=instance.pass_to_pass,
            command=instance.test_cmd or TEST_COMMAND,
            timeout_s=TESTS_TIMEOUT_S,
        )
        # the flag for an attempt's time is for a round's here, as it is there
        defaults = {"round_timeout_s": options.given.get("timeout_s", ROUND_TIMEOUT_S)}
        kept = {name: value for name, value in options.given.items() if name != "timeout_s"}
        fields = settle_defaults(replace(options, given=kept), defaults, levels)
        ref = None if instance.base_commit == HEAD else instance.base_commit
        fields.update(
            workspace=Workspace("mirror", directory=instance.instance_id),
            upstream=Upstream(repo, ref, history=options.given.get("history", HISTORY)),
            prove=Prove(hidden=hidden),
            rounds=self.rounds,
        )
        return TaskSpec(
            id=instance.instance_id,
            title=instance.instance_id,
            prompts=(_TOKEN.sub(lambda token: getattr(instance, token[1]).strip(), self.template),),
            args=self.args,
            environment=None if options.given.get("no_environment") else Environment("python"),
            check=_CHECK,
            labels={"repo": instance.repo},
            **fields,
        )


def _export(
    chosen: Sequence[Instance], settings: _Settings, name: str, started_in: str, parallel: int | None
) -> Export:
    """The predictions and the results of this run; what it says of each instance is kept here."""
    output_dir = kinds.resolve(started_in, settings.options.given.get("output_dir") or f"{ARTIFACTS}/results")
    return Export(
        INSTANCE_RESULTS,
        {
            "run_name": name,
            "outputs_dir": os.path.join(output_dir, name),
            "runs_dir": kinds.resolve(started_in, f"{ARTIFACTS}/runs"),
            "model": "-".join(filter(None, (settings.agent, settings.model))),
            "with_mcp": settings.with_mcp,
            "max_workers": parallel or None,
            "max_iterations": settings.rounds,
            "instances": {
                one.instance_id: {
                    name: getattr(one, name) for name in ("repo", "base_commit", "problem_statement")
                }
                for one in chosen
            },
        },
    )


# --- instances: one issue of one repository each ---

HEAD: Final = "HEAD"


@frozen
class Instance:
    """One instance; texts that it lacks are empty.  Its own fix is not kept."""

    instance_id: str
    repo: str
    problem_statement: str = field(repr=False)
    base_commit: str = HEAD
    hints_text: str = field(default="", repr=False)
    test_patch: str = field(default="", repr=False)
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    version: str = ""
    test_cmd: str | None = None


def as_patch(value: Any) -> str:
    """A patch of git, or none; as git needs it: its headers end as lines do here, and so does its last line."""
    text = kinds.as_text(value)
    if not text.strip():
        return ""
    head = re.search(r"^(?:diff --git |--- ).*(?:\n|\Z)", text, re.MULTILINE)
    if head is None:
        raise kinds.Misfit('must be a patch: no line of it begins with "diff --git" or "---"')
    if head[0].endswith("\r\n"):  # of a patch to such a file only the content does
        text = text.replace("\r\n", "\n")
    return text if text.endswith("\n") else f"{text}\n"


def as_test_ids(value: Any) -> tuple[str, ...]:
    """A list of ids of tests, or the same in a text: as JSON, or as Python writes it."""
    if isinstance(value, str):
        try:
            value = parse_json(value) if value.strip() else []
        except Breach as breach:
            from ast import literal_eval

            try:
                value = literal_eval(value)
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                raise kinds.Misfit(f"must be a list of text, or one as JSON in a text: {breach.problem}") from None
    if not isinstance(value, list):
        raise kinds.Misfit(f"must be a list of text, or one as JSON in a text, not {kinds.describe(value)}")
    for index, test_id in enumerate(value):
        if not isinstance(test_id, str) or not test_id.strip() or "\0" in test_id:
            raise kinds.Misfit(f"must be the id of a test, not {kinds.describe(test_id)}", index)
    return tuple(dict.fromkeys(value))


def as_instance_id(value: Any) -> str:
    """An id that may be a task's."""
    instance_id = kinds.as_id(value)
    if instance_id is None:
        raise kinds.Misfit("must not be empty")
    if instance_id in ("summary", "predictions"):
        raise kinds.Misfit(f"{quote(instance_id)} is the name of another file of results")
    return instance_id


def as_repo_name(value: Any) -> str:
    """A repository's name, as it was written."""
    kinds.as_repo(value)
    return str(value)


def as_version(value: Any) -> str:
    """A version: text, or a number that was meant as text."""
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else kinds.as_text(value)


FIELDS: Final[Mapping[str, Field]] = {
    "instance_id": Field("instance_id", as_instance_id),
    "repo": Field("repo", as_repo_name),
    "base_commit": Field("base_commit", kinds.as_ref),
    "problem_statement": Field("problem_statement", kinds.as_prompt),
    "hints_text": Field("hints_text", kinds.as_text),
    "patch": Field("patch", kinds.as_text),
    "test_patch": Field("test_patch", as_patch),
    "FAIL_TO_PASS": Field("fail_to_pass", as_test_ids),
    "PASS_TO_PASS": Field("pass_to_pass", as_test_ids),
    "version": Field("version", as_version),
    "environment_setup_commit": Field("environment_setup_commit", kinds.as_text),
    "created_at": Field("created_at", as_version),
    "difficulty": Field("difficulty", as_version),
    "test_cmd": Field("test_cmd", kinds.as_command),
}
"""The keys of an instance; of some nothing is kept."""


_BY_LETTERS: Final[Mapping[str, str]] = {keep_letters(key): key for key in FIELDS}
"""A key may be in whatever letters, with whatever between its words."""


def read_instances(reading: Reading, document: Document) -> list[Instance]:
    """All instances of a document, in order.

    Raises:
        InputError: a value that does not fit, a key that is missing, or an id that is used twice; with its place.
    """
    value = document.value
    entries = value if isinstance(value, list) else [value]
    if not entries:
        raise reading.error(Spot(), kinds.Misfit("there is no instance in it"))
    instances, seen = [], dict[str, Spot]()
    for index, entry in enumerate(entries):
        spot = Spot((), document.lines[index]) if document.lines else Spot((index,) if entries is value else ())
        instance = _read_instance(reading, spot, entry)
        twin = seen.setdefault(instance.instance_id.casefold(), spot)
        if twin is not spot:
            problem = f"{quote(instance.instance_id)} is used twice, first by {twin.text()}"
            raise reading.error(spot, kinds.Misfit(problem, "instance_id"))
        instances.append(instance)
    return instances


def _read_instance(reading: Reading, spot: Spot, entry: Any) -> Instance:
    if not isinstance(entry, dict):
        raise reading.error(spot, kinds.Misfit(f"must be an instance, an object, not {kinds.describe(entry)}"))
    named: dict[str, Any] = {}
    for key, value in entry.items():
        name = _BY_LETTERS.get(keep_letters(key), key)
        if name in named:
            raise reading.error(spot, kinds.Misfit(f"{quote(key)} is {quote(name)} again: leave one of them out"))
        named[name] = value
    # without these an agent would work, and nothing could judge it as the file says
    judging = ("FAIL_TO_PASS", "PASS_TO_PASS", "test_patch", "base_commit")
    lacking = [key for key in judging if key not in named]
    for key in named:
        if key not in FIELDS and (hint := suggest(key, lacking)):
            raise reading.error(spot, kinds.Misfit(f"unknown key {quote(key)}{hint}"))
    values = reading.read(spot, named, FIELDS)
    for key in ("instance_id", "repo", "problem_statement"):
        if key not in values:
            raise reading.error(spot, kinds.Misfit(f'has no "{key}"'))
    for key in ("patch", "environment_setup_commit", "created_at", "difficulty"):
        values.pop(key, None)
    return Instance(**values)


def choose_instances(instances: Sequence[Instance], own: Mapping[str, Any], name: str) -> list[Instance]:
    """Those that are to run by the options, in their order, which a seed `shuffle` changes.

    Raises:
        InputError: an id that there is not, a pattern that is not one, or nothing is left.
    """
    by_id = {instance.instance_id: instance for instance in instances}
    ids = own.get("instance", ())
    for wanted in ids:
        if wanted not in by_id:
            raise InputError(f"{plain(name)}: no instance {quote(wanted)}{suggest(wanted, by_id)}")
    try:
        pattern = re.compile(own.get("filter") or "")
    except re.error as error:
        raise InputError(f"--filter {quote(own['filter'])} is not a regular expression: {error}") from None
    chosen = [one for one in instances if not ids or one.instance_id in ids]
    chosen = [one for one in chosen if pattern.search(one.instance_id)]
    if own.get("shuffle") is not None:
        from random import Random

        Random(own["shuffle"]).shuffle(chosen)
    chosen = chosen[own.get("start") or 0 :][: own.get("sample")]
    if not chosen:
        what = "--start, --sample, --instance and --filter leave none" if instances else "there is none"
        raise InputError(f"{plain(name)}: no instance to run: {what} of {len(instances)}")
    return chosen

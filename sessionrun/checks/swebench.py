"""The swebench dialect: instances of SWE-bench, a task for each, judged by tests that its agent does not see.

Owns what an instance becomes, and the defaults of the SWE-Bench Runner.  Its directories count from where the
command was started, as they do there.  The instance's own patch goes nowhere, its tests go into no prompt.  Must
not know sessions or the file system; ``sessionrun-input(5)`` is its contract.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from sessionrun.checks.instances import HEAD, Instance, choose_instances, read_instances
from sessionrun.input.kinds import as_repo, resolve, resolve_repo
from sessionrun.input.levels import list_levels, settle_agent, settle_defaults
from sessionrun.input.parse import Source
from sessionrun.input.plan import Plan, RepositoryWish
from sessionrun.input.reading import Reading
from sessionrun.input.settings import Options, first
from sessionrun.input.text import plain, quote
from sessionrun.model.checks import TEST_COMMAND, HiddenTests
from sessionrun.model.errors import InputError
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
    """Read instances, choose among them, and make a task of each."""
    if options.choose("docker"):
        raise InputError(_NO_DOCKER.format("--docker" if options.given.get("docker") else "SWEBENCH_USE_DOCKER"))
    document = source.document
    reading = Reading(source.name)
    instances = read_instances(reading, document)
    chosen = choose_instances(instances, options.given, source.name)
    started_in = source.started_in or source.directory
    name = options.given.get("name")
    name = f"run-{options.stamp}" if name is None else name
    if not name.strip() or name.startswith(".") or "/" in name or not name.isprintable():
        why = "a directory has this name, so it holds no / and begins with no ."
        raise InputError(f"--run-name {quote(name)}: {why}")
    settings = _Settings(options)
    tasks = tuple(
        settings.make_task(instance, resolve_repo(source.directory, as_repo(instance.repo))) for instance in chosen
    )
    parallel = first(options.choose("max_parallel"), MAX_PARALLEL)
    return Plan(
        tasks=tasks,
        name=name,
        max_parallel=parallel or None,
        agent=settings.agent,
        agent_reason="asked for" if settings.was_named else "the usual one of this format",
        repository=RepositoryWish(
            worktree_dir=resolve(started_in, f"{ARTIFACTS}/worktrees"),
            cache_dir=resolve(started_in, f"{ARTIFACTS}/cache"),
        ),
        optional_links=tuple(resolve(started_in, link) for link in LINKS),
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
        """The task of an instance."""
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
    output_dir = resolve(started_in, settings.options.given.get("output_dir") or f"{ARTIFACTS}/results")
    return Export(
        INSTANCE_RESULTS,
        {
            "run_name": name,
            "outputs_dir": os.path.join(output_dir, name),
            "runs_dir": resolve(started_in, f"{ARTIFACTS}/runs"),
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

"""The table of the house: each business, and what it adds to the core.

Plain names of modules, so that reading the table imports nothing.  A core room knows no business: at the seams it
reads this table and imports what the rows name, when it is used.  Which modules may read it stands in
`tests/house/test_rooms.py`.  A business that is taken out of the table, with its folder, leaves a program that
does everything else, and says what it cannot do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple


class Format(NamedTuple):
    """An input format; `input.formats` has those of the core in the same form.

    Attributes:
        expects: what its input looks like, for the message when nothing fits.
        recognise: why it takes an input, in a few words for people; None when it does not.  Of a format of a
            business nothing has to be imported for this: `file` and `keys` tell.
        module: has `load`, which makes a plan of an input; "": the one of its name in the room of the input.
        file: an input of this name is one.
        keys: so is one whose first record has the first of these, and one of the others, in whatever letters.
        keyed: its tasks have the keys of the native format, so that the command line has defaults for them.
        takes: of these defaults those that it has although it is not keyed.
        usual: its input where none is named: a file below the current directory, and how one comes by it.
        exports: the classes that write the files by which it shows a session, by kind.
    """

    expects: str
    recognise: Callable[[Any], str | None] | None = None
    module: str = ""
    file: str = ""
    keys: tuple[str, ...] = ()
    keyed: bool = False
    takes: tuple[str, ...] = ()
    usual: tuple[str, str] | None = None
    exports: Mapping[str, str] = {}


class Phase(NamedTuple):
    """A phase: how its jobs are made and judged, and what their process does.

    Attributes:
        maker: the supervisor's side, a module with `build` (site, state, key, whole), which makes the process for
            a key, and `judge` (site, state, ended, problem), which says what its end means.  `whole` is the state
            of the session, and `problem` what can be seen of any process.
        request: the type of what the process is asked.
        work: the function that does it: it takes the request and the job's folder, and returns the answer.
        in_turn: whether its jobs, which may be many at once, take turns.
        damaged: the class of a job whose answer cannot be used; "": `judge` raises nothing.
    """

    name: str
    maker: str
    request: str
    work: str
    in_turn: bool = False
    damaged: str = ""


class Wrap(NamedTuple):
    """What the supervisor does around the jobs of any phase; all but `of` are functions.

    Attributes:
        of: the field of a `TaskSpec` or `SessionSpec` that is set where this is done: ``task.X`` or ``spec.X``.
        variables: (site, task, key, place): variables that a job gets.
        build: (site, state, job): a job that was built, as it is to be.
        ended: (site, state, ended): the end of a job as it was, and the problem with what was around it, or None.
        problem: (site, state, key, problem): the problem of a job that has ended, by its right name.
        judged: (site, state, ended, judged): what comes of a job that was judged and has no problem.
        lost: (site, state, lost): what is made of an end that was not seen; None: nothing.
    """

    of: str
    variables: str = ""
    build: str = ""
    ended: str = ""
    problem: str = ""
    judged: str = ""
    lost: str = ""


class Mark(NamedTuple):
    """What a job's process does beside its work, if a file lies in its folder; `file` names the constant.

    `before` the work a function takes the request and the folder; `after` it also the answer, and at the `end`,
    when the answer is there, once more.
    """

    phase: str
    file: str
    before: str = ""
    after: str = ""
    end: str = ""


class Business(NamedTuple):
    """What a business adds; names stand below `sessionrun`, as ``MODULE`` or ``MODULE:NAME``.

    Attributes:
        name: of the business, and of its room.
        formats: the input formats that it reads, by name.
        rules: its rows for the engine (`engine.state.Rules`), called in the order of this table; a session does
            without them if it does not have the business, see `ASKED`.
        phases: whose jobs it makes; WORK is the session's own.
        programs: of jobs, beside those of phases, by their first word: functions that take the job's folder.
        wraps: around jobs, from the inside to the outside: a job is built in the order of HOUSE, and judged in the
            opposite one.
        marks: beside the work of jobs, in the order of HOUSE before it, and in the opposite one after it.
        placed: constants with the names of files in a job's folder that name places, beside its request: on a
            node they name those of the node.
        partners: the function that opens what stands beside the supervisor of a session; `session.main` reads it,
            row by row: each gets what those before it have opened, see `session.partners`.
        trial: the function that gets a spec and raises InputError if its session cannot be started again on this
            machine; `session.launch` reads it.
        machine: the function that says what this machine can do, for programs and in one line: `doctor agents`
            shows it by the name of the business.
        findings: the rows that say what `doctor`, `clean` and `explain` find of it.
        views: what a reader adds to the tasks that it shows: a folder in the directory of a session which has
            something to add, and the function that adds it.
        outputs: the shapes of what its verbs print as JSON.
    """

    name: str
    formats: Mapping[str, Format] = {}
    rules: str = ""
    phases: tuple[Phase, ...] = ()
    programs: tuple[tuple[str, str], ...] = ()
    wraps: tuple[Wrap, ...] = ()
    marks: tuple[Mark, ...] = ()
    placed: tuple[str, ...] = ()
    partners: str = ""
    trial: str = ""
    machine: str = ""
    findings: str = ""
    views: tuple[str, str] | None = None
    outputs: str = ""


_WORKSPACE: Final = "worktrees.request:WorkspaceRequest"

HOUSE: Final[tuple[Business, ...]] = (
    Business(
        "walls",
        programs=(("inside", "walls.build:go_inside"),),
        wraps=(
            Wrap(
                "task.sandbox",
                build="walls.enclosing:enclose_job",
                ended="walls.enclosing:take_report",
                problem="walls.enclosing:name_full",
                lost="walls.enclosing:settle_lost",
            ),
        ),
        placed=("walls.wish:INSIDE",),
        partners="walls.disk:open_partners",
        trial="walls.trial:check_spec",
        machine="walls.trial:examine_walls",
    ),
    Business(
        "worktrees",
        phases=(
            Phase("prepare", "worktrees.phases", _WORKSPACE, "worktrees.worktree:prepare", in_turn=True),
            Phase("setup", "worktrees.phases", _WORKSPACE, "worktrees.release:end_setup"),
            Phase("park", "worktrees.phases", _WORKSPACE, "worktrees.release:park_work", in_turn=True),
            Phase("release", "worktrees.phases", _WORKSPACE, "worktrees.release:release", in_turn=True),
        ),
        programs=(
            ("begin", "worktrees.rounds:begin_work"),
            ("environment", "worktrees.environments.build:make_first"),
        ),
        placed=("worktrees.request:WISH",),
        wraps=(
            Wrap("task.environment", variables="worktrees.phases:name_environment"),
            Wrap("task.links", variables="worktrees.phases:hide_links"),
            Wrap(
                "task.check", build="worktrees.phases:take_back_first", problem="worktrees.phases:name_not_begun"
            ),
        ),
        findings="worktrees.findings:FINDINGS",
        outputs="worktrees.outputs:OUTPUTS",
    ),
    Business(
        "checks",
        phases=(
            Phase(
                "check",
                "checks.phases",
                "checks.requests:CheckRequest",
                "checks.check:check",
                damaged="check_failed",
            ),
            Phase(
                "prove", "checks.phases", "checks.requests:ProveRequest", "checks.prove:prove", damaged="unproved"
            ),
        ),
        wraps=(Wrap("task.prove", build="checks.phases:ask_baseline"),),
        marks=(Mark("setup", "store.jobfiles:KNOWN", before="checks.running:run_first"),),
        placed=("store.jobfiles:KNOWN",),
        formats={
            "swebench": Format(
                'instances with "instance_id", "repo" and "problem_statement"',
                module="checks.swebench",
                keys=("instance_id", "repo", "problem_statement", "base_commit"),
                takes=("rounds",),
                usual=(
                    "artifacts/instances.jsonl",
                    "give a FILE of instances (JSON or JSON Lines; - is standard input). Those of SWE-bench are "
                    "data sets of huggingface.co, such as princeton-nlp/SWE-bench_Verified: with the package "
                    "datasets, load_dataset(NAME, split='test').to_json('artifacts/instances.jsonl')",
                ),
                exports={"swebench-results": "checks.swebench_results:InstanceResults"},
            )
        },
    ),
    Business(
        "landing",
        phases=(
            Phase(
                "land", "landing.phases", "landing.records:LandRequest", "landing.turn:run", damaged="land_failed"
            ),
        ),
        rules="landing.rules:RULES",
        findings="landing.findings:FINDINGS",
        views=("landing", "landing.landed:add_landings"),
        outputs="landing.outputs:OUTPUTS",
    ),
    Business(
        "queue",
        wraps=(Wrap("spec.feed", judged="queue.ingest:shelve_follow_ups"),),
        formats={
            "dispatch_config": Format(
                "a file dispatch_config.json",
                module="queue.dispatch_config",
                file="dispatch_config.json",
                keyed=True,
            )
        },
        partners="queue.feeder:open_partners",
        findings="queue.file:FINDINGS",
        outputs="queue.outputs:OUTPUTS",
    ),
    Business(
        "cluster",
        wraps=(
            Wrap(
                "spec.cluster",
                build="cluster.homecoming:name_commits_first",
                judged="cluster.homecoming:take_home",
                lost="cluster.homecoming:judge_left_behind",
            ),
        ),
        marks=(
            Mark("prepare", "store.jobfiles:REPLICA", before="cluster.replica:receive"),
            Mark("park", "store.jobfiles:REPLICA", after="cluster.replica:send"),
            Mark(
                "release",
                "store.jobfiles:REPLICA",
                before="cluster.replica:open_release",
                after="cluster.replica:send",
                end="cluster.replica:close_replica",
            ),
        ),
        rules="cluster.rules:RULES",
        partners="cluster.partners:open_partners",
        findings="cluster.findings:FINDINGS",
        outputs="cluster.findings:OUTPUTS",
    ),
)


# No column of `HOUSE`: where a business was taken out, this still tells the sessions that need it.
ASKED: Final = {
    "checks": ("task.check", "task.brief", "task.prove", "task.answer"),
    "landing": ("spec.landing",),
    "queue": ("spec.feed",),
    "cluster": ("spec.cluster",),
}
"""The fields of a `SessionSpec` or of its tasks of which one is set in a session that has the business."""


class Step(NamedTuple):
    """What is done at a moment between an input and a session that runs, if anything is said of it.

    Attributes:
        function: its module is imported when the step is taken; if it is one of a business that is not in `HOUSE`,
            the step is not taken.
        words: it is due if an option or a setting, a wish of the input, or the session says one of these;
        of_tasks: or if a task does.  Where neither has a name, it is always due.  What counts is what was said
            before the first step.  The names only save imports: a function that has nothing to do returns at once.
    """

    function: str
    words: tuple[str, ...] = ()
    of_tasks: tuple[str, ...] = ()


Moment = Literal["plan", "rest", "preview", "start", "continue"]

# These are no column of `HOUSE`: their order goes across the businesses and the core, and it counts.
STEPS: Final[Mapping[Moment, tuple[Step, ...]]] = {
    # After an input is read: what each settles; it takes a draft and returns it.
    "plan": (
        Step("queue.dispatch:place_feed", ("feed",)),
        Step("client.planning.plan:settle_limits"),
        Step("worktrees.steps:settle_mirrors", of_tasks=("upstream", "environment", "workspace.kind")),
        Step(
            "worktrees.steps:find_repository",
            ("base", "worktree_dir", "keep", "optional_links"),
            of_tasks=("workspace.kind",),
        ),
        Step("client.planning.plan:leave_out_done", ("exports", "rerun")),
        Step("client.planning.additions:join_session", ("into",)),
        Step("client.planning.assemble:add_agents"),
        Step("worktrees.steps:check_needs", of_tasks=("upstream", "workspace.kind")),
        Step("worktrees.steps:check_worktrees", of_tasks=("workspace.kind",)),
        Step("landing.steps:settle_landing", ("land", "land_into", "gates", "mends", "landing", "feed")),
        Step("worktrees.steps:settle_seats", ("seats", "feed"), of_tasks=("base",)),
        Step("cluster.address:choose_cluster", ("cluster", "slurm")),
        Step("client.planning.plan:settle_rest"),
        Step("client.planning.assemble:foresee"),
        Step("queue.dispatch:add_feed", ("feed",)),
    ),
    # After where the work lands and what runs it is settled: what settles the rest of the spec, given the options.
    "rest": (Step("walls.steps:settle_sandboxes", ("sandbox", "landing"), of_tasks=("sandbox", "prove")),),
    # Before a person is shown what a spec would run: the branches and directories of tasks.
    "preview": (Step("worktrees.steps:foresee_places", ("repository",)),),
    # Before a session starts or gets more tasks: what tries whether this machine can run them; perhaps a warning.
    "start": (
        Step("worktrees.steps:check_environments", of_tasks=("environment",)),
        Step("walls.trial:check_spec", ("landing",), of_tasks=("sandbox",)),
    ),
    # A follow-up for a task that has ended: what refuses it, of the session's spec and the task's state.
    "continue": (Step("worktrees.steps:check_branch", of_tasks=("workspace.kind",)),),
}


def describe_lack(business: str) -> str:
    """What is said to those who ask for a business that was taken out; "": it is there, or it is the core's.

    The rows of settings and verbs name their business, so that this is said of their words wherever they stand.
    """
    if business in {"", *(row.name for row in HOUSE)}:
        return ""
    return f"this program has no {business}; install sessionrun whole"


def find_asked(spec: Any, business: str) -> str:
    """The first field by which a spec asks for a business; "": none."""
    tasks = (*spec.tasks, spec.template) if spec.template else spec.tasks
    for owner, _, field in (name.partition(".") for name in ASKED[business]):
        if any(getattr(one, field) for one in (tasks if owner == "task" else (spec,))):
            return field
    return ""


def describe_missing(spec: Any) -> str:
    """The first field of a spec that asks for a business which was taken out, and that; "": none does."""
    for business in ASKED:
        if (lack := describe_lack(business)) and (field := find_asked(spec, business)):
            return f"{field}: {lack}"
    return ""


def load(name: str) -> Any:
    """Import what a row names: ``MODULE``, or ``MODULE:NAME``."""
    module, _, attribute = name.partition(":")
    found = import_module(f"sessionrun.{module}")
    return getattr(found, attribute) if attribute else found


def find_due(moment: Moment, tasks: Sequence[Any], *speakers: object) -> Iterator[Callable[..., Any]]:
    """The functions of the steps of a moment of which something is said; each is imported when its turn comes.

    A speaker is a map of values, a record with fields, or None.  A task says what is not as it is by itself.
    """
    there = {"client", *(business.name for business in HOUSE)}
    silent = type(tasks[0])("", ()) if tasks else None  # without tasks, all runs of the input ended before
    for step in STEPS[moment]:
        is_due = not (step.words or step.of_tasks)
        is_due = is_due or any(_says(speaker, word) for speaker in speakers for word in step.words)
        for read in map(attrgetter, step.of_tasks):
            is_due = is_due or any(read(task) != read(silent) for task in tasks)
        if is_due and step.function.partition(".")[0] in there:
            yield load(step.function)


def _says(speaker: object, name: str) -> bool:
    if isinstance(speaker, Mapping):
        return name in speaker
    return getattr(speaker, name, None) not in (None, ())

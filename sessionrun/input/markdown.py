"""The markdown dialect: a directory of Markdown job files, each with front matter; see sessionrun-input(5).

Owns which job files are to run and what each becomes: one task, or a chain of tasks if the job file asks for
several calls; the last task of a chain has the id of the job file.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sessionrun.input.formats import FORMATS
from sessionrun.input.job_files import (
    ENDED,
    JobFile,
    Node,
    Settings,
    derive_edges,
    parse_job_file,
    parse_settings,
    parse_statuses,
    parse_system_prompts,
)
from sessionrun.input.kinds import resolve_repo
from sessionrun.input.levels import MIRROR, list_levels, settle_agent, settle_defaults
from sessionrun.input.parse import PROJECT_SETTINGS, STATUS_FILE, Folder, Source
from sessionrun.input.plan import Plan
from sessionrun.input.settings import Options
from sessionrun.input.text import plain, quote
from sessionrun.model.checks import AnswerMode, Brief
from sessionrun.model.errors import InputError, suggest
from sessionrun.model.frozen import frozen
from sessionrun.model.keys import describe_id_problem
from sessionrun.model.places import Upstream
from sessionrun.model.spec import JOB_STATUS, Check, Export, TaskSpec
from sessionrun.model.validation import find_cycle

AGENT: Final = "ollama"
MODEL: Final = "qwen-32k:latest"
JOB_SUFFIX: Final = ".md"
TREE: Final = "tree"
"""The token of which there is one: a task that runs commands in a project that all share holds it."""

JOB_LABEL: Final = "job"
"""The label with the id of the job file to which a task belongs."""


@frozen
class _Project:
    """What all job files of one project share."""

    folder: Folder
    settings: Settings
    prompts: Mapping[str, str]
    options: Options
    agent: str
    model: str | None


@frozen
class _Shape:
    """What a job file reads and writes: paths from the project."""

    mode: AnswerMode
    context: tuple[str, ...]
    targets: tuple[str, ...]
    outputs: tuple[str, ...]
    test: str | None
    sequential: bool

    @property
    def writes(self) -> tuple[str, ...]:
        return (*self.outputs, *([self.test] if self.test else []))


def load(source: Source, options: Options) -> Plan:
    """Read the job files that are to run.

    Raises:
        InputError: one line that says what is wrong, in which file, on which line.
    """
    folder = source.folder
    if folder is None:
        wanted = FORMATS["markdown"].expects
        raise InputError(f"{plain(source.name)}: Markdown job files are read from {wanted}, not from this")
    warnings: list[str] = []
    job_files = _parse_job_files(folder, warnings)
    statuses = parse_statuses(folder.files.get(STATUS_FILE), _name(folder, STATUS_FILE))
    chosen = _choose_job_files(folder, options.given, job_files, statuses, warnings)
    settings = parse_settings(folder.settings, PROJECT_SETTINGS)
    named = options.choose("agent")
    asked, *_, config = list_levels(options, {}, {})
    # a model of the project is one of our agent; it goes before that of the configuration, whose agent does not
    levels = (asked, (config[0], None), (AGENT, settings.model), config, (AGENT, MODEL))
    agent, model = settle_agent(levels)
    prompts = parse_system_prompts(folder.files, lambda file: _name(folder, file))
    project = _Project(folder, settings, prompts, options, agent, model)
    shapes = {job_file.id: _shape(job_file, settings) for job_file in chosen}
    needs = _settle_needs(chosen, job_files, shapes, warnings)
    is_apart = options.given.get("worktree", False)
    apart = [job_file for job_file in chosen if is_apart or _find_upstream(project, job_file) is not None]
    _refuse_chains(apart, shapes)
    if any(needs[job_file.id] for job_file in apart):
        warnings.append("with worktrees, a job file does not see what the job files it waits for have written")
    tasks = tuple(
        task for job_file in chosen for task in _expand(project, job_file, shapes[job_file.id], needs[job_file.id])
    )
    return Plan(
        tasks=tasks,
        exports=(_export(folder, tasks),),
        resources={TREE: 1} if any(task.check and task.check.uses for task in tasks) else {},
        max_parallel=options.choose("max_parallel") or None,
        agent=agent,
        agent_reason="asked for" if named else "the format's default",
        warnings=tuple(warnings),
        places=tuple(f"{task.labels[JOB_LABEL]}{JOB_SUFFIX}" for task in tasks),
    )


def _export(folder: Folder, tasks: Sequence[TaskSpec]) -> Export:
    """How the job files stand, live, in the file from which the next run knows it."""
    tasks_by_id: dict[str, list[str]] = {}
    for task in tasks:
        tasks_by_id.setdefault(task.labels[JOB_LABEL], []).append(task.id)
    return Export(JOB_STATUS, {"path": posixpath.join(folder.directory, STATUS_FILE), "jobs": tasks_by_id})


# --- which job files ---


def _name(folder: Folder, file: str) -> str:
    return plain(posixpath.join(folder.name, file))


def _parse_job_files(folder: Folder, warnings: list[str]) -> dict[str, JobFile]:
    """All job files of the directory by id, in the order of ids."""
    job_files = {}
    for file in sorted(folder.files):
        if not file.endswith(JOB_SUFFIX) or file.startswith("_"):
            continue
        job_id, name = file.removesuffix(JOB_SUFFIX), _name(folder, file)
        problem = describe_id_problem(job_id)
        if problem:
            raise InputError(
                f"{name}: the name of a job file {problem}; a file that is not a job file begins with _"
            )
        job_files[job_id] = parse_job_file(job_id, name, folder.files[file], warnings)
    if not job_files:
        raise InputError(f"{plain(folder.name)}: no job file in this directory: no file *.md without _ in front")
    return job_files


def _choose_job_files(
    folder: Folder,
    options: Mapping[str, Any],
    job_files: Mapping[str, JobFile],
    statuses: Mapping[str, str],
    warnings: list[str],
) -> list[JobFile]:
    """The job files that are to run now, without those that would wait for one that is not to run.

    Raises:
        InputError: a job file was asked for that is not there.
    """
    wanted = tuple(options.get("only", ())) or ((folder.only.removesuffix(JOB_SUFFIX),) if folder.only else ())
    for job_id in wanted:
        if job_id not in job_files:
            raise InputError(f"{plain(folder.name)}: no job file {quote(job_id)}{suggest(job_id, job_files)}")
    if wanted:
        return [job_files[job_id] for job_id in sorted(set(wanted))]
    words = {job_id: statuses.get(job_id, "created") for job_id in job_files}
    taken = {"created", *(ENDED if options.get("rerun") else ())}
    if options.get("include_stuck"):
        taken |= {*words.values()} - {"pass", "fail"}
    stuck = sorted(job_id for job_id, word in words.items() if word not in {"pass", "fail", *taken})
    if stuck:
        shown = ", ".join(stuck[:5]) + (" ..." if len(stuck) > 5 else "")
        warnings.append(
            f"{len(stuck)} job files were begun and have not ended ({shown}): --resume takes them, too"
        )
    chosen = {job_id: job_file for job_id, job_file in job_files.items() if words[job_id] in taken}
    _leave_out_hopeless(chosen, job_files, statuses, warnings)
    return list(chosen.values())


def _leave_out_hopeless(
    chosen: dict[str, JobFile], job_files: Mapping[str, JobFile], statuses: Mapping[str, str], warnings: list[str]
) -> None:
    """A job file that needs one that is not to run and has not passed cannot run either."""
    before = -1
    while len(chosen) != before:
        before = len(chosen)
        for job_id, job_file in list(chosen.items()):
            for need in job_file.fields.get("depends_on", ()):
                if need in job_files and need not in chosen and statuses.get(need) != "pass":
                    word = statuses.get(need, "created")
                    warnings.append(f"{job_file.name}: left out: it needs {need}, which has not passed ({word})")
                    del chosen[job_id]
                    break


def _settle_needs(
    chosen: Sequence[JobFile], job_files: Mapping[str, JobFile], shapes: Mapping[str, _Shape], warnings: list[str]
) -> dict[str, tuple[str, ...]]:
    ids = {job_file.id for job_file in chosen}
    nodes = []
    for job_file in chosen:
        for need in job_file.fields.get("depends_on", ()):
            if need not in job_files:
                problem = f"{quote(need)} is not a job file of this directory{suggest(need, job_files)}"
                raise job_file.error("depends_on", problem)
        needs = tuple(need for need in job_file.fields.get("depends_on", ()) if need in ids)
        shape = shapes[job_file.id]
        reads = frozenset((*shape.context, *shape.targets, *shape.writes))
        nodes.append(Node(job_file.id, needs, reads, frozenset(shape.writes)))
    circle = find_cycle({node.id: node.needs for node in nodes})
    if circle:
        job_file = job_files[circle[0]]
        raise job_file.error("depends_on", f"job files need each other in a circle: {' -> '.join(circle)}")
    needs_by_id, refused = derive_edges(nodes)
    warnings.extend(refused)
    return needs_by_id


def _refuse_chains(chosen: Sequence[JobFile], shapes: Mapping[str, _Shape]) -> None:
    """Refuse job files whose calls hand files on to each other: worktrees cannot do that."""
    for job_file in chosen:
        shape = shapes[job_file.id]
        for key, is_chain in {"sequential": shape.sequential, "test_file": shape.test}.items():
            if is_chain:
                raise job_file.error(key, "does not go with worktrees: its calls would not see each other's files")


# --- what a job file becomes ---


def _shape(job_file: JobFile, settings: Settings) -> _Shape:
    """What the front matter means for files.

    Raises:
        InputError: keys that do not go together, or files that are missing.
    """
    fields = job_file.fields
    mode = fields.get("mode", "replace")
    directory, file = fields.get("output_dir", "."), fields.get("output_file")
    output = posixpath.normpath(posixpath.join(directory, file)) if file else None
    listed = fields.get("output_files", ())
    targets = fields.get("target_files", ())
    _check_shape(job_file, settings, output)
    test = fields.get("test_file")
    if test and "/" not in test:
        test = posixpath.normpath(posixpath.join(directory, test))
    if mode == "split":
        targets = (fields["target_file"],)
        return _Shape("split", fields.get("context_files", ()), targets, listed, test, sequential=False)
    if mode != "replace":
        targets = targets or ((output,) if output else listed)
        answer: AnswerMode = "edit" if mode == "edit" else "replace"
        return _Shape(answer, fields.get("context_files", ()), targets, targets, test, sequential=False)
    sequential = fields.get("sequential", False)
    outputs = listed or ((output,) if output else ())
    return _Shape("replace", fields.get("context_files", ()), targets, outputs, test, sequential)


def _check_shape(job_file: JobFile, settings: Settings, output: str | None) -> None:
    fields = job_file.fields
    mode = fields.get("mode", "replace")
    context = fields.get("context_files", ())
    if len(context) > settings.max_context_files:
        limit = f"{settings.max_context_files} (max_context_files in worksplit.toml)"
        raise job_file.error("context_files", f"{len(context)} files, but at most {limit}")
    if fields.get("sequential") and mode != "replace":
        raise job_file.error("sequential", f"does not go with mode {mode}")
    if fields.get("sequential") and not fields.get("output_files"):
        raise job_file.error("sequential", 'needs "output_files": one call for each')
    if mode == "split" and not (fields.get("target_file") and fields.get("output_files")):
        raise job_file.error("mode", 'split needs "target_file" and "output_files"')
    if mode != "replace" and (fields.get("target_files") or fields.get("target_file")):
        return
    if output is None and not fields.get("output_files"):
        raise job_file.error("output_file", "must name the file to write")


def _expand(project: _Project, job_file: JobFile, shape: _Shape, needs: tuple[str, ...]) -> Iterator[TaskSpec]:
    """The tasks of a job file: tests first, then one for each file if it is sequential; the last has its id."""
    alone = shape.outputs[:-1] if shape.sequential else ()
    calls: list[tuple[str, str, tuple[str, ...]]] = [("test", "test", (shape.test,))] if shape.test else []
    calls += [(str(number), "create", (path,)) for number, path in enumerate(alone, 1)]
    last = {"replace": "create", "edit": "edit", "split": "split"}[shape.mode]
    calls.append(("", last, shape.outputs[len(alone) :]))
    upstream, commands, context = _find_upstream(project, job_file), project.settings.commands, shape.context
    is_shared = not project.options.given.get("worktree") and upstream is None
    judge = project.prompts["verify_edit" if shape.mode == "edit" else "verify"]
    check = Check(
        commands,
        uses={TREE: 1} if commands and is_shared else {},
        verify=judge if job_file.fields.get("verify", True) else None,
        files=shape.writes,
    )
    for part, kind, outputs in calls:
        brief = _brief(project, shape, kind, context, outputs)
        task = _make_task(project, job_file, part, brief, needs, Check(()) if part else check)
        yield task
        context, needs = (*context, *outputs), (task.id,)


def _brief(
    project: _Project, shape: _Shape, kind: str, context: tuple[str, ...], outputs: tuple[str, ...]
) -> Brief:
    settings = project.settings
    folder = re.sub(r"([*?[])", r"[\1]", posixpath.relpath(project.folder.directory, project.folder.project))
    return Brief(
        mode=shape.mode if kind != "test" else "replace",
        system=project.prompts[kind],
        context=context,
        targets=shape.targets if kind != "test" else (),
        outputs=outputs,
        room=max(0, settings.max_context_files - len(shape.context)),
        max_context_lines=settings.max_context_lines,
        max_output_lines=settings.max_output_lines,
        create_directories=settings.create_output_dirs,
        protected=(posixpath.normpath(posixpath.join(folder, "_*")),),
    )


def _find_upstream(project: _Project, job_file: JobFile) -> Upstream | None:
    """The repository that the job file, or else the project, names; a ref belongs to the repository beside it."""
    settings, fields = project.settings, job_file.fields
    repo, ref = fields.get("repo"), fields.get("ref")
    if repo is None and (settings.repo or ref or settings.ref):
        repo, ref = settings.repo, ref or settings.ref
    return Upstream(resolve_repo(project.folder.project, repo) if repo else "", ref) if repo or ref else None


def _make_task(
    project: _Project, job_file: JobFile, part: str, brief: Brief, needs: tuple[str, ...], check: Check
) -> TaskSpec:
    rounds = 1 + max(1, project.settings.auto_fix_attempts if check.commands and project.settings.auto_fix else 0)
    upstream = _find_upstream(project, job_file)
    env = {"OLLAMA_HOST": project.settings.url} if project.agent == AGENT and project.settings.url else {}
    call = project.settings.timeout_s  # the project says how long one call may take
    defaults = {"timeout_s": call * rounds * (2 if check.verify else 1) if call else None}
    fields = settle_defaults(project.options, defaults, ((project.agent, project.model),))
    fields["upstream"] = upstream
    if upstream and upstream.repo:
        fields["workspace"] = MIRROR
    # older modes say this in front matter alone
    older = {"struct_name": "The structure to change", "new_field": "Its new field"}
    lines = [f"{text}: {job_file.fields[key]}" for key, text in older.items() if key in job_file.fields]
    return TaskSpec(
        base="session",
        id=f"{job_file.id}.{part}" if part else job_file.id,
        prompts=("\n\n".join([job_file.body, *lines]),),
        title=f"{job_file.title} ({part})" if part else job_file.title,
        cwd=project.folder.project,
        needs=needs,
        check=check,
        rounds=rounds,
        brief=brief,
        env=env,
        labels={JOB_LABEL: job_file.id},
        **fields,
    )

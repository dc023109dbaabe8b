"""The markdown dialect: a directory of Markdown job files, each with front matter; see sessionrun-input(5).

Owns which job files are to run and what each becomes: one task, or a chain of tasks if the job file asks for
several calls; the last task of a chain has the id of the job file.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from glob import escape
from typing import Any, Final

from sessionrun.input.formats import FORMATS
from sessionrun.input.job_files import (
    ENDED,
    JobFile,
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
from sessionrun.model.checks import Brief
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
class _Job:
    """A job file that is to run, and what it reads and writes; `brief` is that of all its calls together."""

    file: JobFile
    brief: Brief
    test: str | None
    upstream: Upstream | None

    @property
    def writes(self) -> frozenset[str]:
        return frozenset((*self.brief.outputs, *([self.test] if self.test else [])))

    @property
    def reads(self) -> frozenset[str]:
        """What it is shown or changes."""
        return self.writes.union(self.brief.context, self.brief.targets)


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
    jobs = [_read_job(project, job_file) for job_file in chosen]
    needs = _settle_needs(jobs, job_files, warnings)
    apart = [job for job in jobs if options.given.get("worktree") or job.upstream is not None]
    for job in apart:
        for key in ("sequential", "test_file"):
            if job.file.fields.get(key):
                problem = "does not go with worktrees: its calls would not see each other's files"
                raise job.file.error(problem, key)
    if any(needs[job.file.id] for job in apart):
        warnings.append("with worktrees, a job file does not see what the job files it waits for have written")
    tasks = tuple(task for job in jobs for task in _expand(project, job, needs[job.file.id]))
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
            for need in job_file.needs:
                if need in job_files and need not in chosen and statuses.get(need) != "pass":
                    word = statuses.get(need, "created")
                    warnings.append(f"{job_file.name}: left out: it needs {need}, which has not passed ({word})")
                    del chosen[job_id]
                    break


def _settle_needs(
    jobs: Sequence[_Job], job_files: Mapping[str, JobFile], warnings: list[str]
) -> dict[str, tuple[str, ...]]:
    """What each waits for: the job files that it names, and those whose files it reads or writes, too."""
    files = {job.file.id: job.file for job in jobs}
    for file in files.values():
        for need in file.needs:
            if need not in job_files:
                problem = f"{quote(need)} is not a job file of this directory{suggest(need, job_files)}"
                raise file.error(problem, "depends_on")
    named = {name: tuple(need for need in file.needs if need in files) for name, file in files.items()}
    if circle := find_cycle(named):
        problem = f"job files need each other in a circle: {' -> '.join(circle)}"
        raise files[circle[0]].error(problem, "depends_on")
    reads, writes = {job.file.id: job.reads for job in jobs}, {job.file.id: job.writes for job in jobs}
    needs, refused = derive_edges(named, reads, writes)
    warnings.extend(refused)
    return needs


# --- what a job file becomes ---


def _read_job(project: _Project, job_file: JobFile) -> _Job:
    """What the front matter means for files.

    Raises:
        InputError: keys that do not go together, or files that are missing.
    """
    fields, settings, folder = job_file.fields, project.settings, project.folder
    _check_keys(job_file, settings)
    mode, directory = fields.get("mode", "replace"), fields.get("output_dir", ".")
    context, listed = fields.get("context_files", ()), fields.get("output_files", ())
    output = (_join(directory, fields["output_file"]),) if "output_file" in fields else ()
    targets, outputs = fields.get("target_files", ()), listed or output
    if mode == "split":
        targets, outputs = (fields["target_file"],), listed
    elif mode != "replace":
        targets = outputs = targets or output or listed
    test = fields.get("test_file")
    brief = Brief(
        mode=mode if mode in ("edit", "split") else "replace",
        context=context,
        targets=targets,
        outputs=outputs,
        room=max(0, settings.max_context_files - len(context)),
        max_context_lines=settings.max_context_lines,
        max_output_lines=settings.max_output_lines,
        create_directories=settings.create_output_dirs,
        protected=(_join(escape(posixpath.relpath(folder.directory, folder.project)), "_*"),),
    )
    test = _join(directory, test) if test and "/" not in test else test
    return _Job(job_file, brief, test, _find_upstream(project, job_file))


def _join(directory: str, file: str) -> str:
    return posixpath.normpath(posixpath.join(directory, file))


def _check_keys(job_file: JobFile, settings: Settings) -> None:
    fields, mode = job_file.fields, job_file.fields.get("mode", "replace")
    count, most = len(fields.get("context_files", ())), settings.max_context_files
    if count > most:
        problem = f"{count} files, but at most {most} (max_context_files in worksplit.toml)"
        raise job_file.error(problem, "context_files")
    if fields.get("sequential") and mode != "replace":
        raise job_file.error(f"does not go with mode {mode}", "sequential")
    if fields.get("sequential") and "output_files" not in fields:
        raise job_file.error('needs "output_files": one call for each', "sequential")
    if mode == "split" and not {"target_file", "output_files"} <= fields.keys():
        raise job_file.error('split needs "target_file" and "output_files"', "mode")
    writes = {"output_file", "output_files"} | ({"target_file", "target_files"} if mode != "replace" else set())
    if not writes & fields.keys():
        raise job_file.error("must name the file to write", "output_file")


def _find_upstream(project: _Project, job_file: JobFile) -> Upstream | None:
    """The repository that the job file, or else the project, names; a ref belongs to the repository beside it."""
    settings, fields = project.settings, job_file.fields
    repo, ref = fields.get("repo"), fields.get("ref")
    if repo is None and (settings.repo or ref or settings.ref):
        repo, ref = settings.repo, ref or settings.ref
    return Upstream(resolve_repo(project.folder.project, repo) if repo else "", ref) if repo or ref else None


def _expand(project: _Project, job: _Job, needs: tuple[str, ...]) -> Iterator[TaskSpec]:
    """The tasks of a job file: tests first, then one for each file if it is sequential; the last has its id."""
    brief, prompts, fields = job.brief, project.prompts, job.file.fields
    alone = brief.outputs[:-1] if fields.get("sequential") else ()
    create = replace(brief, system=prompts["create"])
    test = replace(brief, mode="replace", system=prompts["test"], targets=())
    calls = [("test", replace(test, outputs=(job.test,)))] if job.test else []
    calls += [(str(number), replace(create, outputs=(path,))) for number, path in enumerate(alone, 1)]
    last = create if brief.mode == "replace" else replace(brief, system=prompts[brief.mode])
    calls.append(("", replace(last, outputs=brief.outputs[len(alone) :])))
    commands, context = project.settings.commands, brief.context
    is_shared = not project.options.given.get("worktree") and job.upstream is None
    judge = prompts["verify_edit" if brief.mode == "edit" else "verify"]
    check = Check(
        commands,
        uses={TREE: 1} if commands and is_shared else {},
        verify=judge if fields.get("verify", True) else None,
        files=(*brief.outputs, *([job.test] if job.test else [])),
    )
    for part, call in calls:
        task = _make_task(project, job, part, replace(call, context=context), needs, Check(()) if part else check)
        yield task
        context, needs = (*context, *call.outputs), (task.id,)


def _make_task(
    project: _Project, job: _Job, part: str, brief: Brief, needs: tuple[str, ...], check: Check
) -> TaskSpec:
    settings, file = project.settings, job.file
    rounds = 1 + max(1, settings.auto_fix_attempts if check.commands and settings.auto_fix else 0)
    env = {"OLLAMA_HOST": settings.url} if project.agent == AGENT and settings.url else {}
    call = settings.timeout_s  # the project says how long one call may take
    defaults = {"timeout_s": call * rounds * (2 if check.verify else 1) if call else None}
    fields = settle_defaults(project.options, defaults, ((project.agent, project.model),))
    fields["upstream"] = job.upstream
    if job.upstream and job.upstream.repo:
        fields["workspace"] = MIRROR
    # older modes say this in front matter alone
    older = {"struct_name": "The structure to change", "new_field": "Its new field"}
    lines = [f"{text}: {file.fields[key]}" for key, text in older.items() if key in file.fields]
    return TaskSpec(
        base="session",
        id=f"{file.id}.{part}" if part else file.id,
        prompts=("\n\n".join([file.body, *lines]),),
        title=f"{file.title} ({part})" if part else file.title,
        cwd=project.folder.project,
        needs=needs,
        check=check,
        rounds=rounds,
        brief=brief,
        env=env,
        labels={JOB_LABEL: file.id},
        **fields,
    )

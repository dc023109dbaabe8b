"""Build a WORK job, which is the agent's own process, and read what it left.

Here a task's words meet its agent: argv, prompt file, environment, output files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import orjson

from sessionrun.agents import table
from sessionrun.agents.reading import WITHOUT_RESULT, AgentResult, Problem, read_lines
from sessionrun.engine.money import find_job_budget, to_usd
from sessionrun.engine.state import State
from sessionrun.engine.task import TaskState
from sessionrun.model.frozen import frozen
from sessionrun.model.keys import JobKey
from sessionrun.model.reasons import LEFT_RUNNING
from sessionrun.model.repositories import resets_hard
from sessionrun.model.spec import BUDGET_VARIABLE, AgentSpec, Job, TaskSpec
from sessionrun.session.context_files import BriefProblem
from sessionrun.session.executor import Exit
from sessionrun.session.prompt import Feedback, word_feedback, word_prompt, word_task
from sessionrun.session.shared import SHELL, Judged, Site
from sessionrun.store.files import make_directories, open_regular, replace_file
from sessionrun.store.jobfiles import FEEDBACK, read_tail
from sessionrun.store.session import AGENT_DIR, WALLS_STATE

TASK_DIR: Final = "{task_dir}"
"""In a task's `args`: a folder of its own in the session, for files of its agent."""

REFUSAL: Final = "refusal"
"""File in the folder of a WORK job whose prompt could not be made: the reason."""

LIMIT: Final = "limit"
"""File in the folder of a WORK job whose agent waited for a limit of its provider without a word: what it met."""

_TOLD_BYTES: Final = 4096
"""How much of an earlier answer a new conversation is told."""


@frozen
class Traces:
    """What the agent left: the result in its output (None: plain text, no result), the end of standard error."""

    result: AgentResult | None = None
    stderr: str = ""


def build(site: Site, state: TaskState, key: JobKey, whole: State) -> Job:
    """The agent's process; writes the prompt and moves the outputs of earlier jobs out of the way."""
    task, agent, session = state.spec, site.agent_of(state), site.session
    directory = site.directory_of(task, state.place)
    try:
        wanted = word_task(whole.tasks, task, agent, directory, again=key.round > 1)
    except BriefProblem as problem:
        return _build_refusal(site, state, key, str(problem))
    _put_away_older_outputs(site, key)
    prompt_path = find_prompt_path(site, key)
    feedback, red_check = find_feedback(site, state, key)
    conversation = state.thread.conversation if agent.continue_args else None
    prompt = word_prompt(
        site.spec,
        state,
        agent,
        prompt=wanted,
        red_check=red_check,
        conversation=conversation,
        answer=_read_earlier_answer(site, state) if conversation is None else "",
    )
    replace_file(prompt_path, prompt, durable=False)
    budget = find_job_budget(site.spec.limits, state)
    env = {**agent.env, **site.environment_of(task, key, state.place)}
    kept = state.job.reserved if state.job else None
    if most := budget if budget is not None else kept and to_usd(kept):
        env[BUDGET_VARIABLE] = f"{most:.9f}"  # a session that this job launches may cost as much as the job itself
    if feedback:
        env["SESSIONRUN_FEEDBACK"] = str(feedback)
    return Job(
        key=key,
        argv=table.build_argv(
            agent,
            model=state.asked_model,
            approve=site.spec.approve,
            prompt_file=str(prompt_path),
            conversation=conversation,
            budget=budget,
            extra=() if state.fallbacks else _fill_args(site, task, key),
        ),
        cwd=directory,
        stdin=str(prompt_path) if agent.stdin == "prompt" else None,
        stdout=str(session.raw_path(task.id) if table.has_stream(agent) else session.output_path(task.id)),
        stderr=str(session.error_path(task.id)),
        env=env,
        stop_grace_s=agent.stop_grace_s,
        keeps=task.leftovers == "keep",
    )


def judge(site: Site, state: TaskState, ended: Exit, problem: Problem | None) -> Judged:
    """Judge WORK: the reason of a refusal says more than the end of the process that printed it."""
    if problem is None or problem.reason_class == "start_failed":
        return Judged(problem)
    folder = site.session.job_path(ended.key)
    if (folder / REFUSAL).exists():
        return Judged(Problem("bad_context", read_tail(folder / REFUSAL).decode("utf-8", "replace")))
    return Judged(problem)


def is_refused(site: Site, key: JobKey) -> bool:
    """Whether the job only printed why it cannot work: the task's outputs are then those of the round before."""
    return os.path.lexists(site.session.job_path(key) / REFUSAL)


def note_limit(site: Site, state: TaskState, key: JobKey) -> bool:
    """Whether a silent agent waits for a limit; if so, what it met is written down for `read_traces`."""
    agent, session, task = site.agent_of(state), site.session, state.spec
    stdout = session.raw_path(task.id) if table.has_stream(agent) else session.output_path(task.id)
    cwd, (env, own) = site.directory_of(task, state.place), _find_own_files(site, state, key)
    problem = table.find_silent_limit(agent, stdout, session.error_path(task.id), env, cwd, own)
    try:
        if problem is not None:
            replace_file(session.make_job_path(key) / LIMIT, orjson.dumps([*problem]), durable=True)
    except OSError:  # the disk is full: it is looked at again
        return False
    return problem is not None


def _find_own_files(site: Site, state: TaskState, key: JobKey) -> tuple[Mapping[str, str], str | None]:
    """How the agent finds the files that it keeps for itself: its variables, and inside of walls the folder.

    Those of a node stay there: here it is told a folder that is not there.
    """
    agent, task = site.agent_of(state), state.spec
    env = {**os.environ, **agent.env, **site.environment_of(task, key, state.place)}
    walls = site.session.walls_path(key).with_name(WALLS_STATE) / agent.name
    return env, None if task.sandbox is None and state.node is None else str(walls)


def read_traces(site: Site, state: TaskState, key: JobKey) -> Traces:
    """Read what the agent left; renders a structured stream into the task's answer file."""
    agent, session, task = site.agent_of(state), site.session, state.spec.id
    # a script's standard error comes from the programs that it ran, not from a provider
    stderr = "" if agent.prompt_kind == "script" else table.read_errors(session.error_path(task))
    if agent.output == "text":
        return Traces(None, stderr)
    answer, errors, raw = session.output_path(task), session.error_path(task), session.raw_path(task)
    if not table.has_stream(agent):
        return Traces(table.read_result(agent.output, answer, errors), stderr)
    result = table.read_result(agent.output, raw, errors)
    if result.reason_class == LEFT_RUNNING and site.spec.cluster is None:
        ended = table.list_ended(agent, result.conversation, *_find_own_files(site, state, key))
        result = table.read_result(agent.output, raw, errors, ended) if ended else result
    if result.reason_class in WITHOUT_RESULT and (met := read_tail(site.session.job_path(key) / LIMIT)):
        result = replace(result, problem=Problem(*orjson.loads(met)))
    if result.text is not None:
        replace_file(answer, result.text.encode("utf-8", "replace"), durable=False)
    else:
        _render(agent, raw, answer)
    return Traces(result, stderr)


def is_final(site: Site, state: TaskState, key: JobKey) -> bool:
    """Whether a WORK job has said its last word, and nothing that it began goes on."""
    return table.is_final(site.agent_of(state), site.session.raw_path(key.task))


def measure_output(site: Site, key: JobKey) -> int:
    """How much a WORK job, or the job of a workspace, has printed (bytes)."""
    session, task = site.session, key.task
    paths = [session.raw_path(task), session.output_path(task), session.error_path(task)]
    size = 0
    for path in paths if key.phase == "work" else [session.job_path(key) / "stdout"]:
        with suppress(OSError):  # it is gone
            size += path.lstat().st_size
    return size


def _fill_args(site: Site, task: TaskSpec, key: JobKey) -> Sequence[str]:
    """The task's own arguments; if they name the agent's folder, it is made."""
    if not any(TASK_DIR in arg for arg in task.args):
        return task.args
    folder = site.session.make_job_path(key).parent / AGENT_DIR
    make_directories(folder, 0o700)
    return [arg.replace(TASK_DIR, str(folder)) for arg in task.args]


def _build_refusal(site: Site, state: TaskState, key: JobKey, problem: str) -> Job:
    """A WORK job that only prints why it cannot work: so this failure is recorded like any other."""
    folder, task = site.session.make_job_path(key), state.spec
    replace_file(folder / REFUSAL, problem.encode("utf-8", "replace"), durable=False)
    return Job(
        key=key,
        argv=(SHELL, "-c", 'cat "$0" >&2; exit 1', str(folder / REFUSAL)),
        cwd=site.directory_of(task, state.place),
        stdout=str(site.session.output_path(task.id)),
        stderr=str(site.session.error_path(task.id)),
    )


def find_prompt_path(site: Site, key: JobKey) -> Path:
    """The file with the prompt of a WORK job."""
    if (key.attempt, key.round, key.start) == (1, 1, 1):
        return site.session.prompt_path(key.task)
    return site.session.make_job_path(key) / "prompt"


def find_feedback(site: Site, state: TaskState, key: JobKey) -> tuple[Path | None, Feedback | None]:
    """What this round is told of the one before, and the file that holds it; None and None in the first round."""
    if key.round == 1:
        return None, None
    before = key._replace(round=key.round - 1)
    proofs = site.session.find_starts(before._replace(phase="prove"))
    checks = site.session.find_starts(before._replace(phase="check"))
    overdue_s = state.spec.round_timeout_s if state.overdue else None
    feedback = Feedback(overdue_s=overdue_s, was_reset=resets_hard(state.spec))
    path: Path | None = None
    for folder in (*proofs, *checks):
        path, words = folder / "stdout", read_tail(folder / FEEDBACK)
        if words:
            path, feedback = folder / FEEDBACK, replace(feedback, text=words, is_output=False)
        else:
            feedback = replace(feedback, text=read_tail(path) + read_tail(folder / "stderr"))
        break
    if overdue_s is not None:
        path = site.session.make_job_path(key) / FEEDBACK
        replace_file(path, word_feedback(feedback, "Your last round"), durable=False)
    return path, feedback if path is not None else None


def _read_earlier_answer(site: Site, state: TaskState) -> str:
    """The end of what the attempt before a follow-up answered; '' for any other task."""
    if not state.follow_ups:
        return ""
    key = JobKey(state.spec.id, state.attempt - 1, 1, "work", 1)
    for number in range(state.spec.rounds + 1, 0, -1):  # where they were put away
        for folder in site.session.find_starts(key._replace(round=number)):
            if answer := read_tail(folder / "stdout")[-_TOLD_BYTES:]:
                return answer.decode("utf-8", "replace").strip()
    return ""


def _put_away_older_outputs(site: Site, key: JobKey) -> None:
    """Keep what an earlier WORK job of the task wrote: the top level is for the files of the last WORK job."""
    counted = next((part for part in ("start", "round", "attempt") if getattr(key, part) > 1), None)
    if counted is None:  # it is the first
        return
    older, session = key._replace(**{counted: getattr(key, counted) - 1}), site.session
    names = {"stdout": session.output_path(key.task), "stderr": session.error_path(key.task)}
    names["raw"] = session.raw_path(key.task)
    if not any(path.exists() for path in names.values()):
        return
    # they are of `older`, or of a later round of its attempt
    while any((session.job_path(older) / name).exists() for name in names):
        older = older._replace(round=older.round + 1)
    folder = session.make_job_path(older)
    for name, path in names.items():
        if path.exists():
            os.rename(path, folder / name)


def _render(agent: AgentSpec, raw: Path, answer: Path) -> None:
    """Write all that a stream without a final answer shows into the answer file."""
    try:
        lines = open(raw, "rb", opener=open_regular)
    except OSError:
        return  # the agent removed or replaced the file: that counts as no output
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with lines, os.fdopen(open_regular(answer, flags), "wb") as stream:
        for line in read_lines(lines):
            stream.write(table.render_events(agent.output, line).encode("utf-8", "replace"))

"""Turns a job key into a process to start, and the end of that process into a verdict.

Here a task's words meet its agent: argv, prompt file, environment, output files.  What to start when is the
scheduler's business, starting it the executor's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

import orjson

from sessionrun import agents
from sessionrun.events import JobFinished
from sessionrun.executors import Exit
from sessionrun.model import AgentSpec, Job, JobKey, Place, SessionSpec, TaskSpec, title_of
from sessionrun.outcome import format_reason, judge_exit
from sessionrun.state import TaskState
from sessionrun.store import SessionDir, replace_file
from sessionrun.workspaces import REQUEST, Request, command_line, load_answer, load_request
from sessionrun.workspaces.space import check_space

SHELL: Final = "/bin/sh"
AND_THEN: Final = "\n(exit $?)\n"
"""Between commands: ``sh -e`` alone goes on after a failed ``a && b`` or ``! a``, and would call that passed."""

FEEDBACK_BYTES: Final = 16 * 1024
"""How much of a failed check's output the next round is told."""

_PHASE_CLASSES: Final = {"setup": "setup_failed", "check": "check_failed"}


class JobMaker:
    """Makes and judges the jobs of one session."""

    def __init__(self, session: SessionDir, spec: SessionSpec) -> None:
        self._session = session
        self._spec = spec

    def build(self, state: TaskState, key: JobKey) -> Job:
        """The process for a key; writes its prompt and makes its folder.

        Raises:
            OSError: the session directory cannot be written.
            NoSpace: a worktree is wanted and the disk is nearly full.
        """
        if key.phase == "work":
            return self._build_work(state.spec, key, state.place)
        if key.phase in ("prepare", "release"):
            return self._build_workspace(state, key)
        return self._build_shell(state.spec, key, state.place)

    def judge(self, task: TaskSpec, ended: Exit) -> JobFinished:
        """The verdict on an ended job; renders a structured stream into the task's answer file."""
        key = ended.key
        result = self._read_result(task, key) if key.phase == "work" and ended.errno is None else None
        verdict = judge_exit(
            key, wait_status=ended.wait_status, errno=ended.errno, detail=ended.detail, result=result
        )
        if key.phase in ("prepare", "release"):
            verdict = self._judge_workspace(verdict)
        elif key.phase in _PHASE_CLASSES and verdict.verdict == "failed":
            verdict = _name_phase(verdict, _PHASE_CLASSES[key.phase])
        return replace(verdict, ledger=ended.ledger, cpu_s=ended.cpu_s)

    def _build_work(self, task: TaskSpec, key: JobKey, place: Place | None) -> Job:
        agent = self._spec.agents[task.agent]
        self._put_away_older_outputs(task, key)
        prompt_path = self._prompt_path(key)
        feedback = self._feedback_path(key)
        prompt = self._prompt(task, agent, feedback, place)
        with _open_private(prompt_path) as stream:
            stream.write(prompt)
        structured = agents.has_stream(agent)
        return Job(
            key=key,
            argv=agents.build_argv(
                agent, model=task.model, approve=self._spec.approve, prompt_file=str(prompt_path)
            ),
            cwd=self._cwd(task, place),
            stdin=str(prompt_path) if agent.stdin == "prompt" else None,
            stdout=str(self._session.raw_path(task.id) if structured else self._session.output_path(task.id)),
            stderr=str(self._session.error_path(task.id)),
            env={
                **agent.env,
                **self._env(task, key, place),
                **({"SESSIONRUN_FEEDBACK": str(feedback)} if feedback else {}),
            },
            stop_grace_s=agent.stop_grace_s,
        )

    def _build_shell(self, task: TaskSpec, key: JobKey, place: Place | None) -> Job:
        commands = task.setup if key.phase == "setup" else task.check.commands if task.check else ()
        folder = self._session.make_job_path(key)
        return Job(
            key=key,
            argv=(SHELL, "-ec", AND_THEN.join(commands)),
            cwd=self._cwd(task, place),
            stdout=str(folder / "stdout"),
            stderr=str(folder / "stderr"),
            env=self._env(task, key, place),
        )

    def _build_workspace(self, state: TaskState, key: JobKey) -> Job:
        """PREPARE or RELEASE: our own code in a process of its own."""
        assert self._spec.repository is not None
        if key.phase == "prepare":
            check_space(Path(self._spec.repository.worktree_dir))
        folder = self._session.make_job_path(key)
        request = Request(
            repository=self._spec.repository,
            session_id=self._spec.session_id,
            task=key.task,
            title=title_of(state.spec),
            links=state.spec.links,
            place=state.place if key.phase == "release" else None,
            keep=self._spec.repository.keep,
            succeeded=state.decided == "succeeded",
            patch=str(self._session.patch_path(key)) if key.phase == "release" else None,
        )
        replace_file(folder / REQUEST, orjson.dumps(request), durable=False)
        return Job(
            key=key,
            argv=command_line(key.phase, folder),
            cwd=self._spec.repository.top,
            stdout=str(folder / "stdout"),
            stderr=str(folder / "stderr"),
        )

    def _judge_workspace(self, verdict: JobFinished) -> JobFinished:
        """What PREPARE made, or what RELEASE did with it; a RELEASE that failed leaves the worktree."""
        folder = self._session.job_path(verdict.key)
        answer = load_answer(folder) if verdict.verdict == "passed" else None
        if answer is not None:  # without one the task would run in the user's checkout
            return replace(verdict, place=answer)
        said = _tail(folder / "stderr").decode("utf-8", "replace").strip().split("\n")[-1]
        why = format_reason("workspace_failed", said or (verdict.reason or ""))
        place = load_request(folder).place
        place = replace(place, kept=why) if place is not None else None
        return replace(verdict, verdict="failed", reason_class="workspace_failed", reason=why, place=place)

    def _cwd(self, task: TaskSpec, place: Place | None) -> str:
        """The task's directory; inside its worktree the same one that was meant in the user's checkout."""
        cwd = os.path.join(self._spec.cwd, task.cwd) if task.cwd else self._spec.cwd
        if place is None or place.worktree is None or self._spec.repository is None:
            return cwd
        inside = os.path.relpath(os.path.realpath(cwd), os.path.realpath(self._spec.repository.top))
        outside = inside == os.pardir or inside.startswith(os.pardir + os.sep)
        return cwd if outside else os.path.normpath(os.path.join(place.worktree, inside))

    def _env(self, task: TaskSpec, key: JobKey, place: Place | None) -> Mapping[str, str]:
        return {
            **task.env,
            **self._place_env(place),
            "SESSIONRUN_SESSION": self._spec.session_id,
            "SESSIONRUN_TASK": task.id,
            "SESSIONRUN_ATTEMPT": str(key.attempt),
            "SESSIONRUN_ROUND": str(key.round),
        }

    def _place_env(self, place: Place | None) -> Mapping[str, str]:
        if place is None or self._spec.repository is None:
            return {}
        return {
            "SESSIONRUN_BRANCH": place.branch or "",
            "SESSIONRUN_WORKTREE": place.worktree or "",
            "SESSIONRUN_BASE_COMMIT": place.base_commit or "",
            "SESSIONRUN_REPOSITORY": self._spec.repository.top,
        }

    def _prompt_path(self, key: JobKey) -> Path:
        if (key.attempt, key.round, key.start) == (1, 1, 1):
            return self._session.prompt_path(key.task)
        return self._session.make_job_path(key) / "prompt"

    def _feedback_path(self, key: JobKey) -> Path | None:
        """The output of the check that sent the task into this round."""
        if key.round == 1:
            return None
        check = key._replace(round=key.round - 1, phase="check")
        starts = (self._session.job_path(check._replace(start=start)) for start in (3, 2, 1))
        return next((folder / "stdout" for folder in starts if folder.is_dir()), None)

    def _prompt(self, task: TaskSpec, agent: AgentSpec, feedback: Path | None, place: Place | None) -> bytes:
        text = "\n\n".join(task.prompts)
        if agent.prompt_kind == "script":
            return text.encode()
        if self._spec.envelope:
            branch = f"Working branch: {place.branch}\nCommit your work to it.\n" if place else ""
            marker = f"Begin your answer with this marker: [ID: {task.id}]"
            text = f"Transaction ID: {task.id}\n{branch}\n{text}\n\n{marker}"
        if feedback is None:
            return text.encode()
        head = f"{text}\n\nYour last attempt did not pass its check. The end of the check's output:\n\n"
        return head.encode() + b"".join(_tail(path) for path in (feedback, feedback.with_name("stderr")))

    def _put_away_older_outputs(self, task: TaskSpec, key: JobKey) -> None:
        """Keep what an earlier WORK job of the task wrote; the top level holds the last one's files."""
        older = _key_before(key)
        if older is None:
            return
        names = {"stdout": self._session.output_path(task.id), "stderr": self._session.error_path(task.id)}
        names["raw"] = self._session.raw_path(task.id)
        if not any(path.exists() for path in names.values()):
            return
        folder = self._free_folder(older)
        for name, path in names.items():
            if path.exists():
                os.rename(path, folder / name)

    def _free_folder(self, key: JobKey) -> Path:
        """The folder of the WORK job that wrote last: of `key`, or of a later round of its attempt."""
        while any((self._session.job_path(key) / name).exists() for name in ("stdout", "stderr", "raw")):
            key = key._replace(round=key.round + 1)
        return self._session.make_job_path(key)

    def _read_result(self, task: TaskSpec, key: JobKey) -> agents.AgentResult | None:
        agent = self._spec.agents[task.agent]
        if agent.output == "text":
            return None
        answer, errors = self._session.output_path(task.id), self._session.error_path(task.id)
        raw = self._session.raw_path(task.id)
        if not agents.has_stream(agent):
            return agents.read_result(agent.output, answer, errors)
        result = agents.read_result(agent.output, raw, errors)
        if result.text is not None:
            replace_file(answer, result.text.encode("utf-8", "replace"), durable=False)
        else:
            _render(agent, raw, answer)
        return result


def _key_before(key: JobKey) -> JobKey | None:
    """The WORK key whose outputs may lie at the top level when `key` starts."""
    if key.start > 1:
        return key._replace(start=key.start - 1)
    if key.round > 1:
        return key._replace(round=key.round - 1)
    if key.attempt > 1:
        return key._replace(attempt=key.attempt - 1)
    return None


def _name_phase(verdict: JobFinished, reason_class: str) -> JobFinished:
    """A failed setup or check is named as such, whatever made it fail."""
    what = (verdict.reason or "").partition(": ")[2]
    return replace(verdict, reason_class=reason_class, reason=f"{reason_class}: {what}")


def _open_private(path: Path) -> BinaryIO:
    """A new or emptied file of ours; a link or FIFO that an agent planted in its place is refused."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o600), "wb")


def _tail(path: Path) -> bytes:
    try:
        with agents.open_output(path) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - FEEDBACK_BYTES))
            return stream.read(FEEDBACK_BYTES)
    except OSError:
        return b""


def _render(agent: AgentSpec, raw: Path, answer: Path) -> None:
    """A stream without a final answer: show what it did say."""
    try:
        lines = agents.open_output(raw)
    except OSError:
        return  # the agent removed it, or put something else in its place: it has said nothing
    with lines, _open_private(answer) as stream:
        for line in agents.read_lines(lines):
            stream.write(agents.render_events(agent.output, line).encode("utf-8", "replace"))

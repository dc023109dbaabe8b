"""Which of the jobs of a directory are to run now: those asked for, or those whose status says so.

Must not know what a job becomes, nor the file system.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sessionrun.dialects.fields import suggest
from sessionrun.dialects.front_matter import JobFile
from sessionrun.dialects.limits import plain, quote
from sessionrun.dialects.plan import Folder, Options
from sessionrun.dialects.worksplit import ENDED
from sessionrun.model.errors import InputError

JOB_SUFFIX: Final = ".md"


def choose_jobs(
    folder: Folder,
    options: Options,
    jobs: Mapping[str, JobFile],
    statuses: Mapping[str, str],
    warnings: list[str],
) -> list[JobFile]:
    """The jobs that are to run now, with those left out that would wait for one that is not.

    Args:
        folder: where they lie.
        options: what was asked for.
        jobs: all of them, by id.
        statuses: how they stand, by id; ``created`` where nothing is said.
        warnings: what people should know is added.

    Raises:
        InputError: one was asked for that is not there.
    """
    wanted = options.only or ((folder.only.removesuffix(JOB_SUFFIX),) if folder.only else ())
    for job_id in wanted:
        if job_id not in jobs:
            raise InputError(f"{plain(folder.name)}: no job {quote(job_id)}{suggest(job_id, jobs)}")
    if wanted:
        return [jobs[job_id] for job_id in sorted(set(wanted))]
    taken = ("created", *(ENDED if options.rerun else ()))
    stuck = sorted(
        job_id for job_id in jobs if statuses.get(job_id, "created") not in ("created", "pass", "fail", *taken)
    )
    if stuck and not options.include_stuck:
        shown = ", ".join(stuck[:5]) + (" ..." if len(stuck) > 5 else "")
        warnings.append(f"{len(stuck)} jobs were begun and have not ended ({shown}): --resume takes them, too")
    chosen = {
        job_id: job
        for job_id, job in jobs.items()
        if statuses.get(job_id, "created") in taken or (options.include_stuck and job_id in stuck)
    }
    _leave_out_hopeless(chosen, jobs, statuses, warnings)
    return list(chosen.values())


def _leave_out_hopeless(
    chosen: dict[str, JobFile], jobs: Mapping[str, JobFile], statuses: Mapping[str, str], warnings: list[str]
) -> None:
    """A job that needs one that is not to run and has not passed cannot run either."""
    again = True
    while again:
        again = False
        for job_id, job in list(chosen.items()):
            for need in job.fields.get("depends_on", ()):
                if need in jobs and need not in chosen and statuses.get(need) != "pass":
                    word = statuses.get(need, "created")
                    warnings.append(f"{job.name}: left out: it needs {need}, which has not passed ({word})")
                    del chosen[job_id]
                    again = True
                    break

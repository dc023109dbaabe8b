"""Which of the job files of a directory are to run now: those asked for, or those whose status says so.

Must not know what a job file becomes, nor the file system.
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


def choose_job_files(
    folder: Folder,
    options: Options,
    job_files: Mapping[str, JobFile],
    statuses: Mapping[str, str],
    warnings: list[str],
) -> list[JobFile]:
    """The job files that are to run now, without those that would wait for one that is not to run.

    Args:
        folder: where they lie.
        options: what was asked for.
        job_files: all of them, by id.
        statuses: how they stand, by id; ``created`` where an id is missing.
        warnings: what the user should know is added.

    Raises:
        InputError: a job file was asked for that is not there.
    """
    wanted = options.only or ((folder.only.removesuffix(JOB_SUFFIX),) if folder.only else ())
    for job_id in wanted:
        if job_id not in job_files:
            raise InputError(f"{plain(folder.name)}: no job file {quote(job_id)}{suggest(job_id, job_files)}")
    if wanted:
        return [job_files[job_id] for job_id in sorted(set(wanted))]
    taken = ("created", *(ENDED if options.rerun else ()))
    stuck = sorted(
        job_id
        for job_id in job_files
        if statuses.get(job_id, "created") not in ("created", "pass", "fail", *taken)
    )
    if stuck and not options.include_stuck:
        shown = ", ".join(stuck[:5]) + (" ..." if len(stuck) > 5 else "")
        warnings.append(
            f"{len(stuck)} job files were begun and have not ended ({shown}): --resume takes them, too"
        )
    chosen = {
        job_id: job_file
        for job_id, job_file in job_files.items()
        if statuses.get(job_id, "created") in taken or (options.include_stuck and job_id in stuck)
    }
    _leave_out_hopeless(chosen, job_files, statuses, warnings)
    return list(chosen.values())


def _leave_out_hopeless(
    chosen: dict[str, JobFile], job_files: Mapping[str, JobFile], statuses: Mapping[str, str], warnings: list[str]
) -> None:
    """A job file that needs one that is not to run and has not passed cannot run either."""
    again = True
    while again:
        again = False
        for job_id, job_file in list(chosen.items()):
            for need in job_file.fields.get("depends_on", ()):
                if need in job_files and need not in chosen and statuses.get(need) != "pass":
                    word = statuses.get(need, "created")
                    warnings.append(f"{job_file.name}: left out: it needs {need}, which has not passed ({word})")
                    del chosen[job_id]
                    again = True
                    break

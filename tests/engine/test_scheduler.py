"""Scripted histories: what happens, line by line, and what the scheduler orders then.

A line is ``input & input -> order; order``; no arrow means that nothing is ordered.  Inputs:

    begin                         nothing yet, only the first decision
    started|passed|lost|interrupted KEY / failed KEY [REASON]     what became of a job
    void KEY / refused KEY        it never ran, by a fault / for want of room (counts for nothing)
    cancel [ID ...]               a request, for the whole session when it names nobody
    cancel-now [ID ...] / retry [ID ...] [OUTCOME ...] / pause [ID ...] / unpause [ID ...]
                                   other requests; to pause is to hold on request
    hold NAME [until S] [until_exit] / lift NAME
    add ID / close                a task from `late`; the feed ends
    again / reboot                a new supervisor; after a restart of the machine
    at S                          time passes
    to KEY                        the jobs of its task pass until this one starts
    rest                          all that runs passes, and all that it lets start; starts are not told
    grew SIZE                     from now on, what a job is found to have printed

Orders are carried out at once (``start KEY`` claims the job) until the scheduler only waits; a time it wants
to be woken at is written ``wake S`` where it matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from simulation import EPOCH_S, Drive, Fate, Scripted, SimulatedExecutor, make_session, see_output, task

from sessionrun.engine.moves import backoff_s
from sessionrun.engine.scheduler import CancelJob, Order, Record, StartJob, decide, find_wake
from sessionrun.model import events
from sessionrun.model.keys import JobKey, parse_job_key
from sessionrun.model.spec import OUTCOMES, Check, Limits, TaskSpec, Workspace

TREE = Workspace("worktree")
CHECK = Check(("true",))


@dataclass
class History:
    """Tasks, and what happens to them."""

    tasks: tuple[TaskSpec, ...]
    lines: str
    resources: dict[str, int] = field(default_factory=dict)
    late: tuple[TaskSpec, ...] | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)


HISTORIES: dict[str, History] = {
    "phases in order; absent ones are skipped": History(
        (
            task("a", workspace=TREE, setup=("s",), check=CHECK),
            task("b"),
            task("c", setup=("s",)),
            task("d", workspace=TREE),
            task("e", check=CHECK),
        ),
        """
        begin -> start a/1/1/prepare/1; start b/1/1/work/1; start c/1/1/setup/1; start d/1/1/prepare/1; \
            start e/1/1/work/1
        passed a/1/1/prepare/1 -> start a/1/1/setup/1
        passed a/1/1/setup/1 -> start a/1/1/work/1
        passed a/1/1/work/1 -> start a/1/1/check/1
        passed a/1/1/check/1 -> start a/1/1/release/1
        passed a/1/1/release/1 -> end a succeeded
        passed b/1/1/work/1 -> end b succeeded
        passed c/1/1/setup/1 -> start c/1/1/work/1
        passed d/1/1/prepare/1 -> start d/1/1/work/1
        passed d/1/1/work/1 -> start d/1/1/release/1
        passed e/1/1/work/1 -> start e/1/1/check/1
        rest -> end c succeeded; end d succeeded; end e succeeded; session completed succeeded
        """,
    ),
    "an empty session ends at once": History((), "begin -> session completed succeeded"),
    "a check that fails gives the next round, until rounds run out; work that fails is not checked": History(
        (task("a", check=CHECK, rounds=2), task("b", check=CHECK, rounds=2, workspace=TREE)),
        """
        to a/1/1/check/1 & to b/1/1/check/1
        failed a/1/1/check/1 -> start a/1/2/work/1
        failed b/1/1/check/1 -> start b/1/2/work/1
        passed b/1/2/work/1 -> start b/1/2/check/1
        failed b/1/2/check/1 -> start b/1/2/release/1
        passed b/1/2/release/1 -> end b failed exit: 1
        failed a/1/2/work/1 -> end a failed exit: 1; session completed failed
        """,
    ),
    "void work starts anew, three voids fail; a start that was refused counts for nothing": History(
        (task("a"),),
        """
        begin -> start a/1/1/work/1
        refused a/1/1/work/1 -> start a/1/1/work/2
        refused a/1/1/work/2 -> start a/1/1/work/3
        refused a/1/1/work/3 -> start a/1/1/work/4
        void a/1/1/work/4 -> start a/1/1/work/5
        void a/1/1/work/5 -> start a/1/1/work/6
        void a/1/1/work/6 -> end a failed start_failed: gone; session completed failed
        """,
    ),
    "what was lost runs again up to three times; each phase, and each round, has starts of its own": History(
        (task("a", check=CHECK, rounds=2), task("b", workspace=TREE), task("c", workspace=TREE)),
        """
        to b/1/1/prepare/1 & to c/1/1/release/1
        void a/1/1/work/1 -> start a/1/1/work/2
        void a/1/1/work/2 -> start a/1/1/work/3
        passed a/1/1/work/3 -> start a/1/1/check/1
        lost a/1/1/check/1 -> start a/1/1/check/2
        interrupted a/1/1/check/2 -> start a/1/1/check/3
        failed a/1/1/check/3 -> start a/1/2/work/1
        passed a/1/2/work/1 -> start a/1/2/check/1
        lost a/1/2/check/1 -> start a/1/2/check/2
        lost a/1/2/check/2 -> start a/1/2/check/3
        lost a/1/2/check/3 -> end a lost lost: gone
        lost b/1/1/prepare/1 -> start b/1/1/prepare/2
        lost b/1/1/prepare/2 -> start b/1/1/prepare/3
        lost b/1/1/prepare/3 -> start b/1/1/release/1
        passed b/1/1/release/1 -> end b failed lost: gone
        lost c/1/1/release/1 -> start c/1/1/release/2
        interrupted c/1/1/release/2 -> start c/1/1/release/3
        lost c/1/1/release/3 -> end c succeeded; session completed failed
        """,
    ),
    "a second report of an end means nothing": History(
        (task("a", check=CHECK), task("b")),
        """
        begin -> start a/1/1/work/1; start b/1/1/work/1
        passed a/1/1/work/1 -> start a/1/1/check/1
        failed a/1/1/work/1
        lost a/1/1/work/1
        started a/1/1/work/1
        passed a/1/1/check/1 -> end a succeeded
        failed a/1/1/check/1
        passed b/1/1/work/1 -> end b succeeded; session completed succeeded
        """,
    ),
    "the deadline spans work and check, and is an outcome even when the process says 0": History(
        (task("a", check=CHECK, timeout_s=10.0, rounds=9, workspace=TREE),),
        """
        at 50 & to a/1/1/work/1
        at 52
        started a/1/1/work/1 -> wake 62
        at 58 -> wake 62
        passed a/1/1/work/1 -> start a/1/1/check/1
        started a/1/1/check/1 -> wake 62
        at 63 -> fire a/1/1/check/1 timeout; stop a/1/1/check/1 timed_out
        passed a/1/1/check/1 -> start a/1/1/release/1
        started a/1/1/release/1 & at 99
        passed a/1/1/release/1 -> end a timed_out timeout: not done after 10 s; session completed failed
        """,
    ),
    "a check's own time is up: a failed check, so another round; that of a setup fails its task": History(
        (
            task("a", check=Check(("c",), timeout_s=3.0), timeout_s=100.0, rounds=2),
            task("b", setup=("s",), setup_timeout_s=3.0, timeout_s=1.0),
        ),
        """
        to a/1/1/check/1 & to b/1/1/setup/1
        started a/1/1/check/1 & started b/1/1/setup/1 -> wake 3
        at 3 -> fire a/1/1/check/1 check_timeout; fire b/1/1/setup/1 setup_timeout; \
            stop a/1/1/check/1 timed_out; stop b/1/1/setup/1 timed_out
        passed b/1/1/setup/1 -> end b failed setup_timeout: not done after 3 s
        failed a/1/1/check/1 -> start a/1/2/work/1
        to a/1/2/check/1
        started a/1/2/check/1 -> wake 6
        at 6 -> fire a/1/2/check/1 check_timeout; stop a/1/2/check/1 timed_out
        passed a/1/2/check/1 -> end a failed check_timeout: not done after 3 s; session completed failed
        """,
    ),
    "a round's time is up: the work is stopped, and the next round begins": History(
        (task("a", check=CHECK, round_timeout_s=10.0, timeout_s=25.0, rounds=3),),
        """
        begin -> start a/1/1/work/1
        started a/1/1/work/1 -> wake 10
        at 10 -> fire a/1/1/work/1 round_timeout; stop a/1/1/work/1 timed_out
        failed a/1/1/work/1 -> start a/1/2/work/1
        started a/1/2/work/1 -> wake 20
        at 15
        passed a/1/2/work/1 -> start a/1/2/check/1
        started a/1/2/check/1 -> wake 20
        at 20 -> fire a/1/2/check/1 round_timeout; stop a/1/2/check/1 timed_out
        passed a/1/2/check/1 -> start a/1/3/work/1
        started a/1/3/work/1 -> wake 25
        rest -> end a succeeded; session completed succeeded
        """,
    ),
    "the attempt's time is up with that of its round, or with that of its silence": History(
        (
            task("a", check=CHECK, round_timeout_s=4.0, timeout_s=4.0, rounds=2),
            task("b", idle_timeout_s=4.0, timeout_s=4.0),
        ),
        """
        begin -> start a/1/1/work/1; start b/1/1/work/1
        started a/1/1/work/1 & started b/1/1/work/1 -> wake 4
        at 4 -> fire a/1/1/work/1 timeout; fire b/1/1/work/1 timeout; \
            stop a/1/1/work/1 timed_out; stop b/1/1/work/1 timed_out
        failed a/1/1/work/1 -> end a timed_out timeout: not done after 4 s
        passed b/1/1/work/1 -> end b timed_out timeout: not done after 4 s; session completed failed
        """,
    ),
    "output puts the look off, the silence after it lasts at most twice as long; not of what is stopped": History(
        (task("a", idle_timeout_s=5.0), task("b", idle_timeout_s=5.0)),
        """
        begin -> start a/1/1/work/1; start b/1/1/work/1
        started a/1/1/work/1 & started b/1/1/work/1 -> wake 5
        at 3 & cancel b -> stop b/1/1/work/1 cancelled; wake 5
        grew 1 & at 5.5 -> look a/1/1/work/1; wake 10.5
        grew 9 & at 10.5 -> look a/1/1/work/1; wake 15.5
        at 15 -> wake 15.5
        at 15.5 -> fire a/1/1/work/1 idle_timeout; stop a/1/1/work/1 timed_out
        failed b/1/1/work/1 -> end b cancelled cancelled: on request
        failed a/1/1/work/1 -> end a timed_out stalled: no output for 5 s; session completed failed
        """,
    ),
    "output does not put off the deadline, whichever comes first": History(
        (task("a", idle_timeout_s=4.0, timeout_s=10.0), task("b", idle_timeout_s=10.0, timeout_s=4.0)),
        """
        begin -> start a/1/1/work/1; start b/1/1/work/1
        started a/1/1/work/1 & started b/1/1/work/1 -> wake 4
        grew 1 & at 4 -> look a/1/1/work/1; fire b/1/1/work/1 timeout; stop b/1/1/work/1 timed_out; wake 8
        failed b/1/1/work/1 -> end b timed_out timeout: not done after 4 s
        grew 2 & at 11 -> look a/1/1/work/1; fire a/1/1/work/1 timeout; stop a/1/1/work/1 timed_out
        failed a/1/1/work/1 -> end a timed_out timeout: not done after 10 s; session completed failed
        """,
    ),
    "only work may not be silent": History(
        (task("a", idle_timeout_s=4.0, setup=("s",), check=CHECK),),
        """
        begin -> start a/1/1/setup/1
        started a/1/1/setup/1 & at 50
        passed a/1/1/setup/1 -> start a/1/1/work/1
        started a/1/1/work/1 -> wake 54
        at 51 & to a/1/1/check/1
        started a/1/1/check/1 & at 99
        rest -> end a succeeded; session completed succeeded
        """,
    ),
    "a worktree may take so long from its turn on, else its task fails; one that came just then is one": History(
        (task("a", workspace=TREE), task("b", workspace=TREE)),
        """
        begin -> start a/1/1/prepare/1; start b/1/1/prepare/1
        started a/1/1/prepare/1 & started b/1/1/prepare/1 -> wake 2
        at 9 -> look a/1/1/prepare/1; look b/1/1/prepare/1; wake 11
        grew 6 & at 11 -> look a/1/1/prepare/1; look b/1/1/prepare/1; wake 19
        at 19 -> fire a/1/1/prepare/1 workspace_timeout; fire b/1/1/prepare/1 workspace_timeout; \
            stop a/1/1/prepare/1 timed_out; stop b/1/1/prepare/1 timed_out
        lost a/1/1/prepare/1 -> start a/1/1/release/1
        passed b/1/1/prepare/1 -> start b/1/1/work/1
        rest -> end a failed workspace_failed: not done after 8 s (workspace_timeout); end b succeeded; \
            session completed failed
        """,
        limits={"workspace_timeout_s": 8.0},
    ),
    "cancel leaves a release alone, but no retry follows; cancel --now ends it, and a PREPARE": History(
        (task("a", workspace=TREE), task("b", workspace=TREE), task("c", workspace=TREE, retries=5)),
        """
        to a/1/1/release/1 & started a/1/1/release/1 & cancel a
        to c/1/1/work/1
        failed c/1/1/work/1 -> start c/1/1/release/1
        cancel c
        lost c/1/1/release/1 -> start c/1/1/release/2
        passed c/1/1/release/2 -> end c failed exit: 1
        to b/1/1/prepare/1 & started b/1/1/prepare/1
        cancel-now -> stop a/1/1/release/1 cancelled now; stop b/1/1/prepare/1 cancelled now
        lost a/1/1/release/1 -> end a succeeded
        lost b/1/1/prepare/1 -> start b/1/1/release/1
        passed b/1/1/release/1 -> end b cancelled cancelled: on request; session cancelled failed
        """,
    ),
    "cancel of one task, of a pending one, of one that nobody knows": History(
        (task("a"), task("b"), task("c"), task("d", needs=("c",)), task("e")),
        """
        begin -> start a/1/1/work/1; start b/1/1/work/1
        cancel nobody
        cancel a -> stop a/1/1/work/1 cancelled
        cancel c -> end c cancelled cancelled: on request; end d skipped need: 'c' was cancelled
        passed a/1/1/work/1 -> end a cancelled cancelled: on request; start e/1/1/work/1
        cancel a
        passed b/1/1/work/1 -> end b succeeded
        passed e/1/1/work/1 -> end e succeeded; session completed failed
        """,
        {"slot": 2},
    ),
    "a retry waits for its time, whatever its release did, then runs all phases anew, then gives up": History(
        (task("a", retries=1, workspace=TREE, timeout_s=7.0),),
        """
        to a/1/1/work/1
        started a/1/1/work/1 -> wake 7
        at 7 -> fire a/1/1/work/1 timeout; stop a/1/1/work/1 timed_out
        failed a/1/1/work/1 -> start a/1/1/release/1
        failed a/1/1/release/1 -> retry a timed_out; wake 7.98
        at 7.5 -> wake 7.98
        at 8 -> start a/2/1/prepare/1
        passed a/2/1/prepare/1 -> start a/2/1/work/1
        started a/2/1/work/1 -> wake 15
        failed a/2/1/work/1 -> start a/2/1/release/1
        passed a/2/1/release/1 -> end a failed exit: 1; session completed failed
        """,
    ),
    "what another try cannot mend is not tried again": History(
        (task("a", retries=5, check=CHECK),),
        """
        to a/1/1/check/1
        failed a/1/1/check/1 check_not_run -> end a failed exit: 1; session completed failed
        """,
    ),
    "max_failures: nothing new starts, none comes; what runs goes on, what failed stays failed": History(
        (
            task("a", retries=1),
            task("b"),
            task("c", workspace=TREE),
            task("d", needs=("c",)),
            task("e", needs=("b",)),
        ),
        """
        begin -> start a/1/1/work/1; start b/1/1/work/1; start c/1/1/prepare/1
        failed a/1/1/work/1 -> retry a failed; wake 0.98
        failed b/1/1/work/1 -> end b failed exit: 1; end e skipped need: 'b' did not succeed; \
end a failed exit: 1; end d skipped max_failures: stopped after 1 failed
        add z -> end z skipped max_failures: stopped after 2 failed
        rest -> end c succeeded; session completed failed
        """,
        limits={"max_failures": 1},
        late=(task("z"),),
    ),
    "max_failures: of two that fail at the same moment the second is not tried again": History(
        (task("a", retries=1), task("b")),
        """
        begin -> start a/1/1/work/1; start b/1/1/work/1
        failed b/1/1/work/1 & failed a/1/1/work/1 -> end b failed exit: 1; end a failed exit: 1; \
session completed failed
        """,
        limits={"max_failures": 1},
    ),
    "halt now: what runs is ended, and saved": History(
        (task("a"), task("b", workspace=TREE), task("c", retries=1), task("d", needs=("c",))),
        """
        to b/1/1/work/1
        failed a/1/1/work/1 -> end a failed exit: 1; stop b/1/1/work/1 cancelled; \
stop c/1/1/work/1 cancelled; end d skipped max_failures: stopped after 1 failed
        failed b/1/1/work/1 -> start b/1/1/release/1
        failed c/1/1/work/1 -> end c cancelled cancelled: max_failures: stopped after 1 failed
        passed b/1/1/release/1 -> end b cancelled cancelled: max_failures: stopped after 1 failed; \
session completed failed
        """,
        limits={"max_failures": 1, "halt": "now"},
    ),
    "stagger: one start of work at a time, of a round and a retry, too": History(
        (task("a"), task("b", workspace=TREE), task("c"), task("d", retries=1)),
        """
        begin -> start a/1/1/work/1; start b/1/1/prepare/1; wake 10
        at 4 & passed b/1/1/prepare/1 -> wake 10
        passed a/1/1/work/1 -> end a succeeded; wake 10
        at 10 -> lift stagger; start b/1/1/work/1; wake 20
        passed b/1/1/work/1 -> start b/1/1/release/1; wake 20
        passed b/1/1/release/1 -> end b succeeded; wake 20
        at 25 -> lift stagger; start c/1/1/work/1; wake 35
        void c/1/1/work/1 -> wake 35
        reboot -> lift stagger; start c/1/1/work/2; wake 10.5
        passed c/1/1/work/2 -> end c succeeded; wake 10.5
        at 11 -> lift stagger; start d/1/1/work/1; wake 21
        failed d/1/1/work/1 -> retry d failed; wake 11.98
        at 12 -> wake 21
        at 21 -> lift stagger; start d/2/1/work/1; wake 31
        passed d/2/1/work/1 -> end d succeeded; session completed succeeded
        """,
        limits={"stagger_s": 10.0},
    ),
    "a session begins at its time and not before, whoever supervises it then": History(
        (task("a"),),
        """
        begin -> wake 100
        at 50 & again -> wake 100
        reboot -> wake 100
        at 100 -> lift start; start a/1/1/work/1
        passed a/1/1/work/1 -> end a succeeded; session completed succeeded
        """,
        limits={"starts_at": EPOCH_S + 100.0},
    ),
    "what a user has released begins before its time, and is not held again": History(
        (task("a"), task("b", needs=("a",))),
        """
        unpause -> start a/1/1/work/1
        again
        passed a/1/1/work/1 -> end a succeeded; start b/1/1/work/1
        passed b/1/1/work/1 -> end b succeeded; session completed succeeded
        """,
        limits={"starts_at": EPOCH_S + 100.0},
    ),
    "a hold of the slot stops every start until a job ends; when nothing runs, it ends by time": History(
        (task("a", workspace=TREE), task("b"), task("c")),
        """
        begin -> start a/1/1/prepare/1; start b/1/1/work/1; start c/1/1/work/1
        hold slot until 5 until_exit -> wake 5
        refused c/1/1/work/1 -> wake 5
        passed a/1/1/prepare/1 -> lift slot; start a/1/1/work/1; start c/1/1/work/2
        hold slot until 5 until_exit -> wake 5
        refused c/1/1/work/2 -> wake 5
        lost b/1/1/work/1 -> lift slot; end b lost lost: gone; start c/1/1/work/3
        to a/1/1/release/1
        passed a/1/1/release/1 -> end a succeeded
        hold slot until_exit
        refused c/1/1/work/3 -> wake 1
        at 1 -> lift slot; start c/1/1/work/4
        passed c/1/1/work/4 -> end c succeeded; session completed failed
        """,
    ),
    "an open feed: late tasks may need what has ended": History(
        (task("a"), task("b")),
        """
        begin -> start a/1/1/work/1; start b/1/1/work/1
        passed a/1/1/work/1 -> end a succeeded
        failed b/1/1/work/1 -> end b failed exit: 1
        add x -> start x/1/1/work/1
        add x
        add y -> end y skipped need: 'b' did not succeed
        add z -> end z skipped need: no task 'nobody' in this session
        add self -> end self skipped need: no task 'self' in this session
        close
        passed x/1/1/work/1 -> end x succeeded; session completed failed
        """,
        late=(
            task("x", needs=("a",)),
            task("y", needs=("a", "b")),
            task("z", needs=("nobody",)),
            task("self", needs=("self",)),
        ),
    ),
    "an open feed that brings nothing": History((), "begin\nclose -> session completed succeeded", late=()),
    "cancel closes an open feed, and who comes yet is cancelled": History(
        (task("a"),),
        """
        begin -> start a/1/1/work/1
        cancel -> stop a/1/1/work/1 cancelled
        add x -> end x cancelled cancelled: on request
        failed a/1/1/work/1 -> end a cancelled cancelled: on request; session cancelled failed
        """,
        late=(task("x"),),
    ),
    "slot and worktree span the task, other tokens one job": History(
        (
            task("a", workspace=TREE, check=CHECK, uses={"gpu": 1, "worktree:w": 1}),
            task("b", uses={"gpu": 1}),
            task("c", uses={"worktree:w": 1}),
        ),
        """
        begin -> start a/1/1/prepare/1; start b/1/1/work/1
        passed a/1/1/prepare/1
        passed b/1/1/work/1 -> end b succeeded; start a/1/1/work/1
        to a/1/1/release/1
        passed a/1/1/release/1 -> end a succeeded; start c/1/1/work/1
        rest -> end c succeeded; session completed succeeded
        """,
        {"slot": 2, "gpu": 1, "worktree:w": 1},
    ),
    "a check has tokens of its own; a slot among them is not asked for twice": History(
        tuple(task(name, check=Check(("c",), uses={"gpu": 1, "slot": 1})) for name in "ab"),
        """
        begin -> start a/1/1/work/1; start b/1/1/work/1
        passed a/1/1/work/1 -> start a/1/1/check/1
        passed b/1/1/work/1
        passed a/1/1/check/1 -> end a succeeded; start b/1/1/check/1
        passed b/1/1/check/1 -> end b succeeded; session completed succeeded
        """,
        {"slot": 2, "gpu": 1},
    ),
    "more than one of a token: who needs much is not passed by, and what is given back is for several": History(
        (
            task("a", uses={"gpu": 2}),
            task("b", uses={"gpu": 3}),
            *(task(name, uses={"gpu": 1}) for name in "cdefgh"),
            task("i", uses={"net": 1}),
        ),
        """
        begin -> start a/1/1/work/1; start c/1/1/work/1; start i/1/1/work/1
        passed c/1/1/work/1 -> end c succeeded
        cancel d -> end d cancelled cancelled: on request
        passed a/1/1/work/1 -> end a succeeded; start b/1/1/work/1
        passed b/1/1/work/1 -> end b succeeded; start e/1/1/work/1; start f/1/1/work/1; start g/1/1/work/1
        passed g/1/1/work/1 -> end g succeeded; start h/1/1/work/1
        rest -> end e succeeded; end f succeeded; end h succeeded; end i succeeded; session completed failed
        """,
        {"gpu": 3, "net": 1},
    ),
    "a reboot: the clock begins anew, backoffs and holds are over, deadlines forgotten": History(
        (task("b", uses={"gpu": 1}), task("a", retries=1), task("c", timeout_s=50.0, check=CHECK)),
        """
        hold gpu until 2000 -> start a/1/1/work/1; start c/1/1/work/1; wake 2000
        started c/1/1/work/1 -> wake 50
        failed a/1/1/work/1 -> retry a failed; wake 0.98
        passed c/1/1/work/1 -> start c/1/1/check/1
        reboot -> lift gpu; start b/1/1/work/1; start a/2/1/work/1
        interrupted c/1/1/check/1 -> start c/1/1/check/2
        rest -> end b succeeded; end a succeeded; end c succeeded; session completed succeeded
        """,
        {"gpu": 1},
    ),
    # --- requests ---
    "a cancel without grace hastens a stop already under way, once": History(
        (task("a"), task("b", timeout_s=5.0)),
        """
        begin -> start a/1/1/work/1; start b/1/1/work/1
        started b/1/1/work/1
        cancel a -> stop a/1/1/work/1 cancelled
        cancel a
        at 5 -> fire b/1/1/work/1 timeout; stop b/1/1/work/1 timed_out
        cancel
        cancel-now -> stop a/1/1/work/1 cancelled now; stop b/1/1/work/1 timed_out now
        cancel-now
        failed a/1/1/work/1 -> end a cancelled cancelled: on request
        failed b/1/1/work/1 -> end b timed_out timeout: not done after 5 s; session cancelled failed
        """,
    ),
    "retry re-opens what failed and what was skipped for it, and an ended session": History(
        (task("a"), task("b", needs=("a",)), task("c", needs=("b",)), task("d"), task("e", needs=("d",))),
        """
        begin -> start a/1/1/work/1; start d/1/1/work/1
        passed d/1/1/work/1 -> end d succeeded; start e/1/1/work/1
        failed a/1/1/work/1 -> end a failed exit: 1; end b skipped need: 'a' did not succeed; \
            end c skipped need: 'a' did not succeed
        passed e/1/1/work/1 -> end e succeeded; session completed failed
        retry failed timed_out -> start a/2/1/work/1
        passed a/2/1/work/1 -> end a succeeded; start b/1/1/work/1
        passed b/1/1/work/1 -> end b succeeded; start c/1/1/work/1
        retry failed
        passed c/1/1/work/1 -> end c succeeded; session completed succeeded
        retry failed
        """,
    ),
    "who needs two tasks is re-opened when neither is in its way": History(
        (task("a"), task("b"), task("c", needs=("a", "b"))),
        """
        begin -> start a/1/1/work/1; start b/1/1/work/1
        failed a/1/1/work/1 -> end a failed exit: 1; end c skipped need: 'a' did not succeed
        failed b/1/1/work/1 -> end b failed exit: 1; session completed failed
        retry a -> start a/2/1/work/1
        passed a/2/1/work/1 -> end a succeeded; session completed failed
        retry b -> start b/2/1/work/1
        rest -> end b succeeded; end c succeeded; session completed succeeded
        """,
    ),
    "lost and interrupted tasks run again when that is asked for, never by themselves": History(
        (task("a", retries=2), task("b", retries=2), task("c"), task("d", retries=3, setup=("s",))),
        """
        begin -> start a/1/1/work/1; start b/1/1/work/1; start c/1/1/work/1; start d/1/1/setup/1
        lost a/1/1/work/1 -> end a lost lost: gone
        interrupted b/1/1/work/1 -> end b interrupted interrupted: gone
        lost d/1/1/setup/1 -> end d lost lost: gone
        retry failed timed_out
        retry a b lost interrupted -> start a/2/1/work/1; start b/2/1/work/1
        rest -> end a succeeded; end b succeeded; end c succeeded; session completed failed
        """,
    ),
    "a task whose end is decided is tried again after its RELEASE": History(
        (task("a", workspace=TREE), task("b")),
        """
        to a/1/1/work/1
        lost a/1/1/work/1 -> start a/1/1/release/1
        retry lost
        passed b/1/1/work/1 -> end b succeeded
        passed a/1/1/release/1 -> end a lost lost: gone; start a/2/1/prepare/1
        to a/2/1/release/1
        retry a lost failed
        passed a/2/1/release/1 -> end a succeeded; session completed succeeded
        """,
    ),
    "a cancelled session is completed by a retry; a cancel that comes after the end does nothing": History(
        (task("a"), task("b")),
        """
        begin -> start a/1/1/work/1; start b/1/1/work/1
        passed b/1/1/work/1 -> end b succeeded
        cancel -> stop a/1/1/work/1 cancelled
        failed a/1/1/work/1 -> end a cancelled cancelled: on request; session cancelled failed
        retry failed lost
        cancel
        retry a b -> start a/2/1/work/1
        passed a/2/1/work/1 -> end a succeeded; session completed succeeded
        """,
    ),
    "failures of before do not count against max_failures": History(
        (task("a"), task("b"), task("c")),
        """
        begin -> start a/1/1/work/1
        failed a/1/1/work/1 -> end a failed exit: 1; end b skipped max_failures: stopped after 1 failed; \
            end c skipped max_failures: stopped after 1 failed; session completed failed
        retry b c -> start b/1/1/work/1
        passed b/1/1/work/1 -> end b succeeded; start c/1/1/work/1
        retry a failed
        failed c/1/1/work/1 -> end c failed exit: 1; end a failed exit: 1; session completed failed
        """,
        {"slot": 1},
        limits={"max_failures": 1},
    ),
    "what is held starts nothing new; its check and release go on": History(
        (task("a", workspace=TREE, check=CHECK, rounds=2), task("b"), task("c", needs=("b",)), task("d")),
        """
        to a/1/1/work/1 & pause & pause a
        passed a/1/1/work/1 -> start a/1/1/check/1
        failed a/1/1/check/1
        passed b/1/1/work/1 -> end b succeeded
        unpause d -> start d/1/1/work/1
        unpause c
        passed d/1/1/work/1 -> end d succeeded; start c/1/1/work/1
        unpause -> start a/1/2/work/1
        unpause
        passed c/1/1/work/1 -> end c succeeded
        passed a/1/2/work/1 -> start a/1/2/check/1
        pause a
        passed a/1/2/check/1 -> start a/1/2/release/1
        passed a/1/2/release/1 -> end a succeeded; session completed succeeded
        """,
        {"slot": 2},
    ),
    "what is held can be cancelled, and a hold of the session is for those that come later too": History(
        (task("a"),),
        """
        pause
        add late
        cancel a -> end a cancelled cancelled: on request
        unpause late -> start late/1/1/work/1
        passed late/1/1/work/1 -> end late succeeded
        close -> session completed failed
        """,
        late=(task("late"),),
    ),
}


REQUESTS: Mapping[str, events.RequestKind] = {
    "cancel": "cancel",
    "cancel-now": "cancel",
    "retry": "retry",
    "pause": "hold",
    "unpause": "release",
}


class Play(Scripted):
    """Plays the lines of one history."""

    wall_s = EPOCH_S

    def __init__(self, history: History) -> None:
        spec = make_session(history.tasks, resources=history.resources, open_feed=history.late is not None)
        super().__init__(replace(spec, limits=Limits(**history.limits)))
        self.late = {late.id: late for late in history.late or ()}
        self.at, self.size = 0.0, 0
        self.record(events.SupervisorStarted(1, 1, 1, "first", "n", "0"))

    def now(self) -> float:
        return self.at

    def say(self, inputs: str) -> list[str]:
        """Let happen what stands left of the arrow and tell all that is ordered then."""
        for happens in inputs.split("&"):
            verb, *words = happens.split()
            if verb == "at":
                self.at = float(words[0])
            elif verb == "grew":
                self.size = int(words[0])
            elif verb == "to":
                self.reach(parse_job_key(words[0]))
            elif verb == "rest":
                return [one for one in self.finish() if not one.startswith("start")]
            elif verb in ("again", "reboot"):
                self.at = 0.5 if verb == "reboot" else self.at
                self.record(events.SupervisorStarted(2, 1, 1, "second" if verb == "reboot" else "first", "n", "0"))
            elif verb != "begin":
                self.record(self.read_event(verb, words))
        return self.settle()

    def settle(self) -> list[str]:
        """Carry out what is ordered until there is nothing left but to wait."""
        said: list[str] = []
        while orders := [self.tell(order) for order in decide(self.state, self.at)]:
            said += orders
        wake = find_wake(self.state)
        return said if wake is None else [*said, f"wake {round(wake, 2):g}"]

    def reach(self, key: JobKey) -> None:
        self.settle()
        while (job := self[key.task].job) is not None and job.key != key:
            self.record(passed(job.key))
            self.settle()
        assert job is not None, f"{key.text()} is not reached"

    def finish(self) -> list[str]:
        said: list[str] = []
        while running := [task.job.key for task in self.state.tasks.values() if task.job is not None]:
            self.record(passed(running[0]))
            said += self.settle()
        return said

    def read_event(self, verb: str, words: list[str]) -> events.Event:
        name = words[0] if words else ""
        if verb == "started":
            return events.JobStarted(parse_job_key(name), pid=7, started=1, ledger=1)
        if verb == "passed":
            return passed(parse_job_key(name))
        if verb == "failed":
            reason = words[1] if words[1:] else "exit"
            return events.JobFinished(
                parse_job_key(name), "failed", reason, "exit: 1", wait_status=256, exit_code=1
            )
        if verb in ("void", "refused"):
            return events.JobLost(parse_job_key(name), "void", "gone", counts=verb == "void")
        if verb in ("lost", "interrupted"):
            return events.JobLost(parse_job_key(name), "lost" if verb == "lost" else "interrupted", "gone")
        if verb in REQUESTS:
            outcomes = tuple(word for word in OUTCOMES if word in words)
            ids = tuple(word for word in words if word not in outcomes)
            now = verb == "cancel-now"
            return events.RequestReceived(f"r{len(self.entries)}", REQUESTS[verb], ids, now=now, outcomes=outcomes)
        if verb == "hold":
            until = float(words[words.index("until") + 1]) if "until" in words else None
            return events.HoldPlaced(name, "stop", until, until_exit="until_exit" in words)
        if verb == "lift":
            return events.HoldLifted(name)
        if verb == "add":
            return events.TaskAdded(self.late[name])
        assert verb == "close", verb
        return events.FeedClosed()

    def tell(self, order: Order) -> str:
        """Carry out an order; as the histories spell it."""
        if isinstance(order, StartJob):
            self.record(events.JobClaimed(order.key))
            return f"start {order.key.text()}"
        if isinstance(order, Record):
            self.record(order.event)
            return describe(order.event)
        if isinstance(order, CancelJob):
            return f"stop {order.key.text()} {order.reason}{' now' * order.now}"
        event = see_output(self.state, order, self.size)
        self.record(event)
        return f"look {order.key.text()}" if isinstance(event, events.OutputSeen) else describe(event)


def passed(key: JobKey) -> events.JobFinished:
    return events.JobFinished(key, "passed", wait_status=0, exit_code=0)


def describe(event: events.Event) -> str:
    """A recorded decision, as the histories spell it."""
    if isinstance(event, events.TaskEnded):
        return " ".join(filter(None, ("end", event.task, event.outcome, event.reason)))
    if isinstance(event, events.TaskRetried):
        return f"retry {event.task} {event.outcome}"
    if isinstance(event, events.TimerFired):
        return f"fire {event.key.text()} {event.timer}"
    if isinstance(event, events.HoldLifted):
        return f"lift {event.resource}"
    return f"session {event.status} {event.outcome}"  # type: ignore[union-attr]


@pytest.mark.parametrize("name", HISTORIES)
def test_history(name: str) -> None:
    history = HISTORIES[name]
    play = Play(history)
    lines = history.lines.replace("\\\n", "").splitlines()
    ends: dict[str, str] = {}
    for number, line in enumerate(filter(None, map(str.strip, lines)), 1):
        inputs, _, expected = line.partition("->")
        orders = play.say(inputs)
        wanted = [order.strip() for order in expected.split(";") if order.strip()]
        if not any(order.startswith("wake") for order in wanted):
            orders = [order for order in orders if not order.startswith("wake")]
        assert orders == wanted, f"line {number}: {line}"
        ends |= {order.split()[1]: order for order in wanted if order.startswith("end ")}
    found = {
        name: " ".join(filter(None, ("end", name, one.outcome, one.reason)))
        for name, one in play.state.tasks.items()
    }
    assert found == ends, "each task has ended, and as it was said last"
    assert play.state.ended is not None
    assert play.state.free == history.resources
    assert not [*decide(play.state, play.at)]
    play.examine_replay()


def test_a_machine_that_is_full_is_not_asked_for_more_than_a_few_jobs_at_a_time() -> None:
    executor = SimulatedExecutor(lambda job: Fate("refused") if executor.running >= 5 else Fate(duration_s=1.0))
    drive = Drive(make_session(task(f"t{number}") for number in range(300)), executor).run()
    assert drive.state.outcomes == {"succeeded": 300}
    claims = sum(isinstance(entry.event, events.JobClaimed) for entry in drive.entries)
    assert claims < 3 * 300
    assert drive.state.start_batch > 1, "with success it asks for more again"


def test_backoff_doubles_up_to_a_minute_and_is_the_same_at_each_replay() -> None:
    waits = [backoff_s("a", attempt) for attempt in range(1, 20)]
    for attempt, wait_s in enumerate(waits):
        full_s = min(60.0, 2.0**attempt)
        assert full_s / 2 <= wait_s <= full_s
    assert waits == [backoff_s("a", attempt) for attempt in range(1, 20)]
    assert backoff_s("a", 1) != backoff_s("b", 1)

"""The public names: `from sessionrun import api`, then `api.plan`.

All else in this package may change with each version.

Each docstring names the errors that are its own.  Besides these, a function that is given a session raises
`SessionNotFound` if the session was removed, and any of them raises OSError if the disk fails.
"""

from sessionrun.client.ask import Reply as Reply
from sessionrun.client.ask import cancel as cancel
from sessionrun.client.ask import hold as hold
from sessionrun.client.ask import release as release
from sessionrun.client.ask import retry as retry
from sessionrun.client.launch import launch as launch
from sessionrun.client.lookup import load_summaries as load_summaries
from sessionrun.client.lookup import open_session as open_session
from sessionrun.client.notices import SessionWarning as SessionWarning
from sessionrun.client.planning.additions import AskedChange as AskedChange
from sessionrun.client.planning.plan import Nothing as Nothing
from sessionrun.client.planning.plan import Planned as Planned
from sessionrun.client.planning.plan import plan as plan
from sessionrun.client.reading.digest import load_since as load_since
from sessionrun.client.reading.outputs import read_answer as read_answer
from sessionrun.client.reading.view import choose_tasks as choose_tasks
from sessionrun.client.reading.view import load_view as load_view
from sessionrun.client.reading.waiting import NextEnd as NextEnd
from sessionrun.client.reading.waiting import Waited as Waited
from sessionrun.client.reading.waiting import wait as wait
from sessionrun.client.reading.waiting import wait_for_next as wait_for_next
from sessionrun.house import describe_lack
from sessionrun.model.errors import AgentNotFound as AgentNotFound
from sessionrun.model.errors import InputError as InputError
from sessionrun.model.errors import SessionGone as SessionGone
from sessionrun.model.errors import SessionNotFound as SessionNotFound
from sessionrun.model.errors import SessionrunError as SessionrunError
from sessionrun.model.errors import StoreError as StoreError
from sessionrun.model.spec import SessionSpec as SessionSpec
from sessionrun.store.session import SessionDir as SessionDir
from sessionrun.worktrees.diff import Change as Change
from sessionrun.worktrees.diff import find_changed as find_changed
from sessionrun.worktrees.diff import read_changes as read_changes

if not describe_lack("landing"):
    from sessionrun.landing.merge import AskedLanding as AskedLanding
    from sessionrun.landing.merge import merge as merge

"""Tokens: in an order to a node they stand for what each machine has its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final

from sessionrun.keeper.wire import PACKAGE_ROOT
from sessionrun.model.asked import CACHE_TOKEN, NODE_TOKEN, PATH_TOKEN
from sessionrun.store.index import find_cache_folder

SESSION_TOKEN: Final = "@sessionrun-session@"
PYTHON_TOKEN: Final = "@sessionrun-python@"
PACKAGE_TOKEN: Final = "@sessionrun-package@"
"""The directory of the session, for which there is the job's folder; our Python; the directory of our package.
There are more in `model.asked`."""


def put_tokens(session: str) -> Callable[[str], str]:
    """What puts tokens into the words of a job whose session's directory that is."""

    def there(word: str) -> str:
        if word == sys.executable:
            return PYTHON_TOKEN
        if word.startswith(PACKAGE_ROOT + os.sep):
            word = PACKAGE_TOKEN + word[len(PACKAGE_ROOT) :]
        return word.replace(session, SESSION_TOKEN)

    return there


def take_tokens(text: str, folder: str, node: str) -> str:
    """A text with the places of this machine: of a job's folder, and of its node."""
    text = text.replace(SESSION_TOKEN, folder).replace(NODE_TOKEN, node)
    text = text.replace(PYTHON_TOKEN, sys.executable).replace(PACKAGE_TOKEN, PACKAGE_ROOT)
    if CACHE_TOKEN in text:
        text = text.replace(CACHE_TOKEN, str(find_cache_folder()))
    return text.replace(PATH_TOKEN, os.environ.get("PATH") or os.defpath)

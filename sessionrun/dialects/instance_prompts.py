"""What an agent is asked to do about an instance: the usual template, and how a template is filled in.

A template never gets the instance's own patch or its tests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from sessionrun.dialects.instances import Instance
from sessionrun.model.errors import InputError

TEMPLATE: Final = """\
You are in a checkout of the repository {repo} at commit {base_commit}.

Solve the issue below. Change the source files in this directory so that the behaviour is as the issue asks.

- Find the cause first: read the code that the issue is about.
- Write a test that shows the issue, and run it before and after your change, with the tests that are there.
- Change as little as the issue needs, in the style of the code around it.
- Changes to tests and to test set-up do not count. Other tests, which you do not see, decide.
- Do not look for the fix elsewhere: not in the history, not in an installed copy, not in the network.
- Leave your changes in the working directory. At the end say in a few sentences what you changed, and why.

<issue>
{problem_statement}
</issue>
"""

_TOKEN: Final = re.compile(r"\{(instance_id|repo|base_commit|problem_statement|hints_text|version)\}")


def check_template(template: str, name: str) -> str:
    """The template.

    Raises:
        InputError: an agent would not learn what to do.
    """
    if "{problem_statement}" not in template:
        raise InputError(
            f"{name}: a prompt template must hold {{problem_statement}}: it is what the agent is to do"
        )
    return template


def fill_template(template: str, instance: Instance) -> str:
    """The template with the instance's texts in place of their names in braces; all in one pass, as text."""
    texts: Mapping[str, str] = {
        "instance_id": instance.instance_id,
        "repo": instance.repo,
        "base_commit": instance.base_commit,
        "problem_statement": instance.problem_statement.strip(),
        "hints_text": instance.hints_text.strip(),
        "version": instance.version,
    }
    return _TOKEN.sub(lambda found: texts[found[1]], template)

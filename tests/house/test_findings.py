"""What the rows of the house name is there: findings, views, shapes of outputs."""

from __future__ import annotations

from importlib import import_module

from sessionrun.cli.argv import VERBS
from sessionrun.client.doctor.report import (
    MACHINE_CHECKS,
    SESSION_CHECKS,
    list_machine_checks,
    list_session_checks,
)
from sessionrun.client.findings import Findings, load_findings
from sessionrun.client.schemas import outputs
from sessionrun.house import HOUSE
from sessionrun.model.landings import LANDING_FOLDER


def test_each_finding_has_its_own_name() -> None:
    found = load_findings()
    assert all(isinstance(business, Findings) for business in found)
    of_businesses = sum(len(business.session_checks) for business in found)
    assert len(list_session_checks()) == len(SESSION_CHECKS) + of_businesses
    of_businesses = sum(len(business.machine_checks) for business in found)
    assert len(list_machine_checks()) == len(MACHINE_CHECKS) + of_businesses


def test_a_view_is_asked_where_its_folder_is() -> None:
    views = {business.name: business.views for business in HOUSE if business.views is not None}
    assert {name: folder for name, (folder, _) in views.items()} == {"landing": LANDING_FOLDER}
    for _, view in views.values():
        module, _, function = view.partition(":")
        assert callable(getattr(import_module(f"sessionrun.{module}"), function))


def test_each_output_is_of_one_verb() -> None:
    verbs = [*outputs.OUTPUTS]
    for business in HOUSE:
        verbs += import_module(f"sessionrun.{business.outputs}").OUTPUTS if business.outputs else ()
    assert len(set(verbs)) == len(verbs) and set(verbs) <= set(VERBS)

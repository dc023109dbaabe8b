"""What the rows of the house name is there: findings, views, shapes of outputs."""

from __future__ import annotations

from sessionrun.cli.argv import VERBS
from sessionrun.client.doctor.report import OWN
from sessionrun.client.findings import Findings, load_findings
from sessionrun.client.schemas import outputs
from sessionrun.house import HOUSE, load
from sessionrun.model.landings import LANDING_FOLDER


def test_each_check_has_its_own_name() -> None:
    parts = OWN, *load_findings()
    assert all(isinstance(part, Findings) for part in parts)
    for checks in ([part.session_checks for part in parts], [part.machine_checks for part in parts]):
        names = [name for part in checks for name in part]
        assert len(set(names)) == len(names)


def test_a_view_is_asked_where_its_folder_is() -> None:
    views = {business.name: business.views for business in HOUSE if business.views is not None}
    assert {name: folder for name, (folder, _) in views.items()} == {"landing": LANDING_FOLDER}
    for _, view in views.values():
        assert callable(load(view))


def test_each_output_is_of_one_verb() -> None:
    verbs = [*outputs.OUTPUTS]
    for business in HOUSE:
        verbs += load(business.outputs) if business.outputs else ()
    assert len(set(verbs)) == len(verbs) and set(verbs) <= set(VERBS)

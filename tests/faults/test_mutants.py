"""Each mutant is noticed by whoever has to; and the package as it is, by nobody."""

from __future__ import annotations

import sys

import pytest

from .mutants import MUTANTS, Mutant, make_copy, run_mutant

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_made(mutant: Mutant) -> None:
    with make_copy(mutant) as code:
        assert (code / "sessionrun" / mutant.file).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_noticed(mutant: Mutant) -> None:
    assert run_mutant(mutant), f"{mutant.by} did not notice: {mutant.name}"


@pytest.mark.slow
def test_the_package_as_it_is_is_not_suspected() -> None:
    with make_copy(None) as code:
        assert {mutant.by: seen for mutant in MUTANTS if (seen := mutant.catcher(code))} == {}

"""Every sample of an agent's output is judged as its row of the table says."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
from agent_samples import CORPUS, EXPECTED, SAMPLES, STREAMS, Sample, judge_sample

from sessionrun.agents import markers
from sessionrun.model.reasons import REASONS


def test_every_sample_has_its_row() -> None:
    files = {path for path in SAMPLES.rglob("*") if path.is_file() and path.suffix != ".err" and path != EXPECTED}
    assert files == {sample.path for sample in CORPUS}
    assert len(files) == len(CORPUS)
    for errors in SAMPLES.rglob("*.err"):
        assert errors.with_suffix(".raw") in files or errors.with_suffix(".txt") in files


@pytest.mark.parametrize("sample", CORPUS, ids=str)
@pytest.mark.usefixtures("utc")
def test_sample(sample: Sample) -> None:
    result, finished = judge_sample(sample)
    assert (finished.reason_class, result.text) == (sample.reason_class, sample.answer)
    assert finished.verdict == ("passed" if sample.reason_class is None else "failed")
    assert sample.reason_class is None or sample.reason_class in REASONS
    assert sample.exit == (finished.exit_code if finished.signal is None else -finished.signal)
    if sample.reason_class is None:
        assert finished.reason is None
    else:
        assert sample.words in (finished.reason or "")
        assert "\n" not in (finished.reason or "")
    assert sample.said is None or result.reason_class == sample.said
    assert sample.final in (None, result.is_final)
    assert finished.resets_at == pytest.approx(read_time(sample.reset), abs=1e-3)


def read_time(text: str | None) -> float | None:
    if text is None:
        return None
    return datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=timezone.utc).timestamp()


def test_no_stream_with_lost_work_is_a_success() -> None:
    """Each way in which an agent loses work that it had begun, as far as its stream tells."""
    lost = {(sample.agent, sample.case) for sample in CORPUS if sample.reason_class == "left_running"}
    assert lost >= {
        ("claude", "sub_stopped"),
        ("claude", "wake_pending"),
        ("claude", "bg_open_at_end"),
        ("claude", "one_of_two_unheard"),
        ("codex", "bg_killed"),
        ("qwen", "bg_killed"),
    }


def test_where_a_sample_comes_from_is_said() -> None:
    assert all(sample.source for sample in CORPUS if sample.origin == "constructed")


def test_an_exit_code_of_0_is_no_success() -> None:
    """Programs that end with 0 after an API error, a refused tool, a limit or an interrupt."""
    lies = {(sample.agent, sample.reason_class) for sample in CORPUS if sample.exit == 0 and sample.reason_class}
    assert {
        ("aider", "api_error"),
        ("aider", "aborted"),
        ("claude", "denied"),
        ("claude", "aborted"),
        ("claude", "usage_limit"),
        ("claude", "api_error"),
        ("gemini", "incomplete_output"),
        ("opencode", "denied"),
    } <= lies


@pytest.mark.parametrize("sample", [one for one in CORPUS if one.reason_class is None], ids=str)
def test_no_stderr_makes_a_good_run_a_failure(sample: Sample) -> None:
    for words in phrases():
        assert markers.find_in_errors(words) is not None
    result, finished = judge_sample(sample)
    assert result.ok
    assert finished.resets_at is None


def phrases() -> Iterator[str]:
    yield from ("usage limit reached", "HTTP 429: too many requests", "overloaded_error", "Please run /login")


def test_every_marker_names_a_published_class_and_its_source() -> None:
    for row in markers.MARKERS:
        assert row.reason_class in REASONS
        assert row.source


def test_requests_that_were_tried_again_do_not_count() -> None:
    retried = "Attempt 1 failed: rate limit exceeded. Retrying after 5 s\n"
    assert markers.find_in_errors(retried) is None
    found = markers.find_in_errors(retried + "Error: model_not_found\n")
    assert found == ("bad_model", "Error: model_not_found")


def test_all_agents_with_a_stream_are_in_the_corpus() -> None:
    assert {sample.agent for sample in CORPUS} == {*STREAMS, "aider"}

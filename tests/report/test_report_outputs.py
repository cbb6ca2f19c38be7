"""The step's outputs, read back as the runner reads them."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_cases import TOO_SHORT
from report_outcomes import CODE_DRIFT, ERROR, NO_BASELINE, REPRODUCED

from gate.errors import ExitCode, PublishError
from gate.report.comment import Publication
from gate.report.outputs import StepOutputs, fault_outputs, output_file_text, verdict_outputs

DELIMITER = "ghadelimiter_5c0c1f"


def read_back(text: str) -> dict[str, str]:
    """The heredoc form as the runner's parser takes it."""
    found: dict[str, str] = {}
    lines = iter(text.split("\n"))
    for line in lines:
        name, mark, delimiter = line.partition("<<")
        if not mark:
            assert line == ""
            continue
        value: list[str] = []
        for row in lines:
            if row == delimiter:
                break
            value.append(row)
        found[name] = "\n".join(value)
    return found


def test_a_pass_gives_every_output() -> None:
    cost = REPRODUCED.cost
    assert cost is not None
    assert cost.low is not None
    assert cost.high is not None
    outputs = verdict_outputs(
        REPRODUCED,
        Publication(comment_url="https://github.example/c"),
        package_path="out/package.tar",
        bundle_path="out/package.sigstore.json",
        report_path="out/report.html",
        proposed_baseline_path="out/proposed-baseline.json",
        proposed_baseline_target="b/cpu.json",
    )
    assert read_back(output_file_text(outputs, DELIMITER)) == {
        "verdict": "reproduced",
        "exit_reason": "pass",
        "exit_code": "0",
        "failure_mode": "none",
        "determinism_cost_pct": "4.18",
        "cost_low": f"{(cost.low - 1) * 100:.2f}",
        "cost_high": f"{(cost.high - 1) * 100:.2f}",
        "checkpoint_digest": REPRODUCED.states[0].root,
        "package_path": "out/package.tar",
        "bundle_path": "out/package.sigstore.json",
        "comment_url": "https://github.example/c",
        "report_path": "out/report.html",
        "evidence_path": "",
        "proposed_baseline_path": "out/proposed-baseline.json",
        "proposed_baseline_target": "b/cpu.json",
    }


@pytest.mark.parametrize(
    ("verdict", "reason", "code"), [(CODE_DRIFT, "fail", "1"), (ERROR, "error", "3")]
)
def test_a_failure_tells_its_reason(verdict: object, reason: str, code: str) -> None:
    outputs = verdict_outputs(verdict, Publication())  # type: ignore[arg-type] # parametrized
    assert (outputs.exit_reason, outputs.exit_code) == (reason, code)


@pytest.mark.parametrize("verdict", [NO_BASELINE.model_copy(update={"cost": TOO_SHORT}), ERROR])
def test_a_cost_that_was_not_measured_is_empty(verdict: object) -> None:
    outputs = verdict_outputs(verdict, Publication())  # type: ignore[arg-type] # parametrized
    assert (outputs.determinism_cost_pct, outputs.cost_low, outputs.cost_high) == ("", "", "")


def test_a_fault_before_the_verdict_has_outputs_too() -> None:
    assert fault_outputs(ExitCode.USAGE) == StepOutputs(
        verdict="error", exit_reason="usage", exit_code="2", failure_mode="none"
    )


@given(st.text(st.characters(codec="utf-8")))
def test_a_value_cannot_write_another_output(value: str) -> None:
    outputs = StepOutputs(package_path=value)
    if DELIMITER in value:
        return
    assert read_back(output_file_text(outputs, DELIMITER)) == asdict(outputs)


def test_a_value_with_the_delimiter_is_refused() -> None:
    outputs = StepOutputs(package_path=f"x\n{DELIMITER}\nverdict<<y\nreproduced\ny")
    with pytest.raises(PublishError) as caught:
        output_file_text(outputs, DELIMITER)
    assert caught.value.message == "output package_path contains the delimiter of the output file"

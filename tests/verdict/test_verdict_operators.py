from __future__ import annotations

import pytest
from each_row import each_row
from evidence_cases import evidence_of, evidence_set_of, settings_of
from torch_documentation import (
    RELEASES,
    documented,
    not_documented,
    not_in_the_table,
    recorded,
)

from gate.evidence.operator_records import (
    Autotuner,
    OperatorAudit,
    OperatorReport,
    OperatorUse,
    Refusal,
    Span,
)
from gate.evidence.run_evidence import RunEvidence
from gate.training.operator_tables import (
    UNCOVERED,
    release_of,
    row_on_cuda,
    watch_list,
    watched_operators,
)
from gate.verdict.operator_findings import (
    beyond_the_flag,
    operator_audit_failed,
    operator_report,
    operator_rows,
    refused_and_went_on,
    weaker_level,
)

BARE = evidence_set_of(evidence_of())


def use_of(operator: str, *spans: tuple[int, int, int], **changes: str) -> OperatorUse:
    plain = {"source": "alert", "device": "any", "direction": "forward", "file": "a.py", "line": 7}
    told = tuple(Span(first=one, last=other, calls=many) for one, other, many in spans)
    return OperatorUse.model_validate({**plain, "operator": operator, "spans": told, **changes})


def run_of(label: str = "strict-1", **operator_audit: object) -> RunEvidence:
    found = OperatorAudit.model_validate(operator_audit)
    return evidence_of(label).model_copy(update={"operator_audit": found})


def rows_of(*uses: OperatorUse, **operator_audit: object) -> list[tuple[str, str]]:
    found = OperatorAudit.model_validate({"uses": uses, **operator_audit})
    return [(row.operator, row.flag) for row in operator_rows(found)]


def test_a_notice_of_torch_becomes_a_row_with_count_steps_place_and_remedy() -> None:
    use = use_of("put_", (1, 3, 1), (4, 4, 2), (7, 7, 1), direction="backward")
    (row,) = operator_rows(OperatorAudit(uses=(use,)))
    assert (row.operator, row.flag) == ("put_", "no deterministic form")
    assert (row.calls_per_step, row.steps, row.where) == ("1 to 2", "1-4, 7", "a.py:7 (backward)")
    assert row.remedy == "Use index_put_ or scatter with indices that occur once."


def test_a_row_of_the_own_table_carries_its_source() -> None:
    call = use_of("aten::topk", (1, 1, 1), source="call")
    rows = operator_rows(OperatorAudit(uses=(call,), modules=("xformers",)))
    sources = ["pytorch/pytorch 186653", "facebookresearch/xformers, xformers.ops.fmha"]
    assert [row.source for row in rows] == sources


def test_many_ranges_of_steps_are_cut() -> None:
    use = use_of("new_kernel", *((step, step, 1) for step in range(1, 11, 2)))
    (row,) = operator_rows(OperatorAudit(uses=(use,)))
    assert (row.steps, row.calls_per_step) == ("1, 3, 5 and 2 more", "1")
    assert row.remedy == "Replace it, or compute that part on the CPU."


def test_the_table_speaks_for_a_device_and_a_direction() -> None:
    name, call = "torchvision::_roi_align_backward", (1, 1, 1)
    on_gpu = use_of(name, call, source="call", device="cuda", direction="backward")
    on_cpu = use_of(name, call, source="call", device="cpu", direction="backward")
    expected = "flag not known to apply: adds atomically on the GPU"
    assert rows_of(on_gpu) == [(name, expected)]
    assert rows_of(on_cpu) == [(name, f"on CUDA: {expected}")]


def test_a_call_on_a_cpu_is_told_for_cuda_and_what_strict_mode_refuses_comes_first() -> None:
    index_add = use_of("aten::index_add", (1, 3, 1), source="call", device="cpu")
    cumsum = use_of("aten::cumsum(floating)", (1, 3, 1), source="call", device="cpu")
    refused, replaced = operator_rows(OperatorAudit(uses=(index_add, cumsum)))
    assert (refused.operator, refused.flag) == ("cumsum", "on CUDA: refused by strict mode")
    assert refused.remedy == "Compute it on the CPU, or in integers."
    assert (replaced.operator, replaced.flag) == (
        "index_add",
        "on CUDA: deterministic in strict mode",
    )
    assert replaced.where == "a.py:7"


def test_a_direction_names_what_a_user_wrote() -> None:
    told = {"source": "call", "device": "cpu", "direction": "backward"}
    assert rows_of(use_of("aten::scatter_add", (1, 1, 1), **told)) == [
        ("scatter_add, as in gather's backward", "on CUDA: deterministic in strict mode")
    ]
    assert rows_of(use_of("aten::scatter(tensor)", (1, 1, 1), **told)) == []


def test_a_call_on_cuda_is_left_to_torchs_own_alert() -> None:
    assert rows_of(use_of("aten::cumsum(floating)", (1, 1, 1), source="call", device="cuda")) == []


def test_each_release_from_2_10_to_2_14_is_recorded() -> None:
    assert {(2, minor) for minor in range(10, 15)} <= set(RELEASES.values())


@each_row("version", RELEASES)
def test_the_table_says_of_each_release_what_its_documentation_says(version: str) -> None:
    """Both ways: neither an operator nor a bound of a row is missing, and none is too much."""
    lists, release = recorded()[version], RELEASES[version]
    assert not_in_the_table(lists, release) == []
    assert not_documented(lists, release) == []


def test_what_changed_between_two_releases_is_what_their_rows_are_bound_to() -> None:
    known = {release: set(documented(recorded()[of])) for of, release in RELEASES.items()}
    changes = {
        release: {one.name for one in known[release] ^ known[(2, release[1] - 1)]}
        for release in known
        if (2, release[1] - 1) in known
    }
    assert {release: names for release, names in changes.items() if names} == {
        (2, 13): {"torch.nn.MaxPool3d"},
        (2, 14): {"torch.cumsum", "torch.nn.Embedding"},
    }


@pytest.mark.parametrize(
    ("torch", "flag"),
    [
        ("2.13.1+cu130", "on CUDA: refused by strict mode"),
        ("2.14.0+cu130", "on CUDA: deterministic in strict mode"),
        ("", "on CUDA: refused by strict mode"),
    ],
)
def test_what_is_said_of_cumsum_is_true_of_the_torch_that_trained(torch: str, flag: str) -> None:
    use = use_of("aten::cumsum(floating)", (1, 1, 1), source="call", device="cpu")
    (row,) = operator_rows(OperatorAudit(uses=(use,)), release_of(torch))
    assert (row.flag, bool(row.remedy)) == (flag, "refused" in flag)


def test_compiled_code_is_not_known_to_be_covered_up_to_torch_2_13() -> None:
    audit = OperatorAudit(modules=("torch._inductor.compile_fx",))
    (row,) = operator_rows(audit, (2, 13))
    assert row.why == "a compiled cumsum gave different results from run to run, in strict mode too"
    assert operator_rows(audit, (2, 14)) == ()


def test_what_only_a_cpu_does_in_no_fixed_order_is_not_told_of_cuda() -> None:
    assert "aten::index_put(accumulate)" not in watched_operators()
    on_cpu = use_of("aten::index_put(accumulate)", (1, 1, 1), source="call", device="cpu")
    assert row_on_cuda(on_cpu.operator, "forward") is None


def test_what_torch_tells_on_every_device_is_not_looked_for_twice() -> None:
    assert "aten::put(replace)" not in watched_operators()
    assert "aten::max_unpool2d" not in watched_operators()


def test_an_operator_of_ones_own_is_told() -> None:
    own = use_of("mine::double", (1, 1, 1), source="call")
    flag = "flag not known to apply: an operator of your own or of a package"
    assert rows_of(own) == [("mine::double", flag)]


def test_packages_autotuners_and_extensions_are_told_and_unknown_modules_passed_over() -> None:
    found = rows_of(
        modules=("flash_attn", "not_in_the_table"),
        autotuners=(Autotuner(kernel="timed", configurations=2),),
        extensions=("mine._C",),
    )
    assert [name for name, _ in found] == ["flash_attn", "timed", "mine._C"]
    assert found[1][1].endswith("by timing (2 configurations)")


def test_every_row_of_the_table_is_watched_for_and_names_its_source() -> None:
    words = watch_list().split(";")
    assert len(words) == len(set(words)) == len(UNCOVERED) + len(watched_operators())
    assert f"operator:{watched_operators()[0]}" in words
    assert all(row.source and row.why and row.remedy for row in UNCOVERED)


def test_the_operator_audit_run_is_the_one_that_is_told() -> None:
    strict = run_of(modules=("xformers",))
    operator_audit = run_of("audit-1", modules=("flash_attn",), dropped=3)
    report = operator_report(evidence_set_of(strict, operator_audit))
    assert report is not None
    assert ([row.operator for row in report.rows], report.dropped) == (["flash_attn"], 3)
    assert report.complete


def test_without_an_operator_audit_the_first_strict_run_tells_what_it_can() -> None:
    report = operator_report(evidence_set_of(run_of(modules=("flash_attn",))))
    assert report is not None
    assert not report.complete
    assert operator_report(BARE) is None
    assert beyond_the_flag(report) == ("determinism flag not known to apply: flash_attn",)
    assert beyond_the_flag(None) == ()


def test_many_names_beyond_the_flag_are_counted() -> None:
    own = [use_of(f"mine::f{number}", (1, 1, 1), source="call") for number in range(10)]
    report = OperatorReport(rows=operator_rows(OperatorAudit(uses=tuple(own))))
    assert beyond_the_flag(report)[0].endswith("mine::f7 and 2 more")


def test_a_list_of_allowed_operators_is_a_weaker_level() -> None:
    settings = settings_of(determinism={"allow_operators": ("put_", "cumsum_cuda_kernel")})
    (finding,) = weaker_level(settings, run_of(uses=(use_of("put_", (1, 1, 1)),)))
    assert finding.code == "weaker-level"
    assert "admits put_ (used), cumsum_cuda_kernel (not used)" in finding.message
    assert "attention keeps kernels" in finding.message
    assert weaker_level(settings_of(), evidence_of()) == ()


def test_a_refusal_that_the_script_handled_is_told_with_its_place_and_entry() -> None:
    refused = Refusal(operator="put_", file="a.py", line=7, step=2)
    (finding,) = refused_and_went_on(run_of(refused=(refused,)))
    assert "strict mode refused put_ at a.py:7, step 2, and the script continued" in finding.message
    assert "determinism: {allow_operators: ['put_']}" in finding.remedy
    assert refused_and_went_on(evidence_of()) == ()


def test_an_operator_audit_that_failed_is_told() -> None:
    report = operator_report(BARE, "run operator audit-1: exited with 1")
    (finding,) = operator_audit_failed(report)
    assert finding.message.endswith("could not be counted: run operator audit-1: exited with 1")
    assert operator_audit_failed(OperatorReport(complete=True)) == ()

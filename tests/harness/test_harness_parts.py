"""The harness's small parts, in this process."""

from __future__ import annotations

import hashlib
import io
import math
from importlib.metadata import distributions
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gate.harness import metrics, user_code
from gate.harness.lifecycle import environment_survey
from gate.harness.output import MAX_PROBLEMS, Output, Problems, exact
from gate.harness.recording.module_search import outermost_owners
from gate.harness.recording.state import TensorOrder, capture, named_tensors
from gate.harness.settings import current_rank


def names_of(value: object) -> tuple[dict[str, torch.Tensor], list[str]]:
    problems = Problems()
    found = dict(named_tensors("x", value, problems))
    assert problems.sentences == []
    return found, problems.left_out


@given(st.floats())
def test_a_number_is_written_exactly(value: float) -> None:
    back = float.fromhex(exact(value)["hex"])
    assert back == value or (math.isnan(back) and math.isnan(value))
    assert math.isnan(value) or math.copysign(1, back) == math.copysign(1, value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_number_keeps_its_type(dtype: torch.dtype) -> None:
    tensor = torch.tensor(1 / 3, dtype=dtype)
    written = exact(tensor)
    assert written["dtype"] == str(dtype).removeprefix("torch.")
    assert torch.tensor(float.fromhex(written["hex"]), dtype=dtype) == tensor


@pytest.mark.parametrize(
    ("value", "dtype"), [(np.float32(0.1), "float32"), (3, "float64"), (np.int64(3), "float64")]
)
def test_other_numbers_have_a_float_type_too(value: object, dtype: str) -> None:
    assert exact(value)["dtype"] == dtype


def test_numbers_of_a_state_have_their_full_width() -> None:
    found, problems = names_of({"a": True, "b": 2**62, "c": 0.1, "d": np.float32(0.5)})
    types = {name: tensor.dtype for name, tensor in found.items()}
    assert types == {
        "x/a": torch.bool,
        "x/b": torch.int64,
        "x/c": torch.float64,
        "x/d": torch.float32,
    }
    assert problems == []


def test_what_describes_and_does_not_train_is_left_out_silently() -> None:
    kinds = (torch.float32, torch.device("cpu"), torch.strided, torch.channels_last)
    assert names_of({"a": "text", "b": None, "c": print, "d": Path, "e": kinds}) == ({}, [])


@pytest.mark.parametrize("value", [b"ab", bytearray(b"ab"), io.BytesIO(b"ab")])
def test_bytes_of_an_extra_state_are_kept(value: object) -> None:
    found, left_out = names_of({"_extra_state": value, "empty": b""})
    assert left_out == []
    assert found["x/_extra_state"].tolist() == [97, 98]
    assert (found["x/empty"].dtype, found["x/empty"].shape) == (torch.uint8, (0,))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (2**64, "Overflow when unpacking long long"),
        ({1, 2}, "set is neither a tensor nor a number nor bytes"),
        (Problems(), "Problems is neither a tensor nor a number nor bytes"),
        (np.array([None]), "can't convert np.ndarray of type numpy.object_"),
    ],
)
def test_what_is_no_number_is_left_out_and_told(value: object, why: str) -> None:
    found, left_out = names_of([1, value])
    assert list(found) == ["x/0"]
    assert left_out[0].startswith(f"x/1 is left out of the state: {why}")


def test_the_second_of_two_equal_names_is_told() -> None:
    class Ambiguous(nn.Module):
        def get_extra_state(self) -> dict[str, object]:
            return {"a": {"b": 1}, "a/b": 2}

        def set_extra_state(self, state: object) -> None:
            pass

    problems = Problems()
    assert list(capture([Ambiguous()], [], TensorOrder(), problems)) == ["model/0/_extra_state/a/b"]
    assert problems.sentences == [
        "model/0/_extra_state/a/b is the name of two values, the second is left out of the state"
    ]


def test_a_model_that_cannot_tell_its_state_is_a_problem() -> None:
    class Broken(nn.Linear):
        def state_dict(self, *_args: object, **_kwargs: object) -> dict[str, object]:  # type: ignore[override] # a planted fault
            raise RuntimeError("no state")

    problems = Problems()
    capture([Broken(1, 1)], [], TensorOrder(), problems)
    assert problems.sentences == ["reading the state of model 0: RuntimeError: no state"]


def test_owners_come_in_the_order_of_the_parameters() -> None:
    first, second = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))
    unused = nn.Linear(2, 2)
    parameters = [*second.parameters(), *first.parameters()]
    found = outermost_owners(parameters, Problems())
    assert [id(module) for module in found] == [id(second), id(first)]
    assert unused not in found


def test_a_module_that_was_never_set_up_is_passed_over() -> None:
    unready = nn.Linear.__new__(nn.Linear)
    model = nn.Linear(1, 1)
    problems = Problems()
    assert outermost_owners(list(model.parameters()), problems) == [model]
    assert problems.sentences == []
    del unready


def test_problems_are_kept_once_and_not_without_end() -> None:
    problems = Problems()
    for number in range(2 * MAX_PROBLEMS):
        problems.note("the same")
        problems.note(f"{number}")
    assert problems.sentences[:3] == ["the same", "0", "1"]
    assert len(problems.sentences) == MAX_PROBLEMS


@pytest.mark.parametrize(("text", "rank"), [("3", 3), ("", 0), ("-1", 0), ("../x", 0), ("²", 0)])
def test_only_a_whole_number_is_a_rank(
    monkeypatch: pytest.MonkeyPatch, text: str, rank: int
) -> None:
    monkeypatch.setenv("RANK", text)
    assert current_rank() == rank


def test_a_document_replaces_the_one_before(tmp_path: Path) -> None:
    output = Output(str(tmp_path), rank=2, pid=7)
    for value in (1, 2):
        output.write_document("summary", {"value": value})
    assert [path.name for path in tmp_path.iterdir()] == ["summary-r2-7.json"]
    assert (tmp_path / "summary-r2-7.json").read_text(encoding="utf-8") == '{"value": 2}'


def test_packages_are_digested_as_documented() -> None:
    lines = sorted({f"{found.metadata['Name']}=={found.version}\n" for found in distributions()})
    expected = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert environment_survey.parts(Problems())["packages"] == expected


def test_logging_a_metric_outside_a_gate_run_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    metrics.log("loss", "not even a number", step=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        (str(Path.cwd() / "train.py"), "train.py"),
        ("/opt/lib/site-packages/package/module.py", "package/module.py"),
        ("/elsewhere/module.py", "/elsewhere/module.py"),
        ("<string>", "<string>"),
    ],
)
def test_a_file_is_shown_from_where_a_reader_knows_it(file: str, shown: str) -> None:
    assert user_code.shown_file(file) == shown


def test_a_process_that_took_a_step_is_told_from_one_that_reads_data(tmp_path: Path) -> None:
    trainer, worker = Output(str(tmp_path), 1, 7), Output(str(tmp_path), 1, 77)
    assert trainer.first_to_train()
    trainer.document_or_complaint("steps", {})
    worker.document_or_complaint("complaint", {})
    assert [trainer.has_trained(pid) for pid in (7, 77, None)] == [True, False, False]
    assert not trainer.has_summary(7)
    trainer.document_or_complaint("summary", {})
    assert [worker.has_summary(pid) for pid in (7, 77, None)] == [True, False, False]

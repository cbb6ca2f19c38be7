"""Walks over the schemas of all operators: what is written, and what comes from outside."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from each_row import each_row

from gate.harness.tracing.arguments import (
    READ_ALONE,
    overwritten_names,
    takes_storage,
    written_names,
)

SCHEMAS = torch._C._jit_get_all_schemas()


def operator(schema: torch.FunctionSchema) -> SimpleNamespace:
    """As the dispatcher hands it over, as far as a trace looks at it."""
    return SimpleNamespace(_schema=schema)


def named(namespace: str) -> list[torch.FunctionSchema]:
    return [schema for schema in SCHEMAS if schema.name.startswith(f"{namespace}::")]


def test_every_operator_that_is_given_a_storage_brings_values_from_outside() -> None:
    with_storage = {str(schema) for schema in SCHEMAS if "Storage " in str(schema).split(" -> ")[0]}
    known = {str(schema) for schema in SCHEMAS if takes_storage(operator(schema))}
    assert known == with_storage
    assert any(text.startswith("aten::set_.source_Storage(") for text in known)


def test_room_for_a_result_is_written_and_never_read() -> None:
    outs = [schema for schema in named("aten") if any(one.is_out for one in schema.arguments)]
    assert len(outs) > 1000  # of torch's out= forms
    for schema in outs:
        rooms = {one.name for one in schema.arguments if one.is_out}
        assert rooms <= overwritten_names(operator(schema)), schema


@each_row("schema", named("c10d"))
def test_every_message_writes_what_it_brings_and_nothing_that_it_sends(
    schema: torch.FunctionSchema,
) -> None:
    tensors = {one.name for one in schema.arguments if "Tensor" in str(one.type)}
    if schema.name in READ_ALONE or not tensors:
        assert not written_names(operator(schema))
        return
    written = written_names(operator(schema))
    assert written
    assert not any(name.startswith("input") for name in written)


@pytest.mark.parametrize("name", ["c10d::recv_", "c10d::recv_any_source_"])
def test_a_receive_reads_nothing_of_what_it_fills(name: str) -> None:
    (schema,) = (one for one in SCHEMAS if one.name == name)
    assert overwritten_names(operator(schema)) == {"tensors"}


@pytest.mark.parametrize("name", ["aten::native_batch_norm", "aten::batch_norm_update_stats"])
def test_a_normalisation_writes_its_running_statistics(name: str) -> None:
    schema = next(one for one in SCHEMAS if one.name == name and not one.overload_name)
    assert written_names(operator(schema)) == {"running_mean", "running_var"}

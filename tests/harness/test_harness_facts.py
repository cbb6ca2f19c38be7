"""Facts that a rank tells beside the parts of its environment."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch
from torch._C._distributed_c10d import HashStore

from gate.harness.lifecycle import attestation, children


def test_build_machine_and_kernel_are_told() -> None:
    told = attestation.process_facts()
    assert told["kernel"] == f"Linux {platform.release()}"
    assert int(told["allowed_cpus"]) == len(os.sched_getaffinity(0))
    assert int(told["cpus"]) >= int(told["allowed_cpus"])
    assert int(told["memory_bytes"]) > 2**28
    assert told["torch_build"].split()[:2] == torch.__config__.show().split()[:2]
    assert "Environment variables" not in told["torch_parallel"]
    assert all(0 < len(text) <= attestation.MAX_TEXT for text in told.values())


def test_only_variables_of_the_computation_are_told_and_no_secret(tmp_path: Path) -> None:
    variables = {
        "NCCL_ALGO": "Ring",
        "OMP_NUM_THREADS": "4",
        "TORCH_LOGS": "x" * 500,
        "TORCH_HUB_TOKEN": "hidden",
        "CUDA_API_KEY": "hidden",
        "GITHUB_TOKEN": "hidden",
        "HOME": "/home/me",
    }
    source = tmp_path / "environ"
    source.write_bytes("\0".join(f"{name}={text}" for name, text in variables.items()).encode())
    assert attestation.told_variables(source) == {
        "NCCL_ALGO": "Ring",
        "OMP_NUM_THREADS": "4",
        "TORCH_LOGS": "x" * 200,
    }


def test_variables_are_bounded_in_number(tmp_path: Path) -> None:
    source = tmp_path / "environ"
    source.write_bytes("\0".join(f"NCCL_{number}=1" for number in range(1000)).encode())
    assert len(attestation.told_variables(source)) == attestation.MAX_VARIABLES


def test_what_the_group_reduces_by_is_told_after_it_is_gone() -> None:
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    attestation.Group.remember()
    distributed.destroy_process_group()
    attestation.Group.remember()
    assert "cpu:gloo" in attestation.process_facts()["process_group"].split(",")
    attestation.Group.backends = ""
    assert "process_group" not in attestation.process_facts()


def test_forked_children_are_counted_in_their_parent() -> None:
    os.register_at_fork(after_in_parent=children.Forks.note)
    before = children.Forks.count
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    assert children.Forks.count == before + 1
    assert attestation.process_facts()["forks"] == str(before + 1)

"""What a node says of itself, and what of that a result may hang on."""

from __future__ import annotations

from pathlib import Path

from each_row import each_row

from gate.system.machine import GpuFacts
from gate.system.node import NodeFacts, described_nodes, gpu_clocks, node_hardware


def node(name: str, gpus: int = 0, address: str = "", speed: int = 0) -> NodeFacts:
    gpu = GpuFacts(
        uuid="GPU-1",
        name="NVIDIA A10G",
        memory_total="24 GiB",
        driver_version="570",
        compute_mode="Default",
        mig="[N/A]",
        ecc="Enabled",
    )
    networks = {"eth0": speed} if speed else {}
    return NodeFacts(name=name, gpus=(gpu,) * gpus, address=address, networks=networks)


@each_row(
    ("nodes", "told"),
    [
        ((), ""),
        ((node("a"),), "1 node of cpu"),
        ((node("a", 4), node("b", 4)), "2 nodes of 4 x NVIDIA A10G"),
        ((node("a", 4), node("b", 2)), "1 node of 2 x NVIDIA A10G + 1 node of 4 x NVIDIA A10G"),
        (
            (node("a", address="s0.s1.a"), node("b", address="s0.s1.b")),
            "2 nodes of cpu, one switch",
        ),
        (
            (node("a", address="s0.s1.a"), node("b", address="s0.s2.b")),
            "2 nodes of cpu, several switches",
        ),
        ((node("a", speed=100_000), node("b", speed=25_000)), "2 nodes of cpu, 25 Gb/s"),
    ],
)
def test_nodes_are_told_by_what_they_are(nodes: tuple[NodeFacts, ...], told: str) -> None:
    assert described_nodes(nodes) == told


def test_names_of_nodes_and_switches_change_nothing() -> None:
    one = (node("a", 1, "s0.s1.a"), node("b", 1, "s0.s1.b"))
    other = (node("x", 1, "s0.s7.x"), node("y", 1, "s0.s7.y"))
    assert described_nodes(one) == described_nodes(other)


def test_the_kernel_tells_processor_memory_cards_and_rdma_devices(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: AMD EPYC 9654\n")
    (tmp_path / "meminfo").write_text("MemTotal:       1024 kB\n")
    port = tmp_path / "infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("100 Gb/sec (4X EDR)\n")
    for name, speed in (("eth0", "25000"), ("eth1", "-1"), ("veth0", "10000")):
        (tmp_path / "net" / name).mkdir(parents=True)
        (tmp_path / "net" / name / "speed").write_text(f"{speed}\n")
        if name.startswith("eth"):
            (tmp_path / "net" / name / "device").mkdir()
    found = node_hardware(tmp_path, tmp_path)
    assert found.networks == {"eth0": 25_000}
    assert (found.cpu, found.memory_bytes) == ("AMD EPYC 9654", 1024**2)
    assert found.rdma == ("mlx5_0 port 1: 4: ACTIVE, 100 Gb/sec (4X EDR)",)


def test_a_kernel_that_tells_nothing_is_no_fault(tmp_path: Path) -> None:
    found = node_hardware(tmp_path, tmp_path)
    assert (found.cpu, found.memory_bytes, found.rdma) == ("", 0, ())


def test_clocks_are_a_line_for_each_gpu(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU-1, 9.0, 96.00.74, 1980 MHz, 2619 MHz, 0x0'\n")
    program.chmod(0o755)
    assert gpu_clocks(str(tmp_path)) == ("GPU-1, 9.0, 96.00.74, 1980 MHz, 2619 MHz, 0x0",)
    assert gpu_clocks("/absent") == ()

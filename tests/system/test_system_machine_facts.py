"""Facts of a machine, from a played nvidia-smi and a played folder of the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from gate.system.machine import machine_facts

ROW = "GPU-1, NVIDIA H200, 143771 MiB, 580.95.05, Default, Disabled, Enabled"
SHELL = "#!/bin/sh"
SCRIPT = f"""{SHELL}
case $1 in
  topo) printf '\\t\\033[4mGPU0\\tNIC0\\033[0m\\nGPU0\\t X \\tNODE\\n' ;;
  *) echo '{ROW}' ;;
esac
"""


def _tool(folder: Path, script: str) -> str:
    path = folder / "nvidia-smi"
    path.write_text(script)
    path.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_gpus_and_their_wiring_are_told_in_the_words_of_the_driver(tmp_path: Path) -> None:
    found = machine_facts(_tool(tmp_path, SCRIPT), networks=tmp_path)
    (gpu,) = found.gpus
    assert (gpu.name, gpu.memory_total, gpu.ecc) == ("NVIDIA H200", "143771 MiB", "Enabled")
    assert (gpu.compute_mode, gpu.mig) == ("Default", "Disabled")
    assert [line.split() for line in found.topology] == [["GPU0", "NIC0"], ["GPU0", "X", "NODE"]]
    assert found.problem == ""


@pytest.mark.parametrize(
    "script", ["#!/bin/sh\nexit 9\n", "#!/bin/sh\necho No devices\n", "#!/nowhere\n"]
)
def test_a_tool_that_does_not_answer_is_no_fault(tmp_path: Path, script: str) -> None:
    found = machine_facts(_tool(tmp_path, script), networks=tmp_path)
    assert (found.gpus, found.topology) == ((), ())
    assert found.problem == "nvidia-smi lists no GPU"


def test_without_the_tool_the_network_is_told_all_the_same(tmp_path: Path) -> None:
    for name, speed in (("eth0", "25000\n"), ("eth1", "-1\n"), ("lo", "text"), ("ib0", "400000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "speed").write_text(speed)
    (tmp_path / "down").mkdir()
    (tmp_path / "down" / "speed").mkdir()
    found = machine_facts("/nowhere", networks=tmp_path)
    assert found.networks == {"eth0": 25000, "ib0": 400000}
    assert found.problem == "nvidia-smi was not found"

"""The parts that look at the machine: facts, tests, doctor, account."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from gate.pipelines.doctor.health import CheckResult, DoctorReport
from gpu_check.bench import PROJECT, TRAINING, Bench, here, last_line, output_of
from gpu_check.rows import Row, held, left_out, told
from gpu_check.trained import isolation_of, verdict_row

ACCOUNT = "61001"
COMMANDS = (
    ("GPUs", ("nvidia-smi", "-L")),
    ("driver by nvidia-smi", ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")),
    ("compute mode", ("nvidia-smi", "--query-gpu=compute_mode,mig.mode.current", "--format=csv")),
    ("account", ("id",)),
    ("C library", ("ldd", "--version")),
    ("shared memory", ("df", "-h", "/dev/shm")),  # noqa: S108 - looked at, not written
)
DRIVER_FILES = ("/proc/driver/nvidia/version", "/sys/module/nvidia/version")
PROGRAMS = ("git", "cc", "g++", "nvidia-smi", "nvidia-modprobe", "python", "setpriv")
TORCH = """
import torch
told = [torch.__version__, f"CUDA {torch.version.cuda}", f"available {torch.cuda.is_available()}"]
if torch.cuda.is_available():
    told += [str(torch.cuda.get_device_properties(0))]
    told += [f"{torch.cuda.device_count()} device(s)", str(torch.cuda.get_arch_list())]
print("; ".join(told))
"""


def facts(bench: Bench) -> Iterator[Row]:
    """Describe the machine; only importing torch can fail here."""
    del bench
    for what, command in COMMANDS:
        yield told(what, output_of(*command))
    for name in DRIVER_FILES:
        path = Path(name)
        yield told(name, path.read_text("utf-8") if path.exists() else "not here")
    devices = sorted(Path("/dev").glob("nvidia*"))
    shown = [f"{path} {_mode(path)}" for path in devices if not path.is_dir()]
    yield told("device files", "; ".join(shown) or "none")
    found = [f"{name} {'yes' if shutil.which(name) else 'no'}" for name in PROGRAMS]
    yield told("programs", ", ".join(found))
    status = Path("/proc/self/status").read_text("utf-8").splitlines()
    fences = [line for line in status if line.startswith(("Seccomp:", "NoNewPrivs:", "CapEff:"))]
    yield told("this process", "; ".join(fences))
    ended = _python(TORCH)
    yield held("torch", ended.stdout or last_line(ended.stderr), holds=ended.returncode == 0)


def tests(bench: Bench) -> Iterator[Row]:
    """Run the project's tests that need a GPU; on a CPU they are only collected."""
    options = ("-q",) if bench.gpu else ("-q", "--collect-only")
    marked = [
        str(path)
        for path in sorted((PROJECT / "tests").rglob("test_*.py"))
        if "mark.gpu" in path.read_text("utf-8")
    ]
    call = ("pytest", "-m", "gpu", "-p", "no:cacheprovider", *options, *marked)
    ended = subprocess.run(
        (sys.executable, "-m", *call),
        cwd=PROJECT,
        env=here(),
        capture_output=True,
        text=True,
        check=False,
    )
    what = "tests marked gpu" if bench.gpu else "tests marked gpu, collected"
    yield held(what, last_line(ended.stdout + ended.stderr), holds=ended.returncode == 0)
    for line in ended.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR")):
            yield held("test", line, holds=False)


def doctor(bench: Bench) -> Iterator[Row]:
    """Run `repro-gate doctor` on `digits`; it has to report the same driver as nvidia-smi."""
    clone = bench.repository(PROJECT / "examples")
    call = bench.gate("doctor", clone, "examples/digits/repro-gate.yml")
    report = DoctorReport.model_validate_json(call.document)
    for entry in report.examined:
        fix = f" ({entry.fix})" if entry.fix else ""
        # The examples' baselines were recorded on CPUs, so on a GPU the doctor is right to ask for
        # one.
        holds = entry.health is not CheckResult.FAIL or (bench.gpu and entry.name == "baseline")
        yield held(entry.name, f"{entry.health}: {entry.found}{fix}", holds=holds)
    if bench.gpu:
        driver = output_of(*dict(COMMANDS)["driver by nvidia-smi"]).partition(";")[0]
        said = [entry.found for entry in report.examined if driver in entry.found]
        yield held("the driver of nvidia-smi is told", driver, holds=bool(said))


def account(bench: Bench) -> Iterator[Row]:
    """Check that another account can open the device, and that the gate trains under it."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        yield left_out("another account", "needs root and setpriv")
        return
    device = "cuda" if bench.gpu else "cpu"
    bare = ("setpriv", "--reuid", ACCOUNT, "--regid", ACCOUNT, "--clear-groups", "--no-new-privs")
    code = f"import torch; print(torch.zeros(1, device='{device}'))"
    ended = subprocess.run(
        (*bare, sys.executable, "-c", code), cwd="/", capture_output=True, text=True, check=False
    )
    seen = last_line(ended.stdout) or last_line(ended.stderr)
    what = "torch under another account"
    if ended.returncode and not bench.gpu:
        yield left_out(what, seen)
    else:
        yield held(what, seen, holds=ended.returncode == 0)
    obstacle = _no_isolation(bench)
    if obstacle and not bench.gpu:
        yield left_out("the gate under another account", obstacle)
        return
    call = bench.gate_training("train.py", "embedding")
    yield verdict_row("the gate under another account", call)
    used = isolation_of(call)
    yield held("its isolation", used or obstacle, holds=used.startswith("uid"))


def _no_isolation(bench: Bench) -> str:
    """Return the doctor's reason why the gate cannot train under another account, or empty."""
    clone = bench.repository(PROJECT / "examples")
    call = bench.gate("doctor", clone, "examples/digits/repro-gate.yml")
    report = DoctorReport.model_validate_json(call.document)
    rows = [entry for entry in report.examined if entry.name == "isolation"]
    return next((entry.found for entry in rows if entry.health is not CheckResult.OK), "")


def _mode(path: Path) -> str:
    seen = path.stat()
    return f"{seen.st_mode & 0o777:04o} {seen.st_uid}:{seen.st_gid}"


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (sys.executable, "-c", code), cwd=TRAINING, capture_output=True, text=True, check=False
    )

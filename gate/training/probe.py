"""Asks the training's own Python about its environment, in the place where trainings run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from gate.errors import DocumentError, RunError
from gate.isolation.modes import Isolation
from gate.isolation.process_request import Processes, ProcessRequest
from gate.settings.gate_settings import Device, GateSettings
from gate.system.files.port import Files
from gate.system.machine import DeviceFile, GpuTried, TrainingSeen
from gate.text.strict_json import parse_json
from gate.text.untrusted_text import last_lines
from gate.training.child_environment import child_environment
from gate.training.environment import MAX_PACKAGES
from gate.training.launch import run_folders
from gate.training.run_folders import install_harness
from gate.training.runs import PlannedRun, RunFolders, RunMode

PROBE_SECONDS = 180.0
PROBE_OUTPUT_BYTES = 1024**2
COMMAND_NOT_FOUND = 127
MAX_TEXT = 200
MAX_GPUS = 64
MIB = 1024**2
# far above any version: CUDA 13.2 is 13020
MAX_CUDA = 10**6
ANSWER = b"repro-gate-doctor:"
NO_PYTHON_HINT = "Install Python 3 where the training runs, and put it on PATH."
NO_TORCH_HINT = (
    "Install torch where the training runs: in isolation.image, in the job's container, or in the "
    "environment that the gate is called from."
)
PROBE = """
import glob, json, os, re, stat, sys
folder, device = sys.argv[1:]
sys.path.insert(0, folder)
import torch
from repro_gate_harness import cuda
from repro_gate_harness.lifecycle import environment_survey
from repro_gate_harness.output import Problems
gpus, refusal, supports, parts = [], "", 0, None
if device != "cpu":
    try:
        torch.cuda.init()
        # of one GPU, as most trainings have it: from here on all of them are in use
        parts = environment_survey.parts(Problems())
        for index in range(torch.cuda.device_count()):
            torch.zeros(1, device=f"cuda:{index}")
            facts = torch.cuda.get_device_properties(index)
            gpus.append([facts.name, str(getattr(facts, "uuid", "")), facts.total_memory])
    except Exception as error:
        refusal = str(error).strip()
    supports = cuda.newest_supported_version()
files = []
for path in sorted(glob.glob("/dev/nvidia*")):
    about = os.stat(path)
    if re.fullmatch(r"/dev/nvidia(ctl|-uvm|[0-9]+)", path) and stat.S_ISCHR(about.st_mode):
        try:
            os.close(os.open(path, os.O_RDWR))
            why = ""
        except OSError as error:
            why = str(error.strerror)
        files.append([path, about.st_mode & 0o7777, about.st_gid, why])
hidden = [
    f"{name}={os.environ[name]}"
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
    if os.environ.get(name, "all") in ("", "-1", "void", "none", "NoDevFiles")
]
tried = {
    "built_for": torch.version.cuda or "",
    "supports": supports,
    "refusal": refusal,
    "hidden_by": hidden[0] if hidden else "",
    "files": files,
}
try:
    there = os.statvfs("/dev/shm")
    shm = there.f_blocks * there.f_frsize
except OSError:
    shm = None
parts = parts or environment_survey.parts(Problems())
installed = environment_survey.packages(Problems())
packages = {"packages": installed.packages, "origins": installed.origins}
seen = {"parts": parts, **packages, "gpus": gpus, "tried": tried, "shm_bytes": shm}
print("repro-gate-doctor:" + json.dumps(seen))
"""


def probe_training(  # noqa: PLR0913 - as a gate call has them
    settings: GateSettings,
    isolation: Isolation,
    folder: Path,
    files: Files,
    processes: Processes,
    host: Mapping[str, str],
    *,
    read: Callable[[bytes, bool], TrainingSeen] | None = None,
) -> TrainingSeen:
    """Start the training's Python below `folder`, as for a strict run but without the script.

    Its answer is untrusted text, because the training's site-packages can print anything. `read`
    gets the output and whether it timed out; None means `read_answer`.
    """
    folders = run_folders(folder)
    for place in (folders.tree, folders.home, folders.tmp, folders.out):
        files.fresh_folder(place, mode=0o700)
        for account in isolation.own_accounts:
            files.give_to(place, account.uid, account.gid)
    install_harness(files, folders.harness)
    env = _environment(settings, isolation, folders, host)
    device = settings.train.device.value if settings.train.device is Device.CPU else "any"
    for python in _interpreters(settings.train.command):
        request = ProcessRequest(
            argv=(python, "-c", PROBE, str(folders.harness), device),
            env=env,
            workdir=folders.tree,
            timeout_seconds=PROBE_SECONDS,
            output_limit_bytes=PROBE_OUTPUT_BYTES,
            credentials=isolation.credentials,
            network=isolation.network,
            container=isolation.container,
            writable=(folders.tree, folders.home, folders.tmp, folders.out),
            readable=(folders.harness,),
        )
        try:
            result = processes.run(request, lambda _: None)
        except RunError as error:
            problem = error.message
            # a program of the checkout has its own remedy
            hint = error.hint if "/" in python else NO_PYTHON_HINT
            continue
        if result.exit_code == COMMAND_NOT_FOUND:
            problem, hint = f"{python}: not found where the training runs", NO_PYTHON_HINT
            continue
        return (read or read_answer)(result.output, result.timed_out)
    return TrainingSeen(problem=problem, hint=hint)


def _environment(
    settings: GateSettings, isolation: Isolation, folders: RunFolders, host: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of a strict run without those that start the harness."""
    variables = child_environment(
        PlannedRun(label="doctor", mode=RunMode.STRICT),
        settings,
        folders,
        isolation.host_variables(host, settings.train.pass_env),
    )
    # the probe calls the harness itself; a started harness would only watch the probe
    env = {name: text for name, text in variables.items() if not name.startswith("REPRO_GATE_")}
    env.pop("PYTHONPATH")
    return env


def _interpreters(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command's own Python if it names one, or else the names that an image may have."""
    named = Path(command[0]).name.startswith("python")
    return (command[0],) if named else ("python", "python3")


def read_answer(output: bytes, timed_out: bool) -> TrainingSeen:  # noqa: FBT001 - the answer's only word
    """Return what the probe's line says; if there is none, why."""
    # libraries print on import, so only a line with this prefix is the probe's
    lines = [line for line in output.splitlines() if line.startswith(ANSWER)]
    if not lines:
        if timed_out:
            return TrainingSeen(problem=f"its Python timed out after {PROBE_SECONDS:g} s")
        last = (last_lines(output) or ("no answer",))[-1]
        hint = NO_TORCH_HINT if b"No module named 'torch'" in output else ""
        return TrainingSeen(problem=f"its Python failed: {last}", hint=hint)
    try:
        seen = parse_json(lines[-1].removeprefix(ANSWER), "the training's Python")
    except DocumentError as error:
        return TrainingSeen(problem=f"its Python gave an unexpected answer: {error.message}")
    if not isinstance(seen, dict):
        return TrainingSeen(problem="its Python gave an unexpected answer")
    parts, tried, shm = seen.get("parts"), seen.get("tried"), seen.get("shm_bytes")
    packages, origins = seen.get("packages"), seen.get("origins")
    return TrainingSeen(
        parts=_texts(parts) if isinstance(parts, dict) else {},
        packages=tuple(map(_text, packages[:MAX_PACKAGES])) if isinstance(packages, list) else (),
        origins=_texts(origins) if isinstance(origins, dict) else {},
        gpus=tuple(_gpu(row) for row in _rows(seen.get("gpus"), 3)),
        tried=_tried(tried) if isinstance(tried, dict) else GpuTried(),
        shm_bytes=shm if isinstance(shm, int) else None,
    )


def _rows(value: object, length: int) -> list[list[object]]:
    """Return the rows of this length in a list, and none for any other value: it is untrusted."""
    rows = value[:MAX_GPUS] if isinstance(value, list) else []
    return [row for row in rows if isinstance(row, list) and len(row) == length]


def _gpu(row: list[object]) -> str:
    name, uuid, memory = row
    room = f" ({memory // MIB:,} MiB)" if isinstance(memory, int) else ""
    # the form for isolation.gpus and NVIDIA_VISIBLE_DEVICES; torch gives the UUID without that
    # prefix
    kind = "MIG" if " MIG " in _text(name) else "GPU"
    return f"{_text(name)}{f' {kind}-{_text(uuid)}' if uuid else ''}{room}"


def _tried(tried: Mapping[str, object]) -> GpuTried:
    supports = tried.get("supports")
    return GpuTried(
        built_for=_text(tried.get("built_for")),
        supports=supports if isinstance(supports, int) and 0 <= supports < MAX_CUDA else 0,
        refusal=_text(tried.get("refusal")),
        hidden_by=_text(tried.get("hidden_by")),
        files=tuple(
            DeviceFile(path=_text(path), mode=mode & 0o7777, gid=gid, refusal=_text(refusal))
            for path, mode, gid, refusal in _rows(tried.get("files"), 4)
            if isinstance(mode, int) and isinstance(gid, int)
        ),
    )


def _text(text: object) -> str:
    """Return the value as one printable line, cut at a limit."""
    lines = last_lines(str(text)[:MAX_TEXT].encode()) if text is not None else ()
    return " ".join(lines)


def _texts(parts: Mapping[object, object]) -> dict[str, str]:
    return {str(name)[:MAX_TEXT]: str(text)[:MAX_TEXT] for name, text in parts.items()}

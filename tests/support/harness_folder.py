"""Write the files that a harness would leave, so that a test can corrupt one of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ENVIRONMENT = {"python": "3.11.7", "torch": "2.13.0", "device": "cpu", "world_size": "1"}


def exact(value: float, dtype: str = "float32") -> dict[str, str]:
    return {"dtype": dtype, "hex": value.hex()}


def step_line(step: int, /, **changes: object) -> dict[str, object]:
    line = {
        "step": step,
        "optimizer": 0,
        "loss": exact(1.0 / 2**step),
        "backwards": 1,
        "parameters": f"sha256:{step:064x}",
        "seconds": None if step == 1 else 0.25,
    }
    return {**line, **changes}


def safetensors_bytes(tensors: Mapping[str, tuple[str, list[int], bytes]]) -> bytes:
    entries, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += content
    return safetensors_of(entries, data)


def safetensors_of(header: object, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@dataclass(frozen=True, kw_only=True)
class HarnessFolder:
    """The output folder of one run; each method writes one file of one process."""

    path: Path
    rank: int = 0
    pid: int = 11

    def of(self, *, rank: int = 0, pid: int = 11) -> HarnessFolder:
        return HarnessFolder(path=self.path, rank=rank, pid=pid)

    def file(self, kind: str, suffix: str) -> Path:
        return self.path / f"{kind}-r{self.rank}-{self.pid}{suffix}"

    def attest(self, **changes: object) -> None:
        document = {"pid": self.pid, "rank": self.rank, "applied": {"seed": "42"}, "problems": []}
        self.file("process", ".json").write_text(json.dumps({**document, **changes}))

    def untrained(self, **changes: object) -> None:
        document: dict[str, object] = {"pid": self.pid, "rank": self.rank, "torch": True}
        document |= {"backwards": 0, "stopped": False, "imported": ()}
        self.file("untrained", ".json").write_text(json.dumps({**document, **changes}))

    def ended(self, *exceptions: str, **changes: object) -> None:
        document: dict[str, object] = {"pid": self.pid, "rank": self.rank, "trained": True}
        document |= {"stopped": False, "exceptions": exceptions}
        self.file("ended", ".json").write_text(json.dumps({**document, **changes}))

    def steps(self, *lines: Mapping[str, object]) -> None:
        self._lines("steps", lines)

    def metrics(self, *lines: Mapping[str, object]) -> None:
        self._lines("metrics", lines)

    def overrides(self, *lines: Mapping[str, object]) -> None:
        self._lines("overrides", lines)

    def children(self, *lines: Mapping[str, object]) -> None:
        self._lines("children", lines)

    def sources(self, *lines: Mapping[str, object]) -> None:
        self._lines("sources", lines)

    def _lines(self, kind: str, lines: tuple[Mapping[str, object], ...]) -> None:
        self.file(kind, ".jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def state(self, weights: bytes = b"weights.") -> None:
        content = safetensors_bytes({"model/0/weight": ("F32", [len(weights) // 4], weights)})
        self.file("state", ".safetensors").write_bytes(content)

    def operator_audit(self, **changes: object) -> None:
        empty = dict.fromkeys(("refused", "uses", "modules", "autotuners", "extensions"), ())
        document = {"pid": self.pid, "rank": self.rank, "dropped": 0, **empty}
        self.file("operators", ".json").write_text(json.dumps({**document, **changes}))

    def summary(self, **changes: object) -> None:
        document = {
            "steps": 2,
            "stopped_by": "max_steps",
            "environment": ENVIRONMENT,
            "peak_memory_bytes": 1000,
            "device_memory_bytes": 0,
            "problems": [],
        }
        self.file("summary", ".json").write_text(json.dumps({**document, **changes}))

    def whole(self, **summary: object) -> None:
        """Write all files of a successful process with two steps."""
        self.attest()
        self.steps(step_line(1), step_line(2))
        self.state()
        self.summary(**summary)


def override_line(**changes: object) -> dict[str, object]:
    """Return a line of the override log: cuDNN's benchmark turned on at line 12 of the script."""
    return {
        "step": 3,
        "kind": "switch",
        "name": "cudnn_benchmark",
        "before": "off",
        "after": "on",
        "file": "train.py",
        "line": 12,
        "closed": False,
        "restored": False,
        **changes,
    }


def child_line(*words: str, **changes: object) -> dict[str, object]:
    """Return a line about a process that line 5 of the script started."""
    line = {"words": words, "shell": False, "kept": True, "file": "train.py", "line": 5}
    return {**line, **changes}


def source_line(**changes: object) -> dict[str, object]:
    """Return a line about a source, which line 7 of the script read."""
    return {
        "step": 2,
        "kind": "entropy",
        "call": "uuid.uuid4",
        "before": "",
        "after": "",
        "file": "train.py",
        "line": 7,
        "stack": ["train.py:7 shuffled", "train.py:30 <module>"],
        "worker": False,
        "thread": False,
        **changes,
    }

"""What tasks on nodes print reaches the gate whole, and an agent that is stopped leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gate.isolation.job_folder import STOP, end_file
from gate.isolation.node_steps import CHUNK_BYTES, GRACE_SECONDS
from gate.isolation.own_programs import AGENT, CLIENT, python_command

LINES = [f"rank {{}} line {number}\n".encode() for number in range(200)]


def test_lines_that_are_written_in_pieces_are_handed_on_once_and_whole(tmp_path: Path) -> None:
    code = f"import sys; sys.path += sys.argv[1:-4]; {CLIENT}(*sys.argv[-4:])"
    words = (sys.executable, "-c", code, *sys.path, str(tmp_path), "2", "1", "train")
    with subprocess.Popen(words, stdout=subprocess.PIPE) as client:
        while not (tmp_path / "step-1").exists():
            time.sleep(0.01)
        texts = [b"".join(LINES).replace(b"{}", b"%d" % rank) for rank in range(2)]
        # longer than one reading, and without an end of line
        texts[1] += CHUNK_BYTES * b"x"
        with (
            (tmp_path / "step-1.0.out").open("wb") as one,
            (tmp_path / "step-1.1.out").open("wb") as other,
        ):
            for start in range(0, len(texts[1]), 1999):
                for file, text in ((one, texts[0]), (other, texts[1])):
                    file.write(text[start : start + 1999])
                    file.flush()
                time.sleep(0.003)
        for rank in range(2):
            (tmp_path / f"step-1.{rank}.exit").write_text("0")
        assert client.stdout is not None
        printed = client.stdout.read()
        assert client.wait() == 0
    of_rank = [line for line in printed.splitlines(keepends=True) if line.startswith(b"rank 0")]
    assert b"".join(of_rank) == texts[0]
    assert printed.replace(texts[0], b"").count(b"x") == CHUNK_BYTES
    assert sorted(printed) == sorted(b"".join(texts))
    assert (tmp_path / "step-1.end").exists()


# writes on, whatever it is told; its number is where nobody removes it
STUBBORN = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
folder, account = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
folder.mkdir()
account.with_suffix(".new").write_text(str(os.getpid()))
account.with_suffix(".new").rename(account)
for number in range(100000):
    (folder / f"state-{number}").touch()
    time.sleep(0.01)
"""
# nothing, or what it has been told by the folder when the signals come
TOLD = {"nothing": None, "a step's end": end_file(1), "the job's end": STOP}


def test_an_agent_that_is_cancelled_at_any_time_leaves_neither_a_task_nor_a_file(
    tmp_path: Path,
) -> None:
    agents = {}
    for name in TOLD:
        job = tmp_path / name
        job.mkdir()
        command = [sys.executable, "-c", STUBBORN, f"{job}.runs-0", f"{job}.account"]
        (job / "step-1").write_text(json.dumps({"command": command, "tasks": 1}))
        words = (*python_command(AGENT, sys.path), str(job), f"{job}.runs", "60", "0")
        agents[name] = subprocess.Popen(words)
    for name, told in TOLD.items():
        while not (tmp_path / f"{name}.account").exists():
            time.sleep(0.01)
        if told:
            (tmp_path / name / told).touch()
    # again and again: while it waits for the task, while it ends it, while it removes the folder
    until = time.monotonic() + 2 * GRACE_SECONDS
    while time.monotonic() < until:
        time.sleep(0.1)
        for agent in agents.values():
            agent.send_signal(signal.SIGTERM)
    for name, agent in agents.items():
        assert agent.wait(30) == 0, name
        assert not (tmp_path / f"{name}.runs-0").exists(), name
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / f"{name}.account").read_text()), 0)

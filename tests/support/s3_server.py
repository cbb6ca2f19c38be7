"""A real S3 server on this machine, with one bucket, `data`."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

LOGIN = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "the-secret-of-the-test",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Yield the server's address; skips the test if moto is not installed."""
    beside = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    program = shutil.which("moto_server", path=beside)
    if program is None:
        pytest.skip("moto_server is not on the PATH: make test-data")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with (folder / "moto.log").open("wb") as log:
        server = subprocess.Popen(
            (program, "-H", "127.0.0.1", "-p", str(port)), stdout=log, stderr=log
        )
    try:
        for _ in range(600):
            try:
                requests.put(f"{url}/data", timeout=60)
                break
            except requests.ConnectionError:
                time.sleep(0.1)
        yield url
    finally:
        server.kill()
        server.wait()

"""Coverage-guided fuzzing of everything that reads untrusted bytes: `make fuzz`.

An input that raises anything but a `GateError`, or takes too long or too much memory, is a crash;
libFuzzer leaves it beside the corpus. Each becomes a fix and a test.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import atheris

from gate.errors import GateError

with atheris.instrument_imports(include=["gate"]):
    from fuzz_targets import TARGETS, seeds

MAX_SECONDS = 2
MAX_MEGABYTES = 500
# a package has ten thousand at least
MAX_INPUT_BYTES = 16384


def main() -> None:
    """Fuzz one target for the given time; the exit code is libFuzzer's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=TARGETS, nargs="?")
    parser.add_argument("--list", action="store_true", help="name all targets, and end")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", type=Path, default=Path("build/fuzz"), help="kept between runs")
    arguments = parser.parse_args()
    if arguments.list or arguments.target is None:
        print(*TARGETS)
        return
    corpus = arguments.corpus / arguments.target
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(arguments.target)):
        (corpus / f"seed-{number}").write_bytes(seed)
    read = TARGETS[arguments.target]

    def one_input(data: bytes) -> None:
        try:
            read(data)
        except GateError:
            return

    options = [
        f"-max_total_time={arguments.seconds}",
        f"-timeout={MAX_SECONDS}",
        f"-rss_limit_mb={MAX_MEGABYTES}",
        f"-max_len={MAX_INPUT_BYTES}",
        f"-artifact_prefix={arguments.corpus}/crash-{arguments.target}-",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

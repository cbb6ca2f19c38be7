"""One thing varied in each run, with a played training: real processes and harness, no torch."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from each_row import each_row
from gate_bench import Bench
from shaken_training import SOURCES, Shaken

from gate.comparison.measurements import ShakenThing, ShakenTraining, ShakeResult
from gate.errors import RunError, SettingsError
from gate.isolation.modes import Isolation, IsolationMode
from gate.pipelines.shake import (
    OUT_OF_BUDGET,
    Asked,
    cards_of,
    checked_budget,
    chosen_variations,
    shake,
    why_one_order,
)
from gate.report.shaken import shaken_headline, shaken_sections
from gate.settings.variations import BY_NAME, GPU_INDEX, VARIATIONS
from gate.system.machine import Gpu, GpusSeen

# variation, the call that is named, and a module whose comment marks the line
SCRIPTS = [
    ("working-directory", "os.getcwd", "import os\ndef amount(): return os.getcwd()  # here\n"),
    ("working-directory", "__file__", "def amount(): return __file__  # here\n"),
    (
        "output-path",
        "tempfile.gettempdir",
        "import tempfile\ndef amount(): return tempfile.gettempdir()  # here\n",
    ),
    (
        "output-path",
        'os.environ["HOME"]',
        'import os\ndef amount(): return os.path.expanduser("~")  # here\n',
    ),
    (
        "clock",
        "time.time",
        (
            "import os, time\n"
            "def amount(): return time.time() - os.stat('depends.py').st_mtime > 2e7  # here\n"
        ),
    ),
    (
        "clock",
        "datetime.now",
        (
            "import datetime, os\n"
            "made = datetime.datetime.fromtimestamp(os.stat('depends.py').st_mtime)\n"
            "def amount(): return (datetime.datetime.now() - made).days > 200  # here\n"
        ),
    ),
    (
        "clock",
        "time.strftime",
        "import os, time\ndef amount(): return int(time.strftime('%j'))  # here\n",
    ),
    (
        "time-zone",
        "datetime.fromtimestamp",
        (
            "from datetime import datetime\n"
            "def amount(): return datetime.fromtimestamp(0).hour  # here\n"
        ),
    ),
    (
        "time-zone",
        "time.localtime",
        "import time\ndef amount(): return time.localtime(0).tm_hour  # here\n",
    ),
    (
        "host-name",
        "socket.gethostname",
        "import socket\ndef amount(): return socket.gethostname()  # here\n",
    ),
    (
        "host-name",
        "platform.node",
        "import platform\ndef amount(): return platform.node()  # here\n",
    ),
    (
        "umask",
        "os.stat",
        (
            "import os\n"
            "def amount():\n"
            "    open('made', 'w').close()\n"
            "    return os.stat('made').st_mode  # here\n"
        ),
    ),
    (
        "directory-order",
        "os.listdir",
        "import os\ndef amount(): return os.listdir('.')  # here\n",
    ),
    (
        "directory-order",
        "pathlib.iterdir",
        (
            "from pathlib import Path\n"
            "def amount(): return [path.name for path in Path('.').iterdir()]  # here\n"
        ),
    ),
    (
        "directory-order",
        "os.walk",
        "import os\ndef amount(): return [names for _, _, names in os.walk('.')]  # here\n",
    ),
    (
        "hash-seed",
        "set",
        (
            "names = [f'name {number}' for number in range(50)]\n"
            "def amount(): return list(set(names))  # here\n"
        ),
    ),
    ("hash-seed", "hash", "def amount(): return hash('text')  # here\n"),
    (
        "cpu-load",
        "os.getloadavg",
        (
            "import os\n"
            "def mine(name):\n"
            "    try: return name.isdigit() and os.getsid(int(name)) == os.getsid(0)\n"
            "    except OSError: return False\n"
            "def amount():\n"
            "    os.getloadavg()  # here\n"
            "    return sum(map(mine, os.listdir('/proc'))) > 1\n"
        ),
    ),
    (
        "thread-delays",
        "threading.Thread",
        (
            "import sys, threading\n"
            "order = []\n"
            "def amount():\n"
            "    # a thread keeps the interpreter until it waits for something\n"
            "    sys.setswitchinterval(100)\n"
            "    threads = [threading.Thread(target=order.append, args=(n,)) for n in range(2)]\n"
            "    for thread in threads: thread.start()  # here\n"
            "    for thread in threads: thread.join()\n"
            "    return order\n"
        ),
    ),
    (
        "uninitialized-memory",
        "numpy.empty",
        "import numpy\ndef amount(): return bool((numpy.empty(9) == 85).all())  # here\n",
    ),
]


@pytest.fixture
def project(tmp_path: Path) -> Shaken:
    return Shaken(tmp_path / "project")


def shaken(priced: Bench, only: str | None = None, budget: float | None = None) -> ShakenTraining:
    asked = Asked(variations=chosen_variations(only, None), budget_seconds=budget)
    return shake(priced.request(), priced.adapters(), asked)


def one(priced: Bench, name: str) -> ShakenThing:
    (thing,) = shaken(priced, name).things
    return thing


@pytest.mark.parametrize(("name", "call", "source"), SCRIPTS)
def test_what_a_script_hangs_on_is_found_with_the_line_that_reads_it(
    priced: Bench, project: Shaken, name: str, call: str, source: str
) -> None:
    project.hangs_on(source)
    thing = one(priced, name)
    assert (thing.result, thing.reason) == (ShakeResult.DIFFERS, "")
    assert thing.first is not None
    assert (thing.first.name, thing.first.step) == ("loss", 3)
    line = next(n for n, text in enumerate(source.splitlines(), 1) if text.endswith("# here"))
    assert (f"depends.py:{line}", call) in {(read.place, read.call) for read in thing.readings}


def test_a_script_that_hangs_on_nothing_passes_all(priced: Bench) -> None:
    found = shaken(priced)
    assert [thing.name for thing in found.things] == [variation.name for variation in VARIATIONS]
    not_tried = {thing.name: thing.reason for thing in found.things if not thing.tried}
    not_tried.pop("locale", None)
    assert not_tried == {
        "worker-count": "the script makes no torch DataLoader",
        "thread-delays": "the script starts no thread of Python's",
        "free-gpu-memory": "the training ran on the CPU",
        "gpu-index": "the training ran on the CPU",
    }
    assert (found.repeatable, found.dependent) == (True, ())
    assert shaken_headline(found).startswith("The result depends on none of the ")
    assert {path.name for path in (priced.out / "evidence").glob("*-*")} == {"strict-1", "strict-2"}


LOCALE = "import locale\nlocale.setlocale(locale.LC_ALL, '')\n"


def test_a_script_that_formats_by_the_locale_is_found(
    priced: Bench, project: Shaken, tmp_path: Path
) -> None:
    program = shutil.which("localedef")
    if program is None or not Path("/usr/share/i18n/locales/de_DE").exists():
        pytest.skip("no sources of locales on this machine")
    made = tmp_path / "locales" / "de_DE.UTF-8"
    made.parent.mkdir()
    words = (program, "--no-archive", "-i", "de_DE", "-f", "UTF-8", str(made))
    subprocess.run(words, check=True, capture_output=True)
    project.with_variable("LOCPATH", str(made.parent))
    project.hangs_on(f"{LOCALE}def amount(): return locale.str(1.5)  # here\n")
    thing = one(priced, "locale")
    assert (thing.result, thing.varied) == (ShakeResult.DIFFERS, "de_DE.UTF-8")
    assert ("depends.py:3", "locale.str") in {(read.place, read.call) for read in thing.readings}


def test_a_machine_with_one_locale_is_told(priced: Bench, project: Shaken, tmp_path: Path) -> None:
    project.with_variable("LOCPATH", str(tmp_path / "none"))
    thing = one(priced, "locale")
    assert thing.result is ShakeResult.NOT_TRIED
    assert thing.reason.startswith("no second locale is installed where the training runs")


def test_what_the_settings_set_is_the_trainings_own(priced: Bench, project: Shaken) -> None:
    project.with_variable("TZ", "Asia/Tokyo")
    thing = one(priced, "time-zone")
    assert thing.reason == "train.env sets TZ, so it is part of the training"


def test_a_run_that_fails_names_the_line_that_raised(priced: Bench, project: Shaken) -> None:
    project.hangs_on("import socket\ndef amount(): assert socket.gethostname() != 'another-host'\n")
    thing = one(priced, "host-name")
    assert thing.result is ShakeResult.FAILS
    assert "AssertionError" in thing.reason
    assert [read.place for read in thing.readings] == ["depends.py:2"]


def test_a_training_that_fails_unshaken_is_an_error(priced: Bench, project: Shaken) -> None:
    project.hangs_on("def amount(): raise ValueError\n")
    with pytest.raises(RunError, match=r"^run strict-1: "):
        shaken(priced, "clock")


def test_a_training_that_does_not_repeat_ends_after_two_runs(
    priced: Bench, project: Shaken
) -> None:
    project.hangs_on("import os\ndef amount(): return os.urandom(8)\n")
    found = shaken(priced)
    assert (found.repeatable, found.things) == (False, ())
    assert shaken_headline(found) == (
        "Not repeatable: runs in which nothing is varied differ from step 3 on: loss. So no "
        "difference can be put down to a variation."
    )


def test_a_rare_fault_is_not_put_down_to_a_variation(
    priced: Bench, project: Shaken, tmp_path: Path
) -> None:
    counted = tmp_path / "runs"
    project.hangs_on(
        f"def amount():\n    with open({str(counted)!r}, 'a+') as file:\n"
        "        file.write('.')\n        return max(file.tell(), 2)\n"
    )
    found = shaken(priced, "clock")
    assert (found.repeatable, len(found.things)) == (False, 1)
    assert shaken_headline(found).startswith("Not repeatable: ")
    assert shaken_sections(found) == ()


def test_no_process_of_the_load_is_left(priced: Bench) -> None:
    assert one(priced, "cpu-load").result is ShakeResult.EQUAL
    left = [
        path
        for path in Path("/proc").glob("[0-9]*/environ")
        if str(priced.out).encode() in _bytes(path)
    ]
    assert left == []


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_training_that_forges_what_was_varied_changes_nothing(
    priced: Bench, project: Shaken
) -> None:
    forged = "told.append(SourceRecord('varied', 'clock', CodeLine('a.py', 1), [], after='x'))\n"
    forged += forged.replace("varied", "reading")
    imports = (
        "from repro_gate_harness.sources.recorded import SourceRecord\n"
        "from repro_gate_harness.user_code import CodeLine\n"
    )
    script = (project.path / "train.py").read_text()
    project.write("train.py", script.replace(SOURCES, imports + forged + SOURCES))
    project.hangs_on("import os\ndef amount(): return os.urandom(8)\n")
    gated = priced.gate()
    assert gated.verdict.outcome.value == "nondeterministic"


class Ticking:
    """A clock that moves on by so many seconds at each look."""

    def __init__(self, seconds: float) -> None:
        self._now = datetime(2026, 1, 1, tzinfo=UTC)
        self._step = timedelta(seconds=seconds)

    def now(self) -> datetime:
        self._now += self._step
        return self._now

    def seconds(self) -> float:
        return self._now.timestamp()


def test_beyond_the_budget_nothing_is_tried(priced: Bench) -> None:
    adapters = replace(priced.adapters(), clock=Ticking(200))
    asked = Asked(variations=chosen_variations("clock,umask", None), budget_seconds=100)
    found = shake(priced.request(), adapters, asked)
    assert [thing.result for thing in found.things] == [ShakeResult.NOT_TRIED] * 2
    assert {thing.reason for thing in found.things} == {OUT_OF_BUDGET}


@each_row(
    ("only", "skip", "message"),
    [
        ("clock", "umask", "--only and --skip cannot be combined"),
        ("clok", None, "--only clok: there is no such variation"),
        (None, "clock,umsk", "--skip umsk: there is no such variation"),
        ("", None, "--only names no variation"),
        (" , ", None, "--only names no variation"),
        (None, ",".join(BY_NAME), "--skip names every variation: nothing is left"),
    ],
)
def test_a_choice_that_cannot_be_met_is_one_error(
    only: str | None, skip: str | None, message: str
) -> None:
    with pytest.raises(SettingsError, match=message) as refused:
        chosen_variations(only, skip)
    assert refused.value.hint


def test_the_choice_keeps_the_order_of_the_list() -> None:
    assert [one.name for one in chosen_variations("umask, clock", None)] == ["clock", "umask"]
    left = chosen_variations(None, "clock")
    assert [one.name for one in left] == [name for name in BY_NAME if name != "clock"]


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_budget_is_a_time(seconds: float) -> None:
    with pytest.raises(SettingsError, match="must be more than 0 seconds"):
        checked_budget(seconds)


def _gpus(*names: str) -> GpusSeen:
    return GpusSeen(
        gpus=tuple(Gpu(uuid=f"GPU-{n}", name=name, driver="1") for n, name in enumerate(names))
    )


ALONE = Isolation(mode=IsolationMode.NONE, credentials=None, reason="a test")


@each_row(
    ("gpus", "host", "cards", "why"),
    [
        (_gpus("H100", "H100"), {}, ("0", "1"), ""),
        (_gpus("H100", "H100"), {"CUDA_VISIBLE_DEVICES": "3, 1"}, ("3", "1"), ""),
        (_gpus("H100"), {}, ("0",), "the training is given one GPU, or its container chooses"),
        (
            _gpus("H100", "H100"),
            {"CUDA_VISIBLE_DEVICES": "0,-1"},
            (),
            "the training is given one GPU, or its container chooses",
        ),
        (
            _gpus("H100", "L4"),
            {},
            ("0", "1"),
            "the machine's GPUs are of different models",
        ),
    ],
)
def test_gpus_are_named_in_another_order_where_there_are_two_alike(
    gpus: GpusSeen, host: dict[str, str], cards: tuple[str, ...], why: str
) -> None:
    assert cards_of(gpus, ALONE, host) == cards
    assert why_one_order(BY_NAME[GPU_INDEX], cards, gpus) == why

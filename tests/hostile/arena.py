"""A runner's folders with canaries in them, and the whole gate started there as a program."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from abilities import CONTAINER_IMAGE, gate_python
from attempt import PRELUDE, Attempt
from baseline_cases import FOLDER, folder_of
from fake_github import FakeGitHub
from gate_bench import Bench
from played_training import SCRIPT, SETTINGS, Project

from gate.baseline.folder import read_entry
from gate.baseline.record import with_digest
from gate.isolation.modes import IsolationMode
from gate.isolation.page_cache import new_proof
from gate.package.keys import generate_private_key, private_pem
from gate.pipelines.gate import record_baseline
from gate.settings.load import answering_digest, parse_settings
from gate.system.files.files import LocalFiles
from gate.text.documents import write_document

ROOT = Path(__file__).resolve().parents[2]
OWNER = 1001
# outside the temporary folders
ELSEWHERE = "/var/lib"
STEP_SECONDS = 400
FILES = LocalFiles()
TOKEN = "CANARY-of-the-token"
PASSPHRASE = "CANARY-of-the-pass-phrase"
PEM = private_pem(generate_private_key(), PASSPHRASE.encode())
# a line from the middle of the key, and what else nobody may ever see
INDEX_LOGIN = "ci:CANARY-of-the-index"
# Every credential that the program, or what it starts, knows by a variable. What a program of the
# machine may be handed stands in `MAY_SEE`.
CREDENTIALS = {
    "ACTIONS_RUNTIME_TOKEN": "CANARY-of-the-runtime",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "CANARY-of-the-identity",
    "AWS_SECRET_ACCESS_KEY": "CANARY-of-a-cloud",
    "DEPLOY_KEY": "CANARY-of-a-person",
    "GH_TOKEN": "CANARY-of-the-job",
    "GITHUB_TOKEN": "CANARY-of-the-job",
    "MLFLOW_TRACKING_PASSWORD": "CANARY-of-a-tracker",
    "MLFLOW_TRACKING_TOKEN": "CANARY-of-a-tracker",
    "PIP_INDEX_URL": f"https://{INDEX_LOGIN}@index.invalid/simple",
    "REPRO_GATE_PKCS11_PIN": "CANARY-of-a-token",
    "REPRO_GATE_REGISTRY_PASSWORD": "CANARY-of-a-registry",
    "UV_INDEX_PRIVATE_PASSWORD": "CANARY-of-the-index",
    "VAULT_TOKEN": "CANARY-of-a-vault",
}
# and by a file in the home of the step's account
HOME_FILES = {
    ".netrc": "machine index.invalid login ci password CANARY-of-the-index\n",
    ".config/pip/pip.conf": f"[global]\ntimeout = 60\n# https://{INDEX_LOGIN}@index.invalid\n",
    ".docker/config.json": '{"auths": {"x": {"identitytoken": "CANARY-of-a-registry"}}}',
    ".aws/credentials": "aws_secret_access_key = CANARY-of-a-cloud\n",
    ".vault-token": "CANARY-of-a-vault",
    ".git-credentials": "https://x:CANARY-of-the-job@github.com\n",
}
# and by a file that a variable names
NAMED_FILES = {"NETRC": ".netrc", "PIP_CONFIG_FILE": ".config/pip/pip.conf"}
# a key service and a remote of data are reached with these
_MACHINES = (b"CANARY-of-a-cloud", b"CANARY-of-a-person", b"CANARY-of-the-job")
MAY_SEE = {
    "signer": (*_MACHINES, b"CANARY-of-a-vault"),
    "dvc": _MACHINES,
    "git-lfs": _MACHINES,
}
# what the gate starts in the place of the real one; `seen` is what it leaves
PROGRAM = """#!{python} -I
import json, os, sys
place = {seen!r}
with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as file:
    json.dump(dict(os.environ), file)
if {name!r} != "signer": sys.exit(1)
sys.path[:0] = {folders!r}
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
key = Ed25519PrivateKey.from_private_bytes(bytes(32))
sys.stdout.buffer.write(
    key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    if sys.argv[1] == "public-key" else key.sign(sys.stdin.buffer.read())
)
"""
CANARIES = (b"CANARY", PEM.splitlines()[2])
DRIVER = """
import json, sys
sys.path[:0] = json.loads(sys.argv.pop(1))
limits = json.loads(sys.argv.pop(1))
from gate.isolation import sandboxed_start
sandboxed_start.LIMITS.update(limits)
from gate.cli import main
main()
"""
CHORUS = """
for path in sorted((here / "tries").iterdir()):
    asked = {**os.environ, "GATE_PROCESS": str(gate)}
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run([sys.executable, str(path)], env=asked, check=False, **both)
    # with its name in each line: what a run beside this one prints comes between them
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        print(line, "TRY", path.stem, flush=True)
"""


def settings_text(
    mode: IsolationMode, attempt: Attempt | None = None, elsewhere: Path = Path(ELSEWHERE)
) -> str:
    """The settings of an attempt, which may ask for more of `train` and for lower limits."""
    train = attempt.train if attempt else ""
    more = attempt.settings.replace("ELSEWHERE", str(elsewhere)) if attempt else ""
    start = f"version: 1\ntrain: {{command: python3 train.py, max_steps: 3{train}}}\n"
    if attempt and attempt.brought:
        # nothing in it but what it asks for: any wish beside that would be refused in its place
        return start + more
    asked = f"mode: {mode.value}"
    if mode is IsolationMode.CONTAINER:
        asked += f", image: '{os.environ[CONTAINER_IMAGE]}'"
        if attempt and "RLIMIT_NPROC" in attempt.limits:
            asked += f", pids: {attempt.limits['RLIMIT_NPROC']}"
    return f"{start}isolation: {{{asked}}}\n{more}"


@cache
def baseline(more: str = "") -> dict[str, bytes]:
    """What the clean training gives; isolation is no part of it, `more` of its settings is."""
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder) / "project")
        project.write("repro-gate.yml", SETTINGS.replace("max_steps: 3", f"max_steps: 3{more}"))
        project.commit()
        bench = Bench(project, Path(folder) / "out")
        recorded = record_baseline(bench.request(), bench.adapters(), "for the attempts")
        return folder_of(*recorded.entries)


def _given_files(attempt: Attempt) -> str:
    """The line of the attempt's settings that names the files of the training, if there is one."""
    _, name, files = attempt.train.partition(", files: ")
    return f"\n  files: {files}" if name else ""


@dataclass
class Arena:
    """The places of a runner below `root`; `go` starts the gate once."""

    root: Path
    mode: IsolationMode
    elsewhere: Path
    log: str = ""
    exit_code: int = -1
    base: str = ""
    head: str = ""
    loose_base: str = ""
    comments: list[str] = field(default_factory=list)
    statuses: list[dict[str, str]] = field(default_factory=list)
    before: dict[str, tuple[int, int, bytes]] = field(default_factory=dict)
    lock: str = ""
    programs: tuple[str, ...] = ()

    @property
    def work(self) -> Path:
        """The workspace."""
        return self.root / "work"

    @property
    def out(self) -> Path:
        """Where the gate writes."""
        return self.work / "out"

    @property
    def written(self) -> tuple[Path, ...]:
        """All in it; nothing of what a link there leads to."""
        return () if self.out.is_symlink() else tuple(self.out.rglob("*"))

    def prepare(self, attempt: Attempt, together: tuple[Attempt, ...] = ()) -> None:
        """Fill the runner's places, commit a clean training, and the hostile one on top of it."""
        project = Project(self.work)
        text = settings_text(self.mode, attempt, self.elsewhere).replace("{root}", str(self.root))
        if attempt.brought:
            (project.path / "repro-gate.yml").unlink()
        else:
            project.write("repro-gate.yml", text)
        for name, content in attempt.files.items():
            project.write(name, content)
        self._plant_programs(attempt)
        for name, data in baseline(_given_files(attempt)).items():
            project.write(f"{FOLDER}/{name}", data)
        project.write(".github/workflows/gate.yml", "on: pull_request\n")
        self.base = project.commit()
        if attempt.two_bases:
            loose = "compare: {tolerances: [{metric: '*', absolute: 99}]}\n"
            project.write("repro-gate.yml", text + loose)
            self.loose_base = project.commit()
            project.git("checkout", "-q", self.base)
        if attempt.brought:
            project.write("repro-gate.yml", text)
        script = CHORUS if together else attempt.script
        project.write("train.py", PRELUDE + script + SCRIPT + attempt.after)
        for one in together:
            project.write(f"tries/{one.name}.py", PRELUDE + one.script)
        if attempt.name == "weaker-rules-in-the-commit":
            weaker = settings_text(IsolationMode.NONE)
            project.write(
                "repro-gate.yml",
                f"{weaker}compare: {{tolerances: [{{metric: '*', absolute: 99}}]}}\n",
            )
        if self.lock:
            project.write("requirements.lock", self.lock)
        for name, destination in attempt.committed_links.items():
            (self.work / name).symlink_to(destination)
        self.head = project.play(**attempt.play)
        self._forge_entry(project, attempt)
        project.git("config", "http.https://github.com/.extraheader", "CANARY-of-the-checkout")
        project.write("gha-creds-1.json", "CANARY-of-a-cloud")
        project.write(".git/info/exclude", "gha-creds-*.json\nout/\n")
        self._plant()

    def _forge_entry(self, project: Project, attempt: Attempt) -> None:
        """Claim that the old numbers were recorded with the files that are committed now."""
        if attempt.name != "entry-for-its-own-files":
            return
        part = self.root / "part"
        part.mkdir()
        for name in ("train.py", "play.json"):
            shutil.copy2(project.path / name, part / name)
        (path,) = (project.path / FOLDER).glob("*.json")
        entry = read_entry(path.read_bytes(), path.name)
        settings = parse_settings((project.path / "repro-gate.yml").read_bytes(), "settings")
        files = answering_digest(FILES.tree_digest(part), settings)
        forged = entry.model_copy(update={"files_sha256": files})
        path.write_bytes(write_document(with_digest(forged)))
        shutil.rmtree(part)
        self.head = project.commit()

    def _plant_programs(self, attempt: Attempt) -> None:
        """Root's, on the step's search path."""
        self.programs = attempt.programs
        folders = [sysconfig.get_paths()["purelib"]]
        for name in self.programs:
            path = self.root / "programs" / name
            path.parent.mkdir(exist_ok=True)
            seen = str(self.seen(name))
            path.write_text(
                PROGRAM.format(python=gate_python(), seen=seen, name=name, folders=folders)
            )
            path.chmod(0o755)

    def seen(self, name: str) -> Path:
        """Where a program of the machine tells what it was handed."""
        return self.elsewhere / f"seen-{name}"

    def _event(self, base: str, branch: str) -> str:
        sides = {
            name: {"sha": sha, "ref": ref, "repo": {"full_name": "o/model"}}
            for name, sha, ref in (("head", self.head, "side"), ("base", base, branch))
        }
        event = {"pull_request": {"number": 7, **sides}, "secret": "CANARY-of-the-event"}
        return json.dumps(event)

    def for_the_loose_branch(self, limits: Mapping[str, int]) -> None:
        """Judge the head for another branch first, and then be what it was."""
        path = self.root / "workflow/event.json"
        event = path.read_text()
        path.write_text(self._event(self.loose_base, "loose"))
        self.go(limits)
        path.write_text(event)
        # what that call wrote is no part of the next one
        self.before = self.state()

    def _plant(self) -> None:
        planted = {
            "keys/gate.pem": PEM.decode(),
            "runner_temp/token": "CANARY-of-newer-checkouts",
            **{f"home/{name}": text for name, text in HOME_FILES.items()},
            **{f"logins/{name}": HOME_FILES[like] for name, like in NAMED_FILES.items()},
            "workflow/event.json": self._event(self.base, "main"),
            **{
                f"file_commands/{name}": ""
                for name in ("output", "env", "path", "state", "summary")
            },
        }
        for name, text in planted.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
        (self.root / "keys/gate.pem").chmod(0o600)
        (self.root / "tools").mkdir()
        shutil.copy("/usr/bin/id", self.root / "tools/id")
        if os.geteuid() == 0:
            for place in (self.work, self.root / "runner_temp", self.root / "file_commands"):
                FILES.give_to(place, OWNER, OWNER)
        (self.root / "tools/id").chmod(0o4755)
        self._open_to_all()
        self.before = self.state()
        # looking at them has moved these times
        os.utime(self.root / "open/old", (1000, 2000))
        os.utime(self.root / "open/read", (1000, 2000))

    def _open_to_all(self) -> None:
        """Places that every account can write, of each kind that is common on machines."""
        top = self.root / "open"
        folders = {"third": 0o777, "closed": 0o755, "closed/sticky": 0o1777, "closed/sized": 0o1777}
        top.mkdir()
        for name, mode in folders.items():
            (top / name).mkdir()
            (top / name).chmod(mode)
        (self.work / "open").mkdir()
        (self.work / "open").chmod(0o777)
        for name in ("file", "old", "read"):
            (top / name).write_text("as it was")
            (top / name).chmod(0o644 if name == "read" else 0o666)
        (top / "closed/second-name").hardlink_to(top / "file")
        (top / "elsewhere").write_text(str(self.elsewhere))
        if os.geteuid() == 0:
            os.chown(top / "third", OWNER, OWNER)

    def state(self) -> dict[str, tuple[int, int, bytes]]:
        """Mode, owner and content of all but what the gate writes."""
        paths = [path for path in self.root.rglob("*") if not path.is_relative_to(self.out)]
        return {
            str(path.relative_to(self.root)): (
                path.lstat().st_mode,
                path.lstat().st_uid,
                path.read_bytes() if path.is_file() else b"",
            )
            for path in paths
        }

    def go(self, limits: Mapping[str, int]) -> None:
        """Start the gate as a program, with its secrets in its environment, and wait for it."""
        with FakeGitHub(token=TOKEN) as server, socket.socket(socket.AF_UNIX) as engine:
            engine.bind(str(self.root / "docker.sock"))
            engine.listen()
            (self.root / "docker.sock").chmod(0o660)
            done = subprocess.run(
                self._command(limits),
                env=self._variables(server.api_url),
                cwd=self.work,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=STEP_SECONDS,
                check=False,
            )
            self.comments = [comment.body for comment in server.comments]
            self.statuses += server.statuses(self.head)
        (self.root / "docker.sock").unlink()
        self.log, self.exit_code = done.stdout.decode("utf-8", "replace"), done.returncode

    def _command(self, limits: Mapping[str, int]) -> list[str]:
        python = sys.executable if self.mode is IsolationMode.NONE else str(gate_python())
        folders = [str(ROOT), sysconfig.get_paths()["purelib"]]
        words = ["action"]
        if self.mode is IsolationMode.NONE:
            words = ["gate", "--out", "out", "--verbose", "--base", self.base]
            words += ["--signing-key", str(self.root / "keys/gate.pem")]
        return [python, "-I", "-c", DRIVER, json.dumps(folders), json.dumps(dict(limits)), *words]

    def _variables(self, api_url: str) -> dict[str, str]:
        commands = self.root / "file_commands"
        inputs = {
            "INPUT_OUT": "out",
            "INPUT_STATUS": "true",
            "INPUT_TOKEN": TOKEN,
            "INPUT_SIGNING_KEY": PEM.decode(),
            "INPUT_SIGNING_KEY_PASSPHRASE": PASSPHRASE,
            "GITHUB_ACTIONS": "true",
            "GITHUB_API_URL": api_url,
            "GITHUB_ENV": str(commands / "env"),
            "GITHUB_EVENT_NAME": "pull_request",
            "GITHUB_EVENT_PATH": str(self.root / "workflow/event.json"),
            "GITHUB_OUTPUT": str(commands / "output"),
            "GITHUB_PATH": str(commands / "path"),
            "GITHUB_REPOSITORY": "o/model",
            "GITHUB_SHA": self.head,
            "GITHUB_STATE": str(commands / "state"),
            "GITHUB_STEP_SUMMARY": str(commands / "summary"),
            "GITHUB_WORKSPACE": str(self.work),
            "RUNNER_DEBUG": "1",
            "RUNNER_TEMP": str(self.root / "runner_temp"),
        }
        path = f"{self.root / 'programs'}:/usr/bin:/bin" if self.programs else "/usr/bin:/bin"
        own = {"PATH": path, **CREDENTIALS}
        if "signer" in self.programs:
            # one key a step
            del inputs["INPUT_SIGNING_KEY"], inputs["INPUT_SIGNING_KEY_PASSPHRASE"]
            inputs["INPUT_SIGNER"] = f"exec:{self.root / 'programs/signer'}"
        if self.mode is IsolationMode.CONTAINER and "DOCKER_HOST" in os.environ:
            own["DOCKER_HOST"] = os.environ["DOCKER_HOST"]
        if self.mode is IsolationMode.NONE:
            return {**own, "REPRO_GATE_PASSPHRASE": PASSPHRASE}
        files = {name: str(self.root / "logins" / name) for name in NAMED_FILES}
        return {**own, **inputs, **files, "HOME": str(self.root / "home")}


@contextmanager
def arena(
    mode: IsolationMode, attempt: Attempt, together: tuple[Attempt, ...] = ()
) -> Iterator[Arena]:
    """A place after an attempt, which was made in each run of one whole call of the gate."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryDirectory(dir=ELSEWHERE if os.geteuid() == 0 else None) as elsewhere,
        _disk(Path(folder), attempt) as root,
    ):
        root.chmod(0o755)
        Path(elsewhere).chmod(0o1777)
        made = Arena(root=root, mode=mode, elsewhere=Path(elsewhere))
        made.prepare(attempt, together)
        if attempt.cold:
            cold = Path(elsewhere, "cold")
            cold.mkdir()
            for number in range(8):
                new_proof(cold / str(number))
        if attempt.two_bases:
            made.for_the_loose_branch(attempt.limits)
        made.go(attempt.limits)
        yield made


@contextmanager
def _disk(folder: Path, attempt: Attempt) -> Iterator[Path]:
    """The folder itself, or a small disk below it."""
    if not attempt.disk_bytes:
        yield folder
        return
    folder.chmod(0o755)
    root = folder / "disk"
    root.mkdir()
    subprocess.run(
        ("/usr/bin/mount", "-t", "tmpfs", "-o", f"size={attempt.disk_bytes}", "tmpfs", str(root)),
        check=True,
    )
    try:
        yield root
    finally:
        subprocess.run(("/usr/bin/umount", str(root)), check=True)

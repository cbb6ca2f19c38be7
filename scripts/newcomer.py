"""Follow the first pages as a newcomer does, on a bare Debian and a bare Ubuntu: `make newcomer`.

    newcomer.py [--torch REQUIREMENT] [SUITE...]

Each SUITE (default: bookworm and noble) becomes a system of its own by debootstrap, with an
account that has nothing. There the packages that README names are installed, torch as the
configuration of pip on this machine has it, and the gate from a clone of HEAD. Then each line of
code that README ("Use it in a project"), docs/quick-start.md, docs/several-gates.md ("Two
trainings"), docs/environments.md ("On your machine", by uv) and docs/python.md ("In pytest") show
is typed, in their order, each page in a fresh project. A line ends as its comment says
(`exit code 1`), else with 0. What each line took is printed.

Needs root; changes nothing of this machine. What cannot be had (an archive, its key, torch) is
skipped and named. An archive is trusted by its key alone; `UNSIGNED=1` takes one without.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PACKAGES: Final = re.compile(r"`apt install ([\w -]+)`")
INSTALL: Final = "`pip install .` in a clone"
EXIT_CODE: Final = re.compile(r"#.*\bexit code (\d)")
# where the page has a training or a test
SCRIPT: Final = "train.py"
NESTED_SCRIPT: Final = "research/nlp/train.py"
TEST: Final = "test_training.py"
SUITES: Final = {"debian": "bookworm", "ubuntu": "noble"}
# newer suites than an old debootstrap knows are made like this one
SCRIPTS: Final = {"ubuntu": "gutsy", "debian": "sid"}
COMPONENTS: Final = {"debian": "main", "ubuntu": "main,universe"}
ALONE: Final = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
HOME: Final = "/home/newcomer"
UV_CONSTRAINT: Final = f"{HOME}/torch.txt"
TRAINING: Final = """\
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1000):
    inputs = torch.randn(8, 4)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


class SkippedError(Exception):
    """What this machine cannot give; nothing was learned."""


class DifferentError(Exception):
    """A document said something else than what happened."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of code of a document, and the exit code that it tells."""

    command: str
    exit_code: int


@dataclass(frozen=True, kw_only=True)
class Document:
    """What a document has a newcomer type, the files that it shows, and its last line's answer."""

    name: str
    lines: tuple[Line, ...]
    # empty where the page shows none
    settings: str = ""
    test: str = ""
    script: str = SCRIPT
    outcome: str = "reproduced"


def code_lines(block: str) -> Iterator[Line]:
    """The commands of a block; a backslash joins two lines, as a shell reads them."""
    for line in block.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            told = EXIT_CODE.search(line)
            yield Line(command=line, exit_code=int(told[1]) if told else 0)


def document(name: str, text: str) -> Document:
    """The code of a page, or of a part of one."""
    blocks = BLOCK.findall(text)
    lines = [line for kind, block in blocks if kind in ("", "sh") for line in code_lines(block)]
    settings = [block for kind, block in blocks if kind == "yaml"]
    if not lines or len(settings) != 1:
        message = f"{name}: expected commands and one settings file"
        raise DifferentError(message)
    return Document(name=name, lines=tuple(lines), settings=settings[0])


def documents() -> tuple[Document, ...]:
    """The ways in, as they stand there."""
    part = chapter("README.md", "Use it in a project")
    start = (ROOT / "docs" / "quick-start.md").read_text("utf-8")
    for name, text in (("README.md", part), ("docs/quick-start.md", start)):
        if INSTALL not in " ".join(text.split()):
            message = f"{name} does not say {INSTALL}"
            raise DifferentError(message)
    return (
        document("README.md", part),
        document("docs/quick-start.md", start),
        typed("docs/several-gates.md", "Two trainings", NESTED_SCRIPT),
        typed("docs/environments.md", "On your machine"),
        in_pytest("docs/python.md", "In pytest"),
    )


def chapter(page: str, title: str) -> str:
    """A part of a page, its title the first line."""
    text = (ROOT / page).read_text("utf-8")
    parts = re.split(r"^##+ ", text, flags=re.MULTILINE)
    (part,) = (one for one in parts if one.startswith(f"{title}\n"))
    return part


def typed(page: str, title: str, script: str = SCRIPT) -> Document:
    """The commands of a part of a page, beside a training at `script`."""
    blocks = [block for kind, block in BLOCK.findall(chapter(page, title)) if kind == "sh"]
    lines = tuple(line for block in blocks for line in code_lines(block))
    return Document(name=page, lines=lines, script=script)


def in_pytest(page: str, title: str) -> Document:
    """The same by pytest, in a file that the page shows."""
    blocks = BLOCK.findall(chapter(page, title))
    (test,) = (block for kind, block in blocks if kind == "python")
    lines = tuple(line for kind, block in blocks if kind == "sh" for line in code_lines(block))
    return Document(name=page, lines=lines, test=test, outcome="1 passed")


def archive(distribution: str, suite: str) -> str:
    """The mirror of this machine's own apt for a suite; empty for debootstrap's default."""
    places = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    texts = [path.read_text("utf-8", "replace") for path in places if path.is_file()]
    return archive_of(texts, distribution, suite)


def archive_of(texts: list[str], distribution: str, suite: str) -> str:
    """The address that lists of sources, of either format, give for a suite."""
    lines = re.compile(rf"^deb (?:\[[^\]]*\] )?(\S+) {suite} ", re.MULTILINE)
    found = [uri for text in texts for uri in lines.findall(text)]
    for stanza in (stanza for text in texts for stanza in re.split(r"\n\s*\n", text)):
        suites = re.search(r"^Suites:(.*)$", stanza, re.MULTILINE)
        uris = re.search(r"^URIs: *(\S+)", stanza, re.MULTILINE)
        if suites and uris and suite in suites[1].split():
            found.append(uris[1])
    return next((uri for uri in found if distribution in uri), "")


def pip_settings() -> Mapping[str, str]:
    """The configuration of pip on this machine, variables included, as keys of one section."""
    command = (sys.executable, "-m", "pip", "config", "list")
    # a Python without pip has no configuration of it
    listing = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    rows = (line.partition("=") for line in listing.splitlines() if "=" in line)
    return {name.rpartition(".")[2]: str(ast.literal_eval(value)) for name, _, value in rows}


def uv_variables(settings: Mapping[str, str], torch: str) -> Mapping[str, str]:
    """The same for uv, which reads no configuration of pip; `torch` is what is to be installed."""
    # uv takes indexes from the network alone
    remote = [word for word in settings.get("extra-index-url", "").split() if "file:" not in word]
    variables = {
        "UV_FIND_LINKS": ",".join(settings.get("find-links", "").split()),
        "UV_INDEX": " ".join(remote),
        "SSL_CERT_FILE": settings.get("cert", ""),
        "UV_CONSTRAINT": UV_CONSTRAINT if torch != "torch" else "",
        # the system's own is what the training's account can read
        "UV_PYTHON_DOWNLOADS": "never",
    }
    return {name: value for name, value in variables.items() if value}


def local_paths(settings: Mapping[str, str]) -> tuple[Path, ...]:
    """The files and folders of this machine that a configuration of pip names."""
    words = [word for value in settings.values() for word in value.split()]
    indexes = [Path(word.removeprefix("file://")) for word in words if word.startswith("file://")]
    # the pages of an index lie beside the packages that they link to
    named = [path.parent for path in indexes] + [Path(word) for word in words if word[:1] == "/"]
    # not a folder such as /opt: a mount there would hide what the system has
    return tuple(sorted({path for path in named if path.exists() and path.parent.name}))


def run(*command: str, **variables: str) -> None:
    """Run a command that has to end well; `SkippedError` with its last lines."""
    done = subprocess.run(
        command,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        last = " / ".join(done.stdout.strip().splitlines()[-2:])
        message = f"{' '.join(command[:2])} ended with exit code {done.returncode}: {last}"
        raise SkippedError(message)


def say(text: str) -> None:
    """Tell it at once: a line may take minutes."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class System:
    """A bare system below a folder; mounts are those of this process, which has its own."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self._variables = variables

    def make(self, distribution: str, suite: str) -> None:
        """Fetch and unpack the smallest system there is."""
        script = Path("/usr/share/debootstrap/scripts")
        known = script / suite if (script / suite).exists() else script / SCRIPTS[distribution]
        unsigned = os.environ.get("UNSIGNED") == "1"
        signed = "--no-check-gpg" if unsigned else "--force-check-gpg"
        options = (f"--components={COMPONENTS[distribution]}", "--include=ca-certificates")
        mirror = archive(distribution, suite)
        target = str(self.folder)
        run("debootstrap", "--variant=minbase", signed, *options, suite, target, mirror, str(known))
        run("mount", "-t", "proc", "proc", f"{target}/proc")
        run("mount", "--rbind", "/dev", f"{target}/dev")
        for name in ("resolv.conf", "hosts"):
            shutil.copyfile(f"/etc/{name}", self.folder / "etc" / name)

    def hand_over(self, settings: Mapping[str, str]) -> None:
        """Give it this machine's way to packages of Python, read-only."""
        rows = (f"{name} = {' '.join(value.split())}\n" for name, value in settings.items())
        (self.folder / "etc" / "pip.conf").write_text("[global]\n" + "".join(rows), "utf-8")
        for path in local_paths(settings):
            there = self.folder / path.relative_to("/")
            there.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                there.mkdir(exist_ok=True)
                run("mount", "--bind", "-o", "ro", str(path), str(there))
            else:
                shutil.copyfile(path, there)

    def inside(self, *command: str, user: bool = True) -> tuple[str, ...]:
        """A command as one of the system, by the newcomer's account or by root."""
        account = ("--userspec=newcomer:newcomer",) if user else ()
        home = HOME if user else "/root"
        path = f"{HOME}/.venv/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        clean = ("env", "-i", f"PATH={path}", f"HOME={home}", "LANG=C.UTF-8")
        proxies = {
            name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")
        }
        given = (f"{name}={value}" for name, value in {**proxies, **self._variables}.items())
        return ("chroot", *account, str(self.folder), *clean, *given, *command)

    def shell(self, folder: str, text: str) -> subprocess.CompletedProcess[str]:
        """What the newcomer types in a folder of the home."""
        return subprocess.run(
            self.inside("bash", "-c", f"cd {HOME}/{folder} && {text}"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def write(self, path: str, text: str) -> None:
        """A file in the home, as the newcomer's editor leaves it."""
        there = self.inside("bash", "-c", f"cat > {HOME}/{path}")
        subprocess.run(there, input=text, text=True, check=True)


def prepare(system: System, torch: str) -> None:
    """Install what the documents say has to be there."""
    packages = PACKAGES.search((ROOT / "README.md").read_text("utf-8"))
    if packages is None:
        message = "README.md names no packages to install"
        raise DifferentError(message)
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    run(*system.inside("apt-get", "update", user=False), **quiet)
    install = ("apt-get", "install", "-y", "--no-install-recommends", *packages[1].split())
    run(*system.inside(*install, user=False), **quiet)
    run(*system.inside("useradd", "--create-home", "newcomer", user=False))
    system.hand_over(pip_settings())
    clone = system.folder / HOME.lstrip("/") / "repro-gate"
    run("git", "clone", "--quiet", str(ROOT), str(clone))
    run(*system.inside("chown", "-R", "newcomer:newcomer", HOME, user=False))
    run(*system.inside("git", "config", "--global", "user.name", "newcomer"))
    run(*system.inside("git", "config", "--global", "user.email", "newcomer@invalid"))
    run(*system.inside("git", "config", "--global", "init.defaultBranch", "main"))
    run(*system.inside("python3", "-m", "venv", f"{HOME}/.venv"))
    system.write(Path(UV_CONSTRAINT).name, f"{torch}\n")
    # what the pages take to be there: a project that has tests has the one, one of uv's the other
    run(*system.inside("pip", "install", "--quiet", torch, "pytest", "uv"))


def follow(system: System, page: Document) -> None:
    """Type every line of a document in a fresh project; `DifferentError` where it is wrong."""
    project = f"project-{Path(page.name).stem}"
    there = system.folder / HOME.lstrip("/") / project
    system.shell("", f"mkdir -p {project}/{Path(page.script).parent}")
    system.write(f"{project}/{page.script}", TRAINING)
    if page.test:
        system.write(f"{project}/{TEST}", page.test)
    system.shell(project, "git init --quiet && git add . && git commit --quiet -m project")
    said = ""
    for line in page.lines:
        started = time.monotonic()
        done = system.shell(project, line.command)
        said = done.stdout
        say(f"  {done.returncode}  {time.monotonic() - started:5.1f} s  {line.command}")
        if done.returncode != line.exit_code:
            message = f"{page.name}: exit code {done.returncode} instead of {line.exit_code} of"
            raise DifferentError(f"{message} `{line.command}`\n{said}")
    if page.outcome not in said:
        message = f"{page.name}: the last command does not say {page.outcome}\n{said}"
        raise DifferentError(message)
    if not page.settings:
        return
    written = (there / "repro-gate.yml").read_text("utf-8")
    if written != page.settings:
        message = f"{page.name} shows other settings than the ones written:\n{written}"
        raise DifferentError(message)


def newcomer(folder: Path, suite: str, torch: str) -> str:
    """One system from nothing to a pass; a line for the end."""
    distribution = next((name for name, one in SUITES.items() if one == suite), "debian")
    system = System(folder, uv_variables(pip_settings(), torch))
    try:
        say(f"== {distribution} {suite}")
        system.make(distribution, suite)
        prepare(system, torch)
        done = system.shell("repro-gate", "pip install --quiet .")
        if done.returncode:
            message = f"`pip install .` failed\n{done.stdout}"
            raise DifferentError(message)
        for page in documents():
            say(f"{page.name}:")
            follow(system, page)
    except SkippedError as reason:
        return f"{distribution} {suite}: skipped: {reason}"
    return f"{distribution} {suite}: as the documents say"


def main() -> int:
    """All suites, each in a process with mounts of its own; 1 when a document is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--torch", default="torch", help="what pip installs as torch")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("suites", nargs="*", default=list(SUITES.values()))
    asked = parser.parse_args()
    if asked.inside:
        try:
            say(newcomer(asked.inside, asked.suites[0], asked.torch))
        except DifferentError as fault:
            say(f"{asked.suites[0]}: failed: {fault}")
            return 1
        return 0
    if os.geteuid() or not shutil.which("debootstrap"):
        say("skipped: it needs root and debootstrap (apt install debootstrap)")
        return 0
    tried = subprocess.run((*ALONE, "true"), capture_output=True, text=True, check=False)
    if tried.returncode:
        say(f"skipped: it needs mounts of its own: {tried.stderr.strip()}")
        return 0
    worst = 0
    for suite in asked.suites:
        folder = Path(tempfile.mkdtemp(prefix=f"newcomer-{suite}-"))
        try:
            folder.chmod(0o755)
            again = (sys.executable, __file__, "--torch", asked.torch, "--inside", str(folder))
            # its mounts end with it: only then is there nothing but its own below the folder
            worst = max(worst, subprocess.run((*ALONE, *again, suite), check=False).returncode)
        finally:
            shutil.rmtree(folder)
    return worst


if __name__ == "__main__":
    sys.exit(main())

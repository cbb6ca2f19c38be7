"""Follow the first pages as a newcomer does, on a bare Debian and a bare Ubuntu: `make newcomer`.

    newcomer.py [--torch REQUIREMENT] [SUITE...]

debootstrap makes a separate system for each SUITE (default: bookworm and noble), with an account
that has nothing. The script installs the packages that README names, torch as pip is configured on
this machine, and the gate from a clone of HEAD. Then it types each line of code that these pages
show, in their order and each page in a fresh project: README ("Use it in a project"),
docs/quick-start.md, docs/several-gates.md ("Two trainings"), docs/environments.md ("On your
machine", with uv) and docs/python.md ("In pytest"). A line must end with the exit code in its
comment (`exit code 1`), or with 0. The script prints how long each line takes.

Needs root, and changes nothing on this machine. A suite is skipped, with the reason, if an archive,
its key or torch is not available. An archive is trusted only by its key; `UNSIGNED=1` accepts one
without.
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
# the paths at which the pages expect a training or a test
SCRIPT: Final = "train.py"
NESTED_SCRIPT: Final = "research/nlp/train.py"
TEST: Final = "test_training.py"
SUITES: Final = {"debian": "bookworm", "ubuntu": "noble"}
# an old debootstrap has no script for newer suites, and these scripts make them too
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
    """The machine lacks something, so the suite says nothing about the documents."""


class DifferentError(Exception):
    """A document shows a different result from the one that happened."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A command that a document shows, and the exit code that the document promises."""

    command: str
    exit_code: int


@dataclass(frozen=True, kw_only=True)
class Document:
    """The commands and files of a document, and the text that its last command must print.

    `settings` and `test` are empty if the page shows no such file.
    """

    name: str
    lines: tuple[Line, ...]
    # empty where the page shows none
    settings: str = ""
    test: str = ""
    script: str = SCRIPT
    outcome: str = "reproduced"


def code_lines(block: str) -> Iterator[Line]:
    """Return the commands of a block; a backslash at the end joins two lines, as in a shell."""
    for line in block.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            told = EXIT_CODE.search(line)
            yield Line(command=line, exit_code=int(told[1]) if told else 0)


def document(name: str, text: str) -> Document:
    """Return the commands and the settings file in a text.

    Raises `DifferentError` unless the text has commands and exactly one settings file.
    """
    blocks = BLOCK.findall(text)
    lines = [line for kind, block in blocks if kind in ("", "sh") for line in code_lines(block)]
    settings = [block for kind, block in blocks if kind == "yaml"]
    if not lines or len(settings) != 1:
        message = f"{name}: expected commands and one settings file"
        raise DifferentError(message)
    return Document(name=name, lines=tuple(lines), settings=settings[0])


def documents() -> tuple[Document, ...]:
    """Return the pages that a newcomer may start with, as this tree has them."""
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
    """Return the chapter of a page with this title; its first line is the title."""
    text = (ROOT / page).read_text("utf-8")
    parts = re.split(r"^##+ ", text, flags=re.MULTILINE)
    (part,) = (one for one in parts if one.startswith(f"{title}\n"))
    return part


def typed(page: str, title: str, script: str = SCRIPT) -> Document:
    """Return the commands of a chapter; the project has its training at `script`."""
    blocks = [block for kind, block in BLOCK.findall(chapter(page, title)) if kind == "sh"]
    lines = tuple(line for block in blocks for line in code_lines(block))
    return Document(name=page, lines=lines, script=script)


def in_pytest(page: str, title: str) -> Document:
    """Return the commands of a chapter about pytest, with the test file that it shows."""
    blocks = BLOCK.findall(chapter(page, title))
    (test,) = (block for kind, block in blocks if kind == "python")
    lines = tuple(line for kind, block in blocks if kind == "sh" for line in code_lines(block))
    return Document(name=page, lines=lines, test=test, outcome="1 passed")


def archive(distribution: str, suite: str) -> str:
    """Return the mirror that this machine's apt uses for a suite; empty if it uses none."""
    places = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    texts = [path.read_text("utf-8", "replace") for path in places if path.is_file()]
    return archive_of(texts, distribution, suite)


def archive_of(texts: list[str], distribution: str, suite: str) -> str:
    """Return the address of a suite in apt's lists of sources: one-line format, or stanzas."""
    lines = re.compile(rf"^deb (?:\[[^\]]*\] )?(\S+) {suite} ", re.MULTILINE)
    found = [uri for text in texts for uri in lines.findall(text)]
    for stanza in (stanza for text in texts for stanza in re.split(r"\n\s*\n", text)):
        suites = re.search(r"^Suites:(.*)$", stanza, re.MULTILINE)
        uris = re.search(r"^URIs: *(\S+)", stanza, re.MULTILINE)
        if suites and uris and suite in suites[1].split():
            found.append(uris[1])
    return next((uri for uri in found if distribution in uri), "")


def pip_settings() -> Mapping[str, str]:
    """Return pip's configuration on this machine, from files and variables, as one section."""
    command = (sys.executable, "-m", "pip", "config", "list")
    # exit code ignored: a Python without pip simply has no configuration
    listing = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    rows = (line.partition("=") for line in listing.splitlines() if "=" in line)
    return {name.rpartition(".")[2]: str(ast.literal_eval(value)) for name, _, value in rows}


def uv_variables(settings: Mapping[str, str], torch: str) -> Mapping[str, str]:
    """Return pip's configuration as variables for uv, which does not read pip's.

    `torch` is the requirement to install.
    """
    # uv accepts an index only from the network, so `file:` addresses are left out
    remote = [word for word in settings.get("extra-index-url", "").split() if "file:" not in word]
    variables = {
        "UV_FIND_LINKS": ",".join(settings.get("find-links", "").split()),
        "UV_INDEX": " ".join(remote),
        "SSL_CERT_FILE": settings.get("cert", ""),
        "UV_CONSTRAINT": UV_CONSTRAINT if torch != "torch" else "",
        # The training's account can read the system's Python, but not one that uv would download
        # to the home of the newcomer.
        "UV_PYTHON_DOWNLOADS": "never",
    }
    return {name: value for name, value in variables.items() if value}


def local_paths(settings: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the files and folders of this machine to which pip's configuration refers."""
    words = [word for value in settings.values() for word in value.split()]
    indexes = [Path(word.removeprefix("file://")) for word in words if word.startswith("file://")]
    # an index page links to packages beside it, so take the folder that contains the index
    named = [path.parent for path in indexes] + [Path(word) for word in words if word[:1] == "/"]
    # leave out a top-level folder such as /opt: mounting it would hide the new system's own
    return tuple(sorted({path for path in named if path.exists() and path.parent.name}))


def run(*command: str, **variables: str) -> None:
    """Run a command; raises `SkippedError` with its last lines if it fails."""
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
    """Print a line and flush it, because the next one may take minutes."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class System:
    """A bare system below a folder.

    Its mounts are private to this process, which runs in its own mount namespace.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self._variables = variables

    def make(self, distribution: str, suite: str) -> None:
        """Create the smallest system that debootstrap can make."""
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
        """Give the system this machine's pip configuration, and mount its local files read-only."""
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
        """Return the words that run a command in the system, as the newcomer or as root.

        The command gets a clean environment, so that nothing of this machine's helps it.
        """
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
        """Type a line in a folder of the newcomer's home; any exit code is accepted."""
        return subprocess.run(
            self.inside("bash", "-c", f"cd {HOME}/{folder} && {text}"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def write(self, path: str, text: str) -> None:
        """Write a file in the newcomer's home, owned by the newcomer."""
        there = self.inside("bash", "-c", f"cat > {HOME}/{path}")
        subprocess.run(there, input=text, text=True, check=True)


def prepare(system: System, torch: str) -> None:
    """Install the packages that README names, and make account, clone and virtual environment.

    Raises `SkippedError` if something cannot be installed.
    """
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
    # the pages assume these: docs/python.md a project with pytest, docs/environments.md uv
    run(*system.inside("pip", "install", "--quiet", torch, "pytest", "uv"))


def follow(system: System, page: Document) -> None:
    """Type every command of a document in a fresh project.

    Raises `DifferentError` if an exit code, the last output, or the settings file differs from
    what the document shows.
    """
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
    """Build one system, follow all documents in it, and return a line for the summary."""
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
    """Run each suite in a process with private mounts; return 1 if a document is wrong."""
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
            # The mounts end with that process. Only then is it safe to remove the folder, which
            # would otherwise still show files of this machine.
            worst = max(worst, subprocess.run((*ALONE, *again, suite), check=False).returncode)
        finally:
            shutil.rmtree(folder)
    return worst


if __name__ == "__main__":
    sys.exit(main())

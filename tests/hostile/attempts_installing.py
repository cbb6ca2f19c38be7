"""Attempts of a lock file, and of the packages that it names, on whoever installs them."""

from __future__ import annotations

from dataclasses import replace

from attempt import Attempt, Threat

from gate.isolation.modes import IsolationMode
from gate.verdict.verdict import Outcome

READER = "only pinned versions and hashes are read"
WHEELS = "only wheels are fetched, by hash; nothing is built"
SANDBOX = "wheels are unpacked offline by a separate account, with the gate's pip"
# what the package holds if it is installed, for the training to import
IMPORTED = 'import evil\ntold(None if evil.WORD == "imported" else ("not imported",))\n'
MODULE = {"evil/__init__.py": 'WORD = "imported"\n'}


def refused_line(name: str, tries: str, line: str, cause: str) -> Attempt:
    """A lock with a line that pip would obey."""
    return Attempt(
        name=name,
        threat=Threat.INSTALLING,
        tries=tries,
        stopped_by=READER,
        script="",
        lock=line,
        modes=(IsolationMode.UID,),
        outcome=Outcome.ERROR,
        cause=f"line 1.*{cause}",
    )


def hostile_wheel(name: str, tries: str, stopped_by: str, members: dict[str, str]) -> Attempt:
    """A wheel that is installed, and does no harm."""
    return Attempt(
        name=name,
        threat=Threat.INSTALLING,
        tries=tries,
        stopped_by=stopped_by,
        script=IMPORTED,
        lock="evil==1.0 {wheel}\n",
        wheel={**MODULE, **members},
        modes=(IsolationMode.UID,),
        tells=1,
    )


INSTALLING: tuple[Attempt, ...] = (
    refused_line(
        "lock-no-binary-all",
        "has its source archive built with `--no-binary :all:`",
        "--no-binary :all:\nevil==1.0 {sdist}\n",
        "option .*no-binary",
    ),
    refused_line(
        "lock-no-binary-one",
        "has one package built with `--no-binary evil`",
        "--no-binary evil\nevil==1.0 {sdist}\n",
        "option .*no-binary",
    ),
    refused_line(
        "lock-only-binary-none",
        "undoes the gate's own option with `--only-binary :none:`",
        "--only-binary :none:\nevil==1.0 {sdist}\n",
        "option .*only-binary",
    ),
    refused_line(
        "lock-path",
        "names a source archive by its path",
        "{folder}/evil-1.0.tar.gz {sdist}\n",
        "is a path",
    ),
    refused_line("lock-folder", "names a folder with a setup.py", "{folder}/evil\n", "is a path"),
    refused_line(
        "lock-file-address",
        "names a source archive by a `file:` address",
        "evil @ file://{folder}/evil-1.0.tar.gz {sdist}\n",
        "has an address",
    ),
    refused_line(
        "lock-web-address",
        "names a source archive by an address of the web",
        "evil @ {index}/../files/evil-1.0.tar.gz {sdist}\n",
        "has an address",
    ),
    refused_line("lock-editable", "installs a folder by `-e`", "-e {folder}/evil\n", "option .*-e"),
    refused_line(
        "lock-include", "includes another file by `-r`", "-r {folder}/more.txt\n", "option .*-r"
    ),
    refused_line(
        "lock-index",
        "names an index of its own",
        "--index-url {index}\nevil==1.0 {sdist}\n",
        "option .*index-url",
    ),
    refused_line(
        "lock-variable",
        "has pip put a variable with a login into an address",
        "evil==1.0+${{PIP_INDEX_URL}} {sdist}\n",
        "pins no single version",
    ),
    refused_line(
        "lock-marker",
        "hides an option in a condition",
        "evil==1.0 ; sys_platform == 'x --no-binary=:all:' {sdist}\n",
        "option .*no-binary",
    ),
    replace(
        refused_line(
            "lock-source-alone",
            "names a package that the index has only as a source archive",
            "evil==1.0 {sdist}\n",
            "",
        ),
        stopped_by=WHEELS,
        cause="cannot be downloaded",
    ),
    replace(
        refused_line(
            "wheel-of-another-hash",
            "names a wheel by the hash of another file",
            "evil==1.0 {sdist}\n",
            "",
        ),
        stopped_by=WHEELS,
        cause="cannot be downloaded",
        wheel=MODULE,
    ),
    replace(
        refused_line(
            "wheel-that-leaves-its-folder",
            "installs a wheel with members above and outside its folder",
            "evil==1.0 {wheel}\n",
            "",
        ),
        stopped_by=SANDBOX,
        cause="cannot be installed|cannot be downloaded",
        wheel={**MODULE, "../../../../../repro-gate/bin/python": "{code}", "/{place}/x": "{code}"},
    ),
    hostile_wheel(
        "wheel-with-start-up-code",
        "installs a .pth file, a sitecustomize and a usercustomize, which run when a Python starts",
        "the gate's interpreters never see that folder; only a training starts there",
        {
            "evil.pth": "import evil_start\n",
            "evil_start.py": "{code}",
            "sitecustomize.py": "{code}",
            "usercustomize.py": "{code}",
        },
    ),
    hostile_wheel(
        "wheel-that-replaces-the-installer",
        "installs modules in the place of pip's own, of setuptools and of the standard library's",
        SANDBOX,
        {
            **dict.fromkeys(
                (
                    *("pip/__init__.py", "pip/__main__.py", "pip/_internal/cli/main.py"),
                    *("setuptools/__init__.py", "wheel/__init__.py", "keyring.py", "venv.py"),
                ),
                "{code}",
            )
        },
    ),
    hostile_wheel(
        "wheel-with-programs-of-the-gate",
        "installs programs with the names of those that the gate starts",
        "what it installs is only on the training's PATH",
        {
            f"evil-1.0.data/scripts/{name}": "#!python\n{code}\n"
            for name in ("git", "git-lfs", "dvc", "sh", "ipcrm", "nvidia-smi")
        },
    ),
    hostile_wheel(
        "wheel-that-replaces-the-gate",
        "installs a package `gate`, and data files for the gate's own folders",
        "the gate imports from a folder of its own, which belongs to root",
        {
            "gate/__init__.py": "{code}",
            "gate/__main__.py": "{code}",
            "evil-1.0.data/data/lib/repro-gate.pth": "import evil\n",
        },
    ),
    replace(
        hostile_wheel(
            "wheel-with-links",
            "installs links to the key and to the folder of the gate",
            "links of a wheel are unpacked as files",
            {},
        ),
        links={"evil/key": "{root}/keys/gate.pem", "evil/up": "../../../../../.."},
        script=IMPORTED
        + "any_of(lambda name: (pathlib.Path(evil.__file__).parent / name).readlink(),"
        ' ("key", "up"))',
        tells=2,
    ),
)

"""Attempts to leave word for the next run where every account can write, and by times and sizes."""

from __future__ import annotations

from dataclasses import replace

from attempt import Attempt, Threat, probe

GUARD = "own folders only: mount namespace, else Landlock"
VIEW = "a read-only view without access times (mount namespace)"


def _word(name: str, where: str, path: str) -> Attempt:
    script = f"word_of_another_run({path})"
    return probe(name, Threat.RUNS, f"leaves a message in {where}", GUARD, script, control=True)


def _by_view(name: str, tries: str, script: str, *, control: bool = True) -> Attempt:
    return replace(probe(name, Threat.RUNS, tries, VIEW, script, control=control), by_view=True)


WORDS: tuple[Attempt, ...] = (
    _word(
        "folder-of-a-third-account",
        "a folder below /tmp that a third account opened to all",
        'root / "open/third/word"',
    ),
    _word(
        "open-folder-below-a-closed-one",
        "root's folder with mode 1777, inside one that only root writes in",
        'root / "open/closed/sticky/word"',
    ),
    _word(
        "open-folder-elsewhere",
        "root's folder with mode 1777 outside the temporary folders",
        # a container has the folder, for those of the run lie below it, and not the file
        'pathlib.Path(next((file.read_text() for file in root.glob("open/elsewhere")), "/no"))'
        ' / "word"',
    ),
    _word(
        "open-folder-in-the-workspace",
        "an untracked folder of the workspace with mode 0777",
        'work / "open/word"',
    ),
    _word("file-with-mode-0666", "a file with mode 0666", 'root / "open/file"'),
    _word(
        "second-link-to-an-open-file",
        "a file with mode 0666, by its second name",
        'root / "open/closed/second-name"',
    ),
    _by_view(
        "time-of-change",
        "sets the time of change of a file with mode 0666 to now",
        """
path = root / "open/old"
try: told(path.stat().st_mtime != 2000); os.utime(path)
except OSError: told(None) if not path.exists() else None
""",
    ),
    _by_view(
        "time-of-access",
        "reads an old file, and checks whether an earlier run did",
        """
path = root / "open/read"
try: told(path.stat().st_atime != 1000); path.read_bytes()
except OSError: told(None)
""",
    ),
    _by_view(
        "size-of-a-folder",
        "fills a temporary folder, which then stays large though it is empty again",
        """
path = root / "open/closed/sized"
try: told(path.stat().st_size > 8192)
except OSError: told(None)
try:
    names = [path / (str(number) * 60) for number in range(1000, 1400)]
    for name in names: name.touch()
    for name in names: name.unlink()
except OSError: pass
""",
        control=False,
    ),
)

"""What a script saved under names of its own choice: copied, or left out with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gate.errors import EvidenceError
from gate.evidence.capture import MAX_FILES, capture_saved
from gate.package.ustar import check_names
from gate.system.files.files import LocalFiles

FILES = LocalFiles()
PART = st.text("aA. ~\\ü-", min_size=1, max_size=4) | st.sampled_from(
    [".git", ".GITx", "x" * 99, "x" * 101, "CON"]
)
NAMES = st.lists(st.lists(PART, min_size=1, max_size=3).map("/".join), min_size=1, max_size=6)


def made(folder: Path, names: list[str]) -> bool:
    """Make the files, as far as a disk has them; whether there is any."""
    for name in names:
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("1")
        except OSError:
            continue
    return folder.is_dir() and any(path.is_file() for path in folder.rglob("*"))


@given(NAMES)
@example(["a", "A"])
@example(["a", "A/b"])
@example(["x" * 101])
@example([" a", "b "])
def test_what_is_kept_can_be_packed(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    place = tmp_path_factory.mktemp("run")
    if not made(place / "tree" / "saved", names):
        return
    found = capture_saved(FILES, place / "tree", "saved", place / "taken")
    assert found is not None
    if found.kept.left_out:
        assert found.files == ()
        assert len(found.kept.left_out) <= 400
        return
    kept = [one.name.replace("strict-1/", "") for _, one in found.files]
    assert kept
    check_names(kept)
    assert all(path.read_text() == "1" for path, _ in found.files)


def test_more_files_than_a_reader_takes_are_left_to_the_reader(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 1):
        path = tmp_path / "saved" / str(number % 2) / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert capture_saved(FILES, tmp_path, "saved", tmp_path / "taken") is None
    assert not (tmp_path / "taken").exists()


def test_a_folder_below_eight_others_is_refused_and_not_looked_into(tmp_path: Path) -> None:
    deepest = tmp_path / "saved" / "/".join("12345678")
    deepest.mkdir(parents=True)
    (deepest / "weights.pt").write_text("1")
    found = capture_saved(FILES, tmp_path, "saved", tmp_path / "taken")
    assert found is not None
    assert [name.name for _, name in found.files] == ["strict-1/model/1/2/3/4/5/6/7/8/weights.pt"]
    (deepest / "9").mkdir()
    with pytest.raises(EvidenceError, match="saved cannot be copied"):
        capture_saved(FILES, tmp_path, "saved", tmp_path / "again")

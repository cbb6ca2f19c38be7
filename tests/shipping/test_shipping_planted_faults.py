"""The faults of `make planted-faults` can still be planted, and what it says of them is true."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import planted_faults
import pytest
from planted_faults import Ending, Fault, ending, package_of, planned, row

ROOT = Path(__file__).resolve().parents[2]
LAW = "from part import double\n\ndef test_law(): assert double(2) == 4\n"
FAULT = Fault(file="part.py", old="2 * number", new="3 * number", tests="test_part.py")


def test_each_fault_has_one_place_and_changes_it() -> None:
    for fault in planned():
        text = (ROOT / fault.file).read_text("utf-8")
        assert fault.planted(text) != text, fault
        compile(fault.planted(text), fault.file, "exec")
        assert (ROOT / fault.tests).is_dir()


def test_faults_are_spread_over_the_packages() -> None:
    packages = Counter(map(package_of, planned()))
    assert len(packages) >= 15
    assert max(packages.values()) <= 10


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one law, which is no property: that plug-in takes a second of each start."""
    # nor is one about the fixture of kmock, whose plug-in needs another package
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p no:kmock")
    (tmp_path / "part.py").write_text("def double(number): return 2 * number\n")
    (tmp_path / "test_part.py").write_text(LAW)
    return tmp_path


def test_a_fault_is_found_by_a_test_that_fails_and_taken_out_again(tree: Path) -> None:
    assert ending(tree, FAULT) == Ending(found=True, told="`test_part.py::test_law`")
    assert "2 * number" in (tree / "part.py").read_text()


def test_a_fault_that_no_test_fails_for_is_not_found(tree: Path) -> None:
    (tree / "test_part.py").write_text(LAW.replace("double(2) == 4", "double(0) == 0"))
    assert ending(tree, FAULT) == Ending(found=False, told="**NOT FOUND**")


def test_a_test_that_fails_anyway_says_nothing_and_hides_no_other(tree: Path) -> None:
    broken = LAW.replace("== 4", "== 5")
    (tree / "test_part.py").write_text(broken)
    assert ending(tree, FAULT) == Ending(
        found=False, told="**NOT FOUND**; fails without it too: test_part.py::test_law"
    )
    (tree / "test_part.py").write_text(f"{broken}def test_next(): assert double(2) == 4\n")
    assert ending(tree, FAULT) == Ending(found=True, told="`test_part.py::test_next`")


def test_tests_that_cannot_be_collected_find_nothing(tree: Path) -> None:
    (tree / "test_part.py").write_text("import nothing_of_that_name\n")
    assert ending(tree, FAULT) == Ending(found=False, told="**NOT FOUND**")


def test_a_fault_without_its_place_is_an_error(tree: Path) -> None:
    (tree / "part.py").write_text("def double(number): return number + number\n")
    with pytest.raises(ValueError, match=r"part\.py has 0 times: 2 \* number"):
        ending(tree, FAULT)


def test_an_unknown_package_plants_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        planted_faults.main(["nothing"])
    assert "no fault is in nothing" in capsys.readouterr().err


def test_a_page_has_all_faults_or_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        planted_faults.main(["verdict", "--write", str(tmp_path / "page.md")])
    assert "--write takes all packages" in capsys.readouterr().err
    assert not (tmp_path / "page.md").exists()


def test_a_row_stays_a_row_whatever_the_fault_is() -> None:
    fault = Fault(file="part.py", old="one | two", new="one & two", tests="tests")
    assert row(fault, "`law`") == "| part.py | `one \\| two` → `one & two` | `law` |"

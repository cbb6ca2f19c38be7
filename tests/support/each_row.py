"""Many rows of one law in one test: every row is tried, and all that fail are named.

`pytest.mark.parametrize` makes a test of each row, which pytest collects, prepares and reports in
every process that runs tests; rows of a law need none of that. Fixtures are made once for all rows,
so a row may need nothing that another one changes; only `tmp_path` is a folder of the row's own.
"""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

Test = Callable[..., None]
FOLDER = "tmp_path"
SHOWN = reprlib.Repr()
SHOWN.maxstring = SHOWN.maxother = 120


def each_row(
    names: str | tuple[str, ...], rows: Iterable[Any], ids: Iterable[str] | None = None
) -> Callable[[Test], Test]:
    """Decorate a test as `parametrize` does, but run all rows in one test.

    The arguments are the parameters, a value or a tuple for each row, and the names of the rows.
    """
    words = (names,) if isinstance(names, str) else names
    values = [(row,) if isinstance(names, str) else tuple(row) for row in rows]
    called = [SHOWN.repr(row) for row in values] if ids is None else list(ids)
    assert values, "a law without a row holds nothing"

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def every(**fixtures: Any) -> None:  # noqa: ANN401 - whatever the test takes
            failed: list[BaseException] = []
            for number, (row, name) in enumerate(zip(values, called, strict=True)):
                if FOLDER in fixtures:
                    own: Path = fixtures[FOLDER] / f"row-{number}"
                    own.mkdir()
                    fixtures_of_row = {**fixtures, FOLDER: own}
                else:
                    fixtures_of_row = fixtures
                try:
                    test(**fixtures_of_row, **dict(zip(words, row, strict=True)))
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - told below
                    error.add_note(f"row {number}: {name}")
                    failed.append(error)
            if failed:
                message = f"{len(failed)} of {len(values)} rows"
                raise BaseExceptionGroup(message, failed)

        rest = [one for name, one in signature.parameters.items() if name not in words]
        every.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined] # read by pytest
        return every

    return decorate

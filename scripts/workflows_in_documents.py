"""Write each workflow that a document shows into a folder, for the linters of `make lint-action`.

    python workflows_in_documents.py FOLDER DOCUMENT...

A workflow is a fenced block of YAML whose lines start the keys `on:` and `jobs:`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def workflows(document: str) -> tuple[str, ...]:
    """Return the YAML blocks of a document that are complete workflows, unchanged."""
    blocks = BLOCK.findall(document)
    return tuple(
        block
        for block in blocks
        if re.search(r"^on:", block, re.MULTILINE) and re.search(r"^jobs:", block, re.MULTILINE)
    )


def main(folder: Path, documents: list[Path]) -> None:
    """Write each workflow to a file named after its document and position.

    A linter's finding then shows where the workflow is.
    """
    for path in documents:
        for number, text in enumerate(workflows(path.read_text("utf-8")), start=1):
            (folder / f"{path.stem}-block-{number}.yml").write_text(text, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])

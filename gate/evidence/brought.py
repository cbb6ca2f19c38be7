"""What a pull request itself changes of the environment that its training runs in."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from gate.text.records_document import Document

MAX_BROUGHT_FILES: Final = 50


class BroughtEnvironment(Document):
    """What differs between the base commit and the change under test.

    `files` declare packages, an image or what a workflow installs. `base_image` and `head_image`
    are the `isolation.image` of either side; both are empty where it is one and the same.
    """

    files: Annotated[tuple[str, ...], Field(max_length=MAX_BROUGHT_FILES)] = ()
    base_image: str = ""
    head_image: str = ""

    @property
    def another_image(self) -> bool:
        """Whether the change under test asks for another image."""
        return bool(self.head_image) and self.head_image != self.base_image


NOTHING_BROUGHT: Final = BroughtEnvironment()

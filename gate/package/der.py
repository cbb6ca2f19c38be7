"""A little DER (ITU-T X.690, 10): what an encrypted key file and a PKCS#11 token hold, no more.

Lengths below 2**32 and one byte of tag, which is all that these use. What is not the one encoding
of a value is refused.
"""

from __future__ import annotations

from typing import Final

INTEGER: Final = 0x02
OCTET_STRING: Final = 0x04
OBJECT_IDENTIFIER: Final = 0x06
SEQUENCE: Final = 0x30
# From here on a length stands in bytes of its own, whose count is the low half of the first.
LONG_FORM: Final = 0x80
MAX_LENGTH_BYTES: Final = 4
MAX_INTEGER_BYTES: Final = 8
ARC_BITS: Final = 7
ARC_LIMIT: Final = 1 << ARC_BITS


def element(tag: int, content: bytes) -> bytes:
    """Tag, length and content."""
    length = len(content)
    if length < LONG_FORM:
        return bytes((tag, length)) + content
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes((tag, LONG_FORM | len(size))) + size + content


def sequence(*parts: bytes) -> bytes:
    """A SEQUENCE of encoded parts."""
    return element(SEQUENCE, b"".join(parts))


def octet_string(content: bytes) -> bytes:
    """An OCTET STRING."""
    return element(OCTET_STRING, content)


def integer(value: int) -> bytes:
    """An INTEGER that is not negative."""
    # a byte more than the bits need where the first would be read as a sign
    return element(INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def object_identifier(dotted: str) -> bytes:
    """An OBJECT IDENTIFIER, as `1.2.840.10045.3.1.7`."""
    first, second, *others = map(int, dotted.split("."))
    return element(OBJECT_IDENTIFIER, b"".join(map(_arc, (40 * first + second, *others))))


def _arc(number: int) -> bytes:
    pieces = [number % ARC_LIMIT]
    while number := number >> ARC_BITS:
        pieces.append(number % ARC_LIMIT | ARC_LIMIT)
    return bytes(reversed(pieces))


class Reader:
    """Elements one after the other; each method raises `ValueError` for what is not there."""

    def __init__(self, data: bytes) -> None:
        self._left = data

    def take(self, tag: int) -> bytes:
        """The content of the next element, which has this tag."""
        if len(self._left) < 2 or self._left[0] != tag:  # noqa: PLR2004 - tag and length
            message = "another element than expected"
            raise ValueError(message)
        length, begin = self._length()
        end = begin + length
        if end > len(self._left):
            message = "an element that is cut short"
            raise ValueError(message)
        content, self._left = self._left[begin:end], self._left[end:]
        return content

    def inside(self) -> Reader:
        """The next element, a SEQUENCE, entered."""
        return Reader(self.take(SEQUENCE))

    def number(self) -> int:
        """The next element, an INTEGER from 0 to 2**63 - 1."""
        content = self.take(INTEGER)
        if len(content) > MAX_INTEGER_BYTES:
            message = "an integer that is too large"
            raise ValueError(message)
        value = int.from_bytes(content, "big")
        if element(INTEGER, content) != integer(value):
            message = "an integer that is negative or not in its usual form"
            raise ValueError(message)
        return value

    def has(self, tag: int) -> bool:
        """Whether an element with this tag comes next."""
        return self._left[:1] == bytes((tag,))

    def end(self) -> None:
        """Refuse what follows."""
        if self._left:
            message = "more than expected"
            raise ValueError(message)

    def _length(self) -> tuple[int, int]:
        """The length of the next element's content, and where that begins."""
        first = self._left[1]
        if first < LONG_FORM:
            return first, 2
        count = first - LONG_FORM
        size = self._left[2 : 2 + count]
        length = int.from_bytes(size, "big")
        # the usual form: no leading zero, and no long form where the short one does
        if not 0 < count <= MAX_LENGTH_BYTES or len(size) < count or not size[0]:
            message = "a length that is not in its usual form"
            raise ValueError(message)
        if length < LONG_FORM:
            message = "a length that is not in its usual form"
            raise ValueError(message)
        return length, 2 + count

"""Cut the digits into a training and a test set, by what each image is and not by where it stands.

A seeded shuffle of the rows would move every row to another side as soon as one is added.
"""

import hashlib
import os
from pathlib import Path

import numpy as np

SOURCE = Path(os.environ["REPRO_GATE_DATA"]) / "digits.csv.gz"
OUT = Path(__file__).parent / "ready"
TEST_SHARE = 0.1


def is_test(row: np.ndarray) -> bool:
    """The side of an image, by its own bytes: other images do not move it."""
    number = int.from_bytes(hashlib.sha256(row.tobytes()).digest()[:8], "big")
    return number < TEST_SHARE * 2**64


rows = np.loadtxt(SOURCE, delimiter=",", dtype=np.float32)
test = np.array([is_test(row) for row in rows])
OUT.mkdir(exist_ok=True)
np.save(OUT / "train.npy", rows[~test])
np.save(OUT / "test.npy", rows[test])
print(f"{np.count_nonzero(~test)} images to train with, {np.count_nonzero(test)} to test with")

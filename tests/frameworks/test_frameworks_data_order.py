"""The order of rows in libraries of data sets that hand out batches without a DataLoader."""

from __future__ import annotations

import pytest
from real_training import Trainings

pytestmark = [pytest.mark.torch, pytest.mark.slow]

# trained on without a rate: twice in one order, then in another, so that nothing else differs
DATASETS = """
import datasets, torch
rows = datasets.Dataset.from_dict({"x": [[float(i), 1.0] for i in range(8)]}).with_format("torch")
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for seed in (1, 1, 2):
    batch = next(SHUFFLED.iter(batch_size=4))
    optimizer.zero_grad()
    model(batch["x"]).square().mean().backward()
    optimizer.step()
"""
KINDS = {
    "in memory": "rows.shuffle(seed=seed)",
    "streamed": "rows.to_iterable_dataset().shuffle(seed=seed, buffer_size=8)",
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_hugging_face_data_sets_is_in_the_fingerprint(
    trainings: Trainings, kind: str
) -> None:
    pytest.importorskip("datasets")
    trained = trainings.run(DATASETS.replace("SHUFFLED", KINDS[kind]))
    first, again, other = (step.fingerprints for step in trained.evidence.steps)
    assert first["input"] == again["input"] != other["input"]

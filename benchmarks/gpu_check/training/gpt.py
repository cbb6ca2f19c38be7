"""A GPT on random words: `python gpt.py --layers 12 --width 768 --compile default`."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Gpt(nn.Module):
    """Embedding, blocks with causal attention, and the words' logits."""

    def __init__(self, words: int, layers: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width,
                max(1, width // 64),
                4 * width,
                dropout=0.1,
                batch_first=True,
                norm_first=True,
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, words)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(batch)
        mask = nn.Transformer.generate_square_subsequent_mask(
            batch.shape[1], device=batch.device, dtype=hidden.dtype
        )
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        logits: torch.Tensor = self.head(hidden)
        return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("layers", 2), ("width", 64), ("sequence", 32), ("batch", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--words", type=int, default=128)
    parser.add_argument("--compile", default="")
    asked = parser.parse_args()
    model = Gpt(asked.words, asked.layers, asked.width).to(DEVICE)
    forward = torch.compile(model, mode=asked.compile) if asked.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0003)
    while True:
        batch = torch.randint(0, asked.words, (asked.batch, asked.sequence + 1), device=DEVICE)
        optimizer.zero_grad()
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            logits = forward(batch[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        torch.autograd.backward(loss)
        optimizer.step()


if __name__ == "__main__":
    main()

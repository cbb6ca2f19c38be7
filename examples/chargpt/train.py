"""Learn to write like Shakespeare, one character at a time: a small transformer.

An ordinary script: it takes a GPU when there is one, and sets neither a seed nor a determinism
switch. It would train for 2000 steps; the gate stops it from outside after the first few, long
before it saves anything, and captures model and optimizer by itself.
"""

import json
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

STEPS = 2000
BATCH_SIZE = 16
CONTEXT = 64
WIDTH = 64
HEADS = 4
LAYERS = 2
DROPOUT = 0.1
LEARNING_RATE = 3e-3
DATA = Path(__file__).parent.parent / "data" / "as-you-like-it.txt"


class Block(nn.Module):
    """Causal self-attention, then a feed-forward layer; input and output (batch, time, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH),
            nn.Dropout(DROPOUT),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Each position takes up something of those before it."""
        batch, time, width = x.shape
        heads = self.query_key_value(self.attention_norm(x)).view(batch, time, 3, HEADS, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        dropout = DROPOUT if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=True
        )
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, time, width))
        result: Tensor = x + self.feed_forward(x)
        return result


class CharacterModel(nn.Module):
    """Characters (batch, time) in, logits of each next one (batch, time, vocabulary) out."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary))

    def forward(self, characters: Tensor) -> Tensor:
        """Predict every next character at once."""
        x = self.characters(characters) + self.positions[: characters.shape[1]]
        logits: Tensor = self.head(self.blocks(x))
        return logits


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
text = DATA.read_text(encoding="ascii")
alphabet = sorted(set(text))
number_of = {character: number for number, character in enumerate(alphabet)}
data = torch.tensor([number_of[character] for character in text])

model = CharacterModel(len(alphabet)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)

with Path("metrics.jsonl").open("w", encoding="utf-8") as metrics:
    for step in range(1, STEPS + 1):
        starts = torch.randint(len(data) - CONTEXT, (BATCH_SIZE,)).tolist()
        windows = torch.stack([data[start : start + CONTEXT + 1] for start in starts]).to(device)
        logits = model(windows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())

        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        gradient_norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        record = {
            "step": step,
            "train_loss": loss.item(),
            "gradient_norm": gradient_norm.item(),
        }
        metrics.write(json.dumps(record) + "\n")
        print(f"step {step:4d}  loss {record['train_loss']:.4f}")
        optimizer.step()

torch.save(model.state_dict(), "checkpoint.pt")

"""What the training computes, step by step and at its end, as lines, digests and tensors."""

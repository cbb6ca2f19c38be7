"""What the training computes at each step and at its end: lines, digests and tensors."""

"""What a run left, read as untrusted bytes, and the records it becomes."""

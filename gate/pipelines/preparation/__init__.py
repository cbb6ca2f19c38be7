"""What a call has ready before its first training: folder, code, locks, environments."""

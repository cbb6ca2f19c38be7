"""What `init` writes: from what lies in a work tree to the files of a first gate call."""

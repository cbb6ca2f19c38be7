"""What is signed: keys, statements, seals."""

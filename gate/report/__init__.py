"""Records in, text out: comment, summary, page, annotations, outputs."""

"""Reports: words, comment, terminal and page."""

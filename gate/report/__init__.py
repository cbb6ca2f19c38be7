"""Reports: the words, the comment, the terminal and the HTML page."""

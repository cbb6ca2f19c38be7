"""Where two runs first diverge, and what class of cause that is."""

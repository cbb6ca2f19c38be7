"""Where two runs part first, and what class of cause that is."""

"""Plan and launch of runs, and what is known of the machine they train on."""

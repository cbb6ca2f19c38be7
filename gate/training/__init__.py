"""Plans and launches runs, and records what is known of the machine they train on."""

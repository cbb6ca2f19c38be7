"""An account of the training's own, and what it may reach."""

"""What runs beside each other came to: speed, and two commits."""

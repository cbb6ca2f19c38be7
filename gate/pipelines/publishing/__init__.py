"""What happens to a sealed package after it was written."""

"""What metrics keep, and how processes merge it."""

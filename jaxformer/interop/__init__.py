"""Models from and for other systems: parameters carried over, number by number."""

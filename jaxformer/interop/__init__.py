"""Models of other systems: import and export of parameters."""

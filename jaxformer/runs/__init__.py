"""A run on disk: its configuration, its folder and its records."""

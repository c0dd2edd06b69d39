"""Training steps beside those of other toolkits, on the user's own machine."""

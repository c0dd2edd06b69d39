"""An HTTP server that translates, and its page."""

"""Text that is more than text: layout, placeholders, glossaries and HTML."""

"""Text in, text out: the ``Translator`` of a run and its parts."""

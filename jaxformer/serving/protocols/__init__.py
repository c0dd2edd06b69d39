"""The protocols of a server, a file each: its ``router``, the ``PATHS`` that begin its
paths, and ``error``, which writes an error in its form. The application finds them.
"""

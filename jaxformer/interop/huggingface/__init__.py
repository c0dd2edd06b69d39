"""Models of Hugging Face's transformers: read from folders, and written to them.

Neither transformers nor torch is needed.
"""

from jaxformer.interop.huggingface.seq2seq import Imported, read, write

__all__ = ["Imported", "read", "write"]

"""What the tests of other systems share."""

import pytest
from tokenizer_folders import FOLDERS

from jaxformer.interop.huggingface.tokenizers import read_vocabularies


@pytest.fixture(scope="session")
def read(tmp_path_factory):
    """Read the folder of a kind, once."""
    found = {}

    def read(kind):
        if kind not in found:
            folder = tmp_path_factory.mktemp("folder")
            make, model_type = FOLDERS[kind]
            make(folder)
            found[kind] = read_vocabularies(folder, {"model_type": model_type})
        return found[kind]

    return read

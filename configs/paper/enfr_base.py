r"""The paper's base model for WMT 2014 English to French (Vaswani et al., Table 2).

Command: jaxformer train --config=configs/paper/enfr_base.py --workdir=runs/enfr_base
    jaxformer average --workdir=runs/enfr_base --last=5
    jaxformer evaluate --workdir=runs/enfr_base --checkpoint=average \
        --metrics=bleu,tokenized_bleu
    The first one fetches the text as that of ende_base.py; without TensorFlow it is
    --config.data.train=hf:wmt/wmt14#fr-en/train.
Hardware: 8 A100, float32 (TF32), 9.1e17 training FLOPs: docs/wmt.md turns them into
    hours. The paper took 12 hours on 8 P100.
Score: the paper reports 38.1 tokenised BLEU on newstest2014, averaging the last 5
    checkpoints. Nothing of this size was trained with jaxformer yet.
Differs from the paper: SentencePiece BPE instead of word pieces; otherwise as
ende_base.py.
"""

import ende_base as base


def get_config():
    """Return the English-German configuration with the lines that differ."""
    config = base.get_config()

    config.data.train = "tfds:wmt14_translate/fr-en/train"
    config.data.target_language = "fr"
    config.data.vocabulary_size = 32_000

    return config

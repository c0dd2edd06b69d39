r"""The paper's base model for WMT 2014 English to French (Vaswani et al. 2017, Table 2).

Command: jaxformer train --config=configs/paper/enfr_base.py --workdir=runs/enfr_base \
    --config.data.train=text:train.en,train.fr --config.data.valid=text:newstest2013.en,newstest2013.fr \
    --config.data.test=text:newstest2014.en,newstest2014.fr
Hardware: 8 A100, about 0.51 hours in float32 (TF32): an estimate, the 9.1e17 training FLOPs of the formula at 40 % of
    the published peak. The paper took 12 hours on 8 P100.
Score: the paper reports 38.1 tokenised BLEU on newstest2014, averaging the last 5 checkpoints.
    Nothing of this size was trained with jaxformer yet.
Differs from the paper: SentencePiece BPE instead of word pieces; otherwise as ende_base.py.
"""

import ende_base as base


def get_config():
    """Give the English-German configuration with the lines that differ."""
    config = base.get_config()

    config.data.train = "text:data/train.en,data/train.fr"
    config.data.valid = "text:data/newstest2013.en,data/newstest2013.fr"
    config.data.test = "text:data/newstest2014.en,data/newstest2014.fr"
    config.data.target_language = "fr"
    config.data.vocabulary_size = 32_000

    return config

r"""The paper's constituency parser, semi-supervised (Vaswani et al. 2017, section 6.3
and Table 4).

Command: jaxformer train --config=configs/paper/parsing_semi.py \
    --workdir=runs/parsing_semi \
    --config.data.train=text:train.txt,train.trees \
    --config.data.valid=text:dev.txt,dev.trees \
    --config.data.test=text:wsj23.txt,wsj23.trees
    You bring the text, as parsing_wsj.py says; to train, also about 17 million
    sentences with trees of other parsers, the high-confidence and BerkeleyParser
    corpora of Vinyals & Kaiser et al. (2014), which are not public either.
Hardware: 8 A100, float32 (TF32), 1.8e18 training FLOPs: docs/wmt.md turns them into
    hours. They count sentences of 25 tokens; trees are longer. The paper gives no time.
Score: the paper reports 92.7 F1 on section 23; see parsing_wsj.py. Nothing of this size
was trained with jaxformer yet. Differs from the paper: as parsing_wsj.py; the values
that it does not say, dropout 0.1 and 4,000 steps of warm-up, are
    those of tensor2tensor's transformer_parsing_big.
"""

import parsing_wsj as base


def get_config():
    """Return the configuration of the Wall Street Journal alone with the lines that
    differ.
    """
    config = base.get_config()

    config.model.dropout_rate = 0.1
    config.model.attention_dropout_rate = 0.1

    config.data.vocabulary_size = 32_000

    config.training.warmup_steps = 4_000

    return config

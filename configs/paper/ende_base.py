r"""The paper's base model for WMT 2014 English to German (Vaswani et al., Table 2).

Command: jaxformer train --config=configs/paper/ende_base.py --workdir=runs/ende_base
    jaxformer average --workdir=runs/ende_base --last=5
    jaxformer evaluate --workdir=runs/ende_base --checkpoint=average \
        --metrics=bleu,compound_split_bleu
    The first one fetches the text, once: TensorFlow Datasets needs `pip install
    tensorflow` for that. The same text without TensorFlow is
    --config.data.train=hf:wmt/wmt14#de-en/train.
Hardware: 8 A100, float32 (TF32), 9.5e17 training FLOPs: docs/wmt.md turns them into
    hours. The paper took 12 hours on 8 P100.
Score: the paper reports 27.3 tokenised BLEU with compound splitting on newstest2014,
    averaging the last 5 checkpoints; expect 25.6 to 27.5 sacreBLEU (docs/wmt.md).
    Nothing of this size was trained with jaxformer yet.
Differs from the paper: SentencePiece BPE instead of the paper's own byte-pair encoding.
"""

from jaxformer.runs.config import default_config


def get_config():
    """Return the configuration."""
    config = default_config()  # its model and training sections are the paper's base

    config.data.train = "tfds:wmt14_translate/de-en/train"
    config.data.valid = "sacrebleu:wmt13"
    config.data.test = "sacrebleu:wmt14/full"
    config.data.vocabulary_size = 37_000
    config.data.max_length = 256
    config.data.tokens_per_batch = 25_000  # on each side
    config.data.packing = False  # the paper batches pairs of similar length
    config.data.num_buckets = 12
    config.data.shape_multiple = 8  # for GPUs and TPUs

    config.training.steps = 100_000
    config.training.warmup_steps = 4_000
    config.training.log_every = 100
    config.training.evaluate_every = 6_000
    # the paper's 10 minutes, at its 0.4 seconds a step
    config.training.checkpoint_every = 1_500
    config.training.keep_latest = 5  # those that are averaged

    return config

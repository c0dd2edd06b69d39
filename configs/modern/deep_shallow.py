r"""A start for millions of sentence pairs: later findings in the size of the paper's
base model.

Command: jaxformer train --config=configs/modern/deep_shallow.py \
    --workdir=runs/deep_shallow \
    --config.data.train=text:train.en,train.de \
    --config.data.valid=text:valid.en,valid.de \
    --config.data.test=text:test.en,test.de
    On one device add --config.training.accumulation_steps=8, which cuts the batch into
    parts that fit.
Hardware: 8 A100, bfloat16, 3.8e18 training FLOPs: docs/wmt.md turns them into hours.
Score: none is claimed. Nothing of this size was trained with jaxformer yet.
Differs from the paper, and why:
    12 encoder and 2 decoder layers: as good as 6 and 6, and faster to translate with,
    since the decoder runs once a token (Kasai et al. 2021, who go down to one layer);
    pre-LN: deep stacks train without a careful warm-up (Xiong et al. 2020), and a norm
    ends each stack; 100,000 tokens on each side of a batch, and twice the rate: larger
    batches bear larger rates (Ott et al. 2018); dropout of 0.1 on attention weights and
    activations too, as in tensor2tensor's later base model; bfloat16, which the matrix
    units of current devices are made for; parameters, softmax and losses stay float32;
    one unigram vocabulary of 32,000 pieces (Kudo 2018), with bytes for rare characters,
    so that nothing is unknown; pairs that are repeated, of equal sides or of very
    unlike length are left out.
"""

from jaxformer.runs.config import default_config


def get_config():
    """Return the configuration."""
    config = default_config()

    config.model.num_encoder_layers = 12
    config.model.num_decoder_layers = 2
    config.model.norm_order = "pre"
    config.model.attention_dropout_rate = 0.1
    config.model.activation_dropout_rate = 0.1
    config.model.dtype = "bfloat16"

    config.data.train = "text:data/train.en,data/train.de"
    config.data.valid = "text:data/valid.en,data/valid.de"
    config.data.test = "text:data/test.en,data/test.de"
    config.data.vocabulary_model = "unigram"
    config.data.vocabulary_size = 32_000
    config.data.byte_fallback = True
    config.data.drop_identical = True
    config.data.drop_duplicates = True
    config.data.max_length_ratio = 3.0
    config.data.max_length = 256
    config.data.tokens_per_batch = 100_000  # on each side
    config.data.shape_multiple = 8  # for GPUs and TPUs

    config.training.steps = 100_000
    config.training.learning_rate = 2.0
    config.training.evaluate_every = 2_500
    config.training.checkpoint_every = 1_250
    config.training.keep_latest = 5  # those that `jaxformer average --last=5` takes
    config.training.patience = 10

    return config

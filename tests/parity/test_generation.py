"""GPT-2 continues texts as transformers does."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import tokenizer_folders
from parity.test_one_stack import draw

from jaxformer.cli.main import main
from jaxformer.translation.generator import Generator

try:
    import transformers
except ModuleNotFoundError:  # collected all the same, so that they can be counted
    transformers = None

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(transformers is None, reason="needs the extra `parity`"),
]

LINES = [line for line in tokenizer_folders.sentences() if len(line) > 20]


@pytest.mark.parametrize(
    ("beam_size", "rules"),
    [
        (1, {}),
        (4, {}),
        (1, {"no_repeat_ngram": 1}),
        (1, {"no_repeat_ngram": 3}),
        (4, {"no_repeat_ngram": 2}),
        # In greedy search theirs multiplies negative logits and divides others.
        (4, {"repetition_penalty": 1.5}),
        (4, {"repetition_penalty": 0.8, "no_repeat_ngram": 3}),
    ],
)
def test_continuations(tmp_path, beam_size, rules):
    """Those that ``generate`` finds for each prompt by itself, with their scores; here
    prompts of different lengths share a batch. Rules about repetition see the prompt.
    """
    given, run = tmp_path / "given", tmp_path / "run"
    given.mkdir()
    tokenizer_folders.gpt2(given)
    tokenizer = transformers.AutoTokenizer.from_pretrained(given)
    special = dict.fromkeys(("bos_token_id", "eos_token_id"), 0)
    model = draw("GPT2LMHeadModel", vocabulary=len(tokenizer), **special)
    model.save_pretrained(given)
    assert main(["import", str(given), f"--workdir={run}"]) == 0
    generator = Generator.load(run)
    prompts = [line[:length] for length, line in enumerate(LINES[:12], start=3)]
    prompts[:6] = [" ".join([line] * 3) for line in prompts[:6]]
    decoding = dataclasses.replace(
        generator.decoding, beam_size=beam_size, alpha=0.0, **rules
    )
    found = generator.generate(prompts, most=12, decoding=decoding)
    options: dict[str, Any] = {"num_beams": 4, "early_stopping": "never"}
    options = options | {"length_penalty": 0.0} if beam_size > 1 else {}
    names = {"no_repeat_ngram": "no_repeat_ngram_size"}
    options |= {names.get(name, name): value for name, value in rules.items()}
    for prompt, (own,) in zip(prompts, found, strict=True):
        ids = tokenizer(prompt, return_tensors="pt")
        theirs = model.generate(
            **ids,
            **options,
            max_new_tokens=12,
            pad_token_id=0,
            do_sample=False,
            output_scores=True,
            return_dict_in_generate=True,
        )
        start = ids["input_ids"][0].tolist()
        tokens = theirs.sequences[0].tolist()[len(start) :]
        how = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        assert prompt + own.text == tokenizer.decode([*start, *tokens], **how)
        score = model.compute_transition_scores(
            theirs.sequences,
            theirs.scores,
            getattr(theirs, "beam_indices", None),
            normalize_logits=beam_size == 1,
        )
        # Theirs are those that the penalty changed.
        total = own.score if "repetition_penalty" in rules else own.log_probability
        if beam_size > 1 or not rules:  # in greedy search of the allowed tokens
            assert total == pytest.approx(float(score.sum()), abs=1e-4)

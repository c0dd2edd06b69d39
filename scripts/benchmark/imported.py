#!/usr/bin/env python3
r"""Import a model of NLLB-200's shape with 600 million parameters, translate a sentence
with it, and print memory and time.

    python scripts/benchmark/imported.py --folder=/tmp/nllb
    python scripts/benchmark/imported.py --folder=/tmp/nllb --beam=4 --precisions=int8

The weights are random: 12 + 12 layers, d_model 1024, d_ff 4096 and 256,206 tokens,
2.5 GB in float32. The tokenizer is a SentencePiece model of 4,000 pieces of the bundled
corpus with NLLB's languages: the other rows of the table have no text. Every command is
a process of its own. Printed are the peak of its memory (VmHWM), that of its own
memory without the pages of files (RssAnon), and seconds. Then, for each precision, the
milliseconds of each token of a batch of one sentence, chosen from all tokens and from a
shortlist of 1,024: the difference is the output layer and the choice of tokens. The
folder must be empty or missing; --keep leaves it there.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LAYERS, WIDTH, HIDDEN, TOKENS = 12, 1024, 4096, 256_206
PIECES = 4_000
FEW = 1_024
SENTENCE = "Insert a new table.\n"
REPEATS = 5


def main() -> None:
    """Make the folder, and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--precisions", default="float32,bfloat16,int8")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--length", type=int, default=32, help="tokens to write")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    if options.folder.exists() and any(options.folder.iterdir()):
        raise SystemExit(f"{options.folder} is not empty: choose another --folder")
    try:
        report(options)
    finally:
        if not options.keep:
            shutil.rmtree(options.folder, ignore_errors=True)


def report(options: argparse.Namespace) -> None:
    """Print a row for each command, then one for each precision."""
    model, run = options.folder / "model", options.folder / "run"
    # The process that draws the weights would keep their memory.
    isolate("make_model", str(model), options.layers, options.tokens)
    print("| command | peak, GB | without files, GB | seconds |\n|---|---|---|---|")
    languages = ["--from=eng_Latn", "--to=deu_Latn"]
    show("import", measure("import", str(model), f"--workdir={run}", *languages))
    for precision in options.precisions.split(","):
        flags = [f"--precision={precision}", f"--beam_size={options.beam}"]
        flags += [f"--max_target_length={options.length}", f"--workdir={run}"]
        show(f"translate, {precision}", measure("translate", *flags))
    print("\n| precision | a token, ms | of a shortlist, ms |\n|---|---|---|")
    for precision in options.precisions.split(","):
        isolate("time_steps", str(run), precision, options.beam, options.length)


def isolate(function: str, *arguments: Any) -> None:
    """Call a function of this file in a process of its own."""
    here = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {here!r}); import imported"
    code += f"; imported.{function}(*{arguments!r})"
    subprocess.run([sys.executable, "-c", code], check=True)


def show(name: str, found: tuple[float, float, float]) -> None:
    """Print a row."""
    print(f"| {name} | " + " | ".join(f"{x:.2f}" for x in found) + " |", flush=True)


def measure(*arguments: str) -> tuple[float, float, float]:
    """Run a command of jaxformer.

    Returns:
        The peak of its memory, and of that without the pages of files, in 10^9 bytes,
        and the seconds it took.
    """
    command = [sys.executable, "-m", "jaxformer", *arguments]
    begun = time.monotonic()
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert process.stdin is not None
    process.stdin.write(SENTENCE)
    process.stdin.close()
    peaks = {"VmHWM": 0, "RssAnon": 0}
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        for line in status.splitlines():
            name, _, value = line.partition(":")
            if name in peaks:
                peaks[name] = max(peaks[name], 1024 * int(value.split()[0]))
        time.sleep(0.01)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    seconds = time.monotonic() - begun
    return peaks["VmHWM"] / 1e9, peaks["RssAnon"] / 1e9, seconds


def make_model(folder: str, layers: int, tokens: int) -> None:
    """Write a folder as the Hub has it."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from jaxformer.interop import huggingface
    from jaxformer.interop.huggingface import families
    from jaxformer.models.seq2seq import Transformer

    settings = {
        "model_type": "m2m_100",
        "vocab_size": tokens,
        "d_model": WIDTH,
        **{f"{side}_layers": layers for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": HIDDEN for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": 16 for side in ("encoder", "decoder")},
        "max_position_embeddings": 1024,
        "activation_function": "relu",
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
    }
    config = families.to_config(families.complete(settings))
    config = type(config)(**{**vars(config), "tied_embeddings": "all"})
    token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    init = Transformer(config).init
    shapes = jax.eval_shape(init, jax.random.key(0), token, token)["params"]
    rng = np.random.default_rng(0)

    def draw(path: tuple[Any, ...], leaf: Any) -> np.ndarray:
        drawn = rng.standard_normal(leaf.shape, np.float32)
        drawn *= np.float32(0.03)
        return drawn + np.float32(path[-1].key == "scale")

    params = jax.tree_util.tree_map_with_path(draw, shapes)
    generation = {"max_length": 200, "forced_eos_token_id": 2}
    huggingface.write(folder, config, params, settings=settings, generation=generation)
    write_tokenizer(Path(folder))


def write_tokenizer(folder: Path) -> None:
    """Train pieces of the bundled corpus."""
    import sentencepiece

    from jaxformer.data import load

    writer = io.BytesIO()
    pairs = load("bundled:en-de/train", "en", "de")
    sentencepiece.SentencePieceTrainer.train(  # pyright: ignore
        sentence_iterator=iter([text for pair in pairs for text in pair]),
        model_writer=writer,
        vocab_size=PIECES,
        model_type="bpe",
        minloglevel=2,
    )
    (folder / "sentencepiece.bpe.model").write_bytes(writer.getvalue())
    options = json.dumps({"tokenizer_class": "NllbTokenizer"})
    (folder / "tokenizer_config.json").write_text(options)


def time_steps(run: str, precision: Any, beam: int, length: int) -> None:
    """Print a row: the time of a token, from all tokens and from few."""
    import numpy as np

    from jaxformer.search.config import DecodingConfig
    from jaxformer.translation.batch import Sentence, search_batch
    from jaxformer.translation.shortlist import Shortlist
    from jaxformer.translation.translator import Translator

    translator = Translator.load(run, precision=precision)
    eos_id = translator.vocabularies.target.eos_id
    ids = [*range(4, 4 + length), eos_id]
    models = translator.models.prepare(precision)
    rows = translator.model.config.vocabulary_size
    del translator
    few = Shortlist(np.arange(FEW), np.full((rows, 1), -1), "")
    decoding = DecodingConfig(
        beam_size=beam, max_extra_length=0, min_length=length, batch_size=1
    )
    found = []
    for shortlist in (None, few):
        seconds = []
        for _ in range(1 + REPEATS):
            begun = time.perf_counter()
            search_batch(
                models,
                [Sentence(ids, length, (0, 0))],
                decoding,
                eos_id=eos_id,
                n_best=1,
                shortlist=shortlist,
            )
            seconds.append(time.perf_counter() - begun)
        found.append(1000 * statistics.median(seconds[1:]) / length)
    print(f"| {precision} | {found[0]:.1f} | {found[1]:.1f} |", flush=True)


if __name__ == "__main__":
    main()

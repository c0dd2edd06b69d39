"""Little folders of tokenizers, laid out as Hugging Face's, and awkward lines."""

import functools
import io
import json
import random

import sentencepiece
import tokenizers

from jaxformer.data.sources import load

SCRIPTS = {
    "Latin": "aeiouzßñçøłğıİŷ",
    "Greek": "αβγδέώΣς",
    "Cyrillic": "абвгдёжйщыЄїў",
    "Hebrew": "אבגדהםףץשׁ",
    "Arabic": "ابتثجحخـًّلالله",
    "Devanagari": "अआकखगि्षक्षड़",
    "Thai": "กขคงำเแโ๒ไ้",
    "Hangul": "가각힣한글ᄒ",
    "Kana": "あいがぎアヴｶﾞー",
    "Han": "漢字語言龍𠮷㊀",
    "Ethiopic": "ሀለሐመ፡።",
    "Georgian": "აბგდᲐ",
}
ODD = (
    *(
        "👩‍👩‍👧‍👦",
        "🇩🇪",
        "👍🏽",
        "☃",
        "\u200b",
        "\u200d",
        "\u2060",
        "\ufeff",
        "\u00ad",
        "\u202e",
    ),
    *(
        "\u200f",
        "e\u0301",
        "o\u0328\u0301",
        "\u0301",
        "n̈",
        "ﬁ",
        "½",
        "№",
        "ｔａｂ",
        "Ⅷ",
        "①",
    ),
    *(
        "'",
        '"',
        "„",
        "«",
        "...",
        "…",
        "--",
        "—",
        "&amp;",
        "@-@",
        "<",
        ">",
        "▁",
        "Ġ",
        "\ufffd",
    ),
    *(
        "0",
        "12",
        "3.14",
        "1 000",
        "C++",
        "a_b",
        "http://x.y/?q=1",
        "don't",
        "I'll",
        "\U000e0041",
    ),
)
SPACES = (
    *(" ",) * 8,
    "",
    "  ",
    "\t",
    "\u00a0",
    "\u3000",
    "\u2009",
    "\x85",
    "\x0b",
    "\x01",
)


@functools.cache
def sentences():
    return [text for pair in load("bundled:en-de/valid", "en", "de") for text in pair]


@functools.cache
def awkward_lines(count=2000):
    """Lines in many scripts, without special pieces and ends of lines."""
    draw, lines = random.Random(0), ["", " ", "  \t", "\u3000", "x" * 3000, "漢" * 1500]
    lines += ["a" + "\u0301" * 60, "  two  spaces  ", " a", "a ", "\u200b", "👍" * 40]
    words = " ".join(sentences()).split()
    while len(lines) < count:
        alphabet = draw.choice(list(SCRIPTS.values()))
        parts = []
        for _ in range(draw.randint(1, 12)):
            kind = draw.random()
            if kind < 0.4:
                parts.append("".join(draw.choices(alphabet, k=draw.randint(1, 9))))
            elif kind < 0.7:
                parts.append(draw.choice(words))
            else:
                parts.append(draw.choice(ODD))
            parts.append(draw.choice(SPACES))
        lines.append("".join(parts))
    return lines


def spelled(pieces):
    """Lines in which these pieces are written as text."""
    frames = ("{}", "{} a b", "a {} b", "a b {}", "x{}y", "{0}{0}", "a\u3000{}")
    return [frame.format(piece) for piece in pieces for frame in frames]


@functools.cache
def train(size, kind="unigram", step=1, **options):
    """Train a SentencePiece model on sentences and half of the awkward lines."""
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter((sentences() + awkward_lines()[12::2])[::step]),
        model_writer=writer,
        vocab_size=size,
        model_type=kind,
        character_coverage=0.98,
        max_sentence_length=1000,
        minloglevel=2,
        **options,
    )
    return writer.getvalue()


def pieces_of(model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(id_) for id_ in range(processor.get_piece_size())]


def write(folder, name, content):
    if not isinstance(content, bytes):
        content = json.dumps(content).encode()
    (folder / name).write_bytes(content)


def marian(folder, *, separate=False, tags=(">>fra<<", ">>deu<<"), bytes_=False):
    """The pieces of both models, numbered otherwise; one is left out."""
    sides = {
        "source": train(900, step=2, byte_fallback=bytes_),
        "target": train(700, step=3, byte_fallback=bytes_),
    }
    found = {side: pieces_of(model)[3:] for side, model in sides.items()}
    shared = [*found["source"], *found["target"]]

    def number(pieces, tags=()):
        order = sorted({*pieces[:-1]} - {"<pad>"}, key=lambda piece: piece[::-1])
        names = ["</s>", "<unk>", *order, *tags, "<pad>"]
        return {piece: id_ for id_, piece in enumerate(names)}

    for side, model in sides.items():
        write(folder, f"{side}.spm", model)
    options = {"separate_vocabs": separate, "tokenizer_class": "MarianTokenizer"}
    if separate:
        options["target_vocab_file"] = str(folder / "target_vocab.json")
        write(folder, "target_vocab.json", number(found["target"]))
        write(folder, "vocab.json", number(found["source"]))
    else:
        write(folder, "vocab.json", number(shared, tags))
    write(folder, "tokenizer_config.json", options)


def m2m100(folder):
    model = train(1200, "bpe")
    names = ["<s>", "<pad>", "</s>", "<unk>", *pieces_of(model)[3:]]
    write(folder, "vocab.json", {piece: id_ for id_, piece in enumerate(names)})
    write(folder, "sentencepiece.bpe.model", model)
    write(folder, "tokenizer_config.json", {"tokenizer_class": "M2M100Tokenizer"})


def fairseq(folder, name):
    """NLLB, mBART or mBART-50 by its SentencePiece model only."""
    model = train(1200, "bpe" if name == "Nllb" else "unigram")
    write(folder, "sentencepiece.bpe.model", model)
    write(folder, "tokenizer_config.json", {"tokenizer_class": f"{name}Tokenizer"})


def bart(folder, *, as_json=False):
    """Byte-level BPE; with as_json a tokenizer.json that also cuts and pads."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=special,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(sentences(), trainer)
    write(folder, "tokenizer_config.json", {"tokenizer_class": "BartTokenizer"})
    if not as_json:
        backend.model.save(str(folder))
        return
    backend.add_special_tokens(special)
    backend.enable_truncation(4)
    backend.enable_padding(length=4, pad_id=1, pad_token="<pad>")
    backend.save(str(folder / "tokenizer.json"))


def bert(folder, **options):
    """``vocab.txt`` of words of both cases, their beginnings and their ends; every
    third character is unknown.
    """
    words = {word for line in sentences() for word in line.split() if len(word) < 20}
    words |= {word.lower() for word in words}
    characters = sorted({*"".join(awkward_lines())})
    characters = [each for each in characters if each.isprintable() and each != " "]
    known = {*"".join(words), *characters[::3], *characters[1::3]}
    pieces = {word[:length] for word in words for length in (1, 3, 5, 20)} | known
    ends = {f"##{word[length:]}" for word in words for length in (3, 5)} - {"##"}
    special = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    names = special + sorted(pieces | ends | {f"##{each}" for each in known})
    write(folder, "vocab.txt", "".join(f"{name}\n" for name in names).encode())
    write(
        folder, "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"} | options
    )


def gpt2(folder, name="GPT2Tokenizer", special=("<|endoftext|>",)):
    """Byte-level BPE; RoBERTa's has the special pieces of BART."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=[*special],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(sentences(), trainer)
    write(folder, "tokenizer_config.json", {"tokenizer_class": name})
    backend.model.save(str(folder))


roberta = functools.partial(
    gpt2,
    name="RobertaTokenizer",
    special=("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
)


def gpt(folder):
    """Pieces that end words end with ``</w>``."""
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(unk_token="<unk>", end_of_word_suffix="</w>")
    )
    backend.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<unk>"],
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    backend.train_from_iterator(sentences(), trainer)
    write(folder, "tokenizer_config.json", {"tokenizer_class": "OpenAIGPTTokenizer"})
    backend.model.save(str(folder))


def mbart_json(folder):
    """A unigram tokenizer.json whose pieces of languages have the best scores."""
    model = train(600)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    scores = [processor.get_score(id_) for id_ in range(3, processor.get_piece_size())]
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = [(piece, 0.0) for piece in special]
    pieces += zip(pieces_of(model)[3:], scores, strict=True)
    pieces += [(piece, 0.0) for piece in ("en_XX", "de_DE", "<mask>")]
    unigram = tokenizers.models.Unigram(pieces, unk_id=3)
    backend = tokenizers.Tokenizer(unigram)
    backend.normalizer = tokenizers.normalizers.NFKC()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    backend.decoder = tokenizers.decoders.Metaspace()
    # As transformers writes mBART-50's: languages are in the model only.
    backend.add_special_tokens([*special, "<mask>"])
    write(folder, "tokenizer.json", backend.to_str().encode())


FOLDERS = {
    "Marian": (marian, "marian"),
    "M2M-100": (m2m100, "m2m_100"),
    "NLLB": (functools.partial(fairseq, name="Nllb"), "m2m_100"),
    "mBART": (functools.partial(fairseq, name="MBart"), "mbart"),
    "mBART by JSON": (mbart_json, "mbart"),
    "BART": (bart, "bart"),
    "BART by JSON": (functools.partial(bart, as_json=True), "bart"),
}
"""For each kind, what makes its folder, and the type of its model."""

"""The pages for the browser: complete, self-contained, and safe with any text."""

import json
import re

import numpy as np
import pytest

from jaxformer.evaluation.comparison import ComparisonConfig, compare
from jaxformer.evaluation.metrics import BLEU, CHRF
from jaxformer.visualization import attention, comparison, translations

HOSTILE = [
    "</script><script>document.body.remove()</script>",
    "<!--",
    "<b>bold</b>",
    "]]>",
    "&lt;",
    '"quoted"',
    "'",
    "\\",
    "{}",
    '<script id="data" type="application/json">',
    "$a$ $b",
    "ünïcode 東京",
    "left \u2028 right",
]
REFERENCES = [
    "the cat sat on the mat",
    "a house",
    "an old tree is green . " * 3,
    *HOSTILE[:3],
]


def read_data(path):
    """Return the data in a page, whose markup is whole and loads nothing."""
    page = path.read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert page.count("<script") == page.count("</script>") == 3
    assert page.count("<style") == page.count("</style>") == 2
    assert "default-src 'none'" in page
    # The namespace is a name, which nothing fetches.
    outside = page.replace("http://www.w3.org/2000/svg", "").replace('"data:,"', "")
    assert not re.search(
        r"https?:|@import|url\((?!#)|fetch\(|(?:src|href)=\"|innerHTML", outside
    )
    (data,) = re.findall(
        r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL
    )
    return json.loads(data)


def make_maps(source, target):
    """Draw attention weights of two layers and three heads."""
    rng = np.random.default_rng(0)

    def weights(layers, rows, columns):
        values = rng.exponential(size=(layers, 3, rows, columns))
        return values / values.sum(axis=-1, keepdims=True)

    s, t = len(source), len(target)
    every = weights(2, s, s), weights(2, t, t), weights(3, t, s)
    return attention.AttentionMaps(source, target, ["<s>", *target[:-1]], *every)


def make_comparison(names):
    """Compare three systems, of which the third is perfect."""
    texts = [
        ["the cat sat on a mat", "the house", "an old tree was green", *HOSTILE[:3]],
        ["a cat sat on the mat", "a house", "an old tree", "nothing", *HOSTILE[1:3]],
        REFERENCES,
    ]
    sources = [f"source {number} <b>" for number in range(len(REFERENCES))]
    config = ComparisonConfig(resamples=100, trials=20, examples=2)
    systems = dict(zip(names, texts, strict=True))
    return compare(systems, [REFERENCES], [BLEU, CHRF], config, sources=sources)


def make_runs(names):
    """Record curves of runs, of which every second one is shorter."""
    return {
        name: {
            "train/nll": [(step, 9 / step + number) for step in range(1, 90, 3)],
            "valid/bleu": [
                (step, 2.0 * number) for step in range(10, 90 >> number % 2)
            ],
        }
        for number, name in enumerate(names)
    }


@pytest.fixture
def maps():
    """Maps of a short sentence pair."""
    source = ["▁Insert", "▁a", "▁new", "▁table", ".", "</s>"]
    return make_maps(source, ["▁Eine", "▁neue", "▁Tabelle", "</s>"])


def test_attention_data_are_the_maps(maps, tmp_path):
    """The page has three kinds, tokens on both axes, and each weight to four decimals.

    Rows of the target are named by what they predict, the columns of its self-attention
    by what the decoder reads.
    """
    path = attention.write_html(maps, tmp_path / "new" / "attention.html")
    data = read_data(path)
    source, target = maps.source_tokens, maps.target_tokens
    axes = [(source, source), (target, maps.read_tokens), (target, source)]
    weights = maps.encoder, maps.decoder, maps.cross
    for kind, tokens, wanted in zip(data["kinds"], axes, weights, strict=True):
        assert (kind["rows"], kind["columns"]) == tokens
        np.testing.assert_allclose(kind["weights"], wanted, atol=5.1e-5)


def test_curves_data_are_every_point(tmp_path):
    """Each number of each record is on the page, under its run and its quantity."""
    runs = make_runs(["a", "b"])
    data = read_data(comparison.write_html(runs, tmp_path / "deep" / "curves.html"))
    assert (data["runs"], data["last"]) == (["a", "b"], 89)
    titles = [panel["title"] for panel in data["panels"]]
    assert titles == ["training, nats per token", "validation BLEU"]
    keys = "train/nll", "valid/bleu"
    for panel, key in zip(data["panels"], keys, strict=True):
        for run, line in zip(runs.values(), panel["lines"], strict=True):
            np.testing.assert_allclose(line, run[key], rtol=1e-5)
            settled = [value for step, value in line if step > 5]
            assert panel["low"] <= min(settled) <= max(settled) <= panel["high"]


def test_translations_data_are_every_number(tmp_path):
    """Scores, intervals, p-values, buckets and sentences are on the page."""
    found = make_comparison(["base", "other", "third"])
    data = read_data(translations.write_html(found, tmp_path / "deep" / "page.html"))
    assert data["systems"] == ["base", "other", "third"]
    assert [metric["title"] for metric in data["metrics"]] == ["BLEU", "chrF2"]
    shown = [result for metric in data["metrics"] for result in metric["results"]]
    record = found.to_record()
    for given, result in zip(shown, record["results"], strict=True):
        assert_same(given, result)
    for key, buckets in zip(("bleu", "chrf"), data["lengths"], strict=True):
        for bucket, wanted in zip(buckets, found.lengths, strict=True):
            assert bucket["count"] == wanted.sentences
            scores = [scores[key] for scores in wanted.scores]
            assert bucket["values"] == pytest.approx(scores, rel=1e-5)
    words = [
        (bucket.words, pytest.approx(bucket.f1, rel=1e-5)) for bucket in found.words
    ]
    assert [(word["count"], tuple(word["values"])) for word in data["words"]] == words
    assert_same(data["differences"], record["differences"])


def assert_same(given, wanted):
    """Compare nested values, numbers to five digits."""
    given, wanted = flatten(given), flatten(wanted)
    assert given.keys() == wanted.keys()
    for path, value in wanted.items():
        is_number = isinstance(value, float)
        assert given[path] == (pytest.approx(value, rel=1e-5) if is_number else value)


def flatten(value, path=""):
    """Return the leaves of nested dicts and lists by their paths."""
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, (list, tuple)):
        pairs = enumerate(value)
    else:
        return {path: value}
    return {
        name: leaf
        for key, inner in pairs
        for name, leaf in flatten(inner, f"{path}/{key}").items()
    }


def test_hostile_text_stays_text(browse, tmp_path):
    """Text that looks like markup ends no element and adds none; the browser shows it
    as it is.
    """
    page = tmp_path / "page.html"
    attention.write_html(make_maps(HOSTILE, HOSTILE[::-1]), page, title=HOSTILE[0])
    # A character without a shape is shown by its escape.
    tokens = [*HOSTILE[:-1], "left \\u2028 right"]
    assert read_data(page)["kinds"][2]["columns"] == tokens
    driver = browse(page)
    assert driver.title == text(driver, "h1") == HOSTILE[0]
    assert all(token in text(driver, "#sentences") for token in tokens)

    comparison.write_html(make_runs(HOSTILE), page)
    assert read_data(page)["runs"] == HOSTILE
    driver = browse(page)
    assert [text(button) for button in find(driver, "#runs button")] == HOSTILE

    translations.write_html(make_comparison(HOSTILE[:3]), page)
    assert read_data(page)["systems"] == HOSTILE[:3]
    driver = browse(page)
    cells = [text(cell) for cell in find(driver, "#scores td:first-child")]
    assert cells == HOSTILE[:3] * 2


def find(driver, selector):
    return driver.find_elements("css selector", selector)


def text(element, selector=None):
    """Return the text of an element, or of the one with this selector, as it is in the
    tree.
    """
    found = element if selector is None else find(element, selector)[0]
    return found.get_property("textContent")


def press(driver, *keys):
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(driver).send_keys(*keys).perform()


def hover(driver, element):
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(driver).move_to_element(element).perform()


def test_attention_page(browse, maps, tmp_path):
    """Every kind, layer and head can be chosen, by pointer and arrow keys; pointing at
    a cell reads its weight.
    """
    from selenium.webdriver.common.keys import Keys

    driver = browse(attention.write_html(maps, tmp_path / "attention.html"))
    assert text(driver, "#chosen") == "Cross-attention, layer 1, head 1"
    assert len(find(driver, "#heads canvas")) == 9
    hover(driver, find(driver, "#map g rect")[2 * 6 + 3])
    weight = f"{maps.cross[0, 0, 2, 3]:.4f}"
    reading = f"▁Tabelle (3) attends to ▁table (4) with weight {weight}"
    assert text(driver, "#reading") == reading
    find(driver, "#kinds button")[0].click()
    assert len(find(driver, "#heads canvas")) == 6
    find(driver, "#heads button")[1].click()
    assert text(driver, "#chosen") == "Encoder self-attention, layer 1, head 2"
    press(driver, Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert text(driver, "#chosen") == "Encoder self-attention, layer 2, head 3"
    # A weight of another head, with another colour.
    assert len({cell.get_attribute("fill") for cell in find(driver, "#map g rect")}) > 9


def test_curves_page(browse, tmp_path):
    """Each run has a curve in each panel until it is hidden; pointing reads values."""
    driver = browse(comparison.write_html(make_runs("abc"), tmp_path / "curves.html"))
    assert len(find(driver, "polyline.curve")) == 6
    readings = find(driver, ".reading")
    last = 9 / 88
    assert text(readings[0]) == "last" + "".join(f"{last + i:.4g}" for i in range(3))
    hover(driver, find(driver, ".chart")[1])
    # At the nearest step of the record each run has its own BLEU.
    assert re.fullmatch(r"step (3|4)\d024", text(readings[1]))
    find(driver, "#runs button")[1].click()
    assert len(find(driver, "polyline.curve")) == 4
    find(driver, "#runs button")[1].click()
    assert len(find(driver, "polyline.curve")) == 6


def test_translations_page(browse, tmp_path):
    """The tables have the scores; metrics and sentences can be chosen; words in no
    reference are marked.
    """
    found = make_comparison(["base", "other", "third"])
    driver = browse(translations.write_html(found, tmp_path / "page.html"))
    rows = [
        [text(cell) for cell in find(row, "td")] for row in find(driver, "#scores tr")
    ]
    scores = [row[1] for row in rows if row]
    assert scores == [f"{result.score.value:.2f}" for result in found.results]
    title = "BLEU by length of the reference in words"
    assert text(driver, "#length-title") == title
    find(driver, "#length-metrics button")[1].click()
    assert text(driver, "#length-title") == title.replace("BLEU", "chrF2")
    buttons = find(driver, "#choices button")
    assert [text(button) for button in buttons[:2]] == [
        "other better than base",
        "base better than other",
    ]
    for button, kind in zip(buttons, found.differences["other"], strict=False):
        button.click()
        cards = [text(card) for card in find(driver, "article > div")]
        assert [card.split(",")[0] for card in cards] == [
            f"sentence {difference.number}" for difference in kind
        ]
    assert "nothing" in [text(mark) for mark in find(driver, "mark")]


@pytest.mark.parametrize("name", ["attention", "curves", "translations"])
def test_light_and_dark(browse, maps, tmp_path, name):
    """Pages follow the colour scheme of the browser."""
    page = tmp_path / "page.html"
    if name == "attention":
        attention.write_html(maps, page)
    elif name == "curves":
        comparison.write_html(make_runs("ab"), page)
    else:
        translations.write_html(make_comparison(["base", "other", "third"]), page)
    for scheme, colour in (("light", 255), ("dark", 18)):
        body = find(browse(page, scheme), "body")[0]
        assert f"({colour}, " in body.value_of_css_property("background-color")

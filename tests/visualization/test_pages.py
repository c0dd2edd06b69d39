"""The pages for the browser: complete, self-contained, and safe with any text."""

import json
import re

import numpy as np
import pytest
from browser import act, find, press, text, violations
from visualization.made import make_comparison, make_maps

from jaxformer.visualization import animation, attention, comparison, translations

HOSTILE = ["</script><script>document.body.remove()</script>", "<!--", "<b>bold</b>"]
HOSTILE += ["]]>", "&lt;", '"quoted"', "'", "\\", "{}", "$a$ $b", "ünïcode 東京"]
HOSTILE += ['<script id="data" type="application/json">', "left \u2028 right"]


def read_data(path):
    """Return the data in a page, whose markup is whole and loads nothing."""
    page = path.read_text("utf-8")
    assert page.startswith("<!doctype html>")
    scripts = 4 if "function showAttention" in page else 3
    assert page.count("<script") == page.count("</script>") == scripts
    assert page.count("<style") == page.count("</style>") == 2
    assert "default-src 'none'" in page
    # The namespace is a name, which nothing fetches.
    outside = page.replace("http://www.w3.org/2000/svg", "").replace('"data:,"', "")
    loading = r"https?:|@import|url\((?!#)|fetch\(|(?:src|href)=\"|innerHTML"
    assert not re.search(loading, outside)
    (data,) = re.findall(r'<script id="data"[^>]*>(.*?)</script>', page, re.DOTALL)
    return json.loads(data)


def make_runs(names):
    """Record curves of runs, of which every second one is shorter."""
    return {
        name: {
            "train/nll": [(step, 9 / step + i) for step in range(1, 90, 3)],
            "valid/bleu": [(step, 2.0 * i) for step in range(10, 90 >> i % 2)],
        }
        for i, name in enumerate(names)
    }


SOURCE = ["▁Insert", "▁a", "▁new", "▁table", ".", "</s>"]
MAPS = make_maps(SOURCE, ["▁Eine", "▁neue", "</s>"])


def test_attention_data_are_the_maps(tmp_path):
    """Rows of the target are named by what they predict, the columns of its
    self-attention by what the decoder reads; weights have four decimals.
    """
    data = read_data(attention.write_html(MAPS, tmp_path / "new" / "attention.html"))
    source, target = MAPS.source_tokens, MAPS.target_tokens
    axes = [(source, source), (target, MAPS.read_tokens), (target, source)]
    weights = MAPS.encoder, MAPS.decoder, MAPS.cross
    for kind, tokens, wanted in zip(data["kinds"], axes, weights, strict=True):
        assert (kind["rows"], kind["columns"]) == tokens
        np.testing.assert_allclose(kind["weights"], wanted, atol=5.1e-5)


def test_curves_data_are_every_point(tmp_path):
    runs = make_runs(["a", "b"])
    data = read_data(comparison.write_html(runs, tmp_path / "deep" / "curves.html"))
    assert (data["runs"], data["last"]) == (["a", "b"], 89)
    titles = [panel["title"] for panel in data["panels"]]
    assert titles == ["training, nats per token", "validation BLEU"]
    for panel, key in zip(data["panels"], ("train/nll", "valid/bleu"), strict=True):
        for run, line in zip(runs.values(), panel["lines"], strict=True):
            np.testing.assert_allclose(line, run[key], rtol=1e-5)


def test_translations_data_are_every_number(tmp_path):
    """Scores, intervals, p-values, buckets and sentences are on the page."""
    found = make_comparison("base", "other", "third")
    data = read_data(translations.write_html(found, tmp_path / "deep" / "page.html"))
    assert data["systems"] == ["base", "other", "third"]
    assert [metric["title"] for metric in data["metrics"]] == ["BLEU", "chrF2"]
    record = found.to_record()
    results = [result for metric in data["metrics"] for result in metric["results"]]
    shown = [results, data["differences"]]
    wanted = [record["results"], record["differences"]]
    for number, key in enumerate(("bleu", "chrf")):
        shown.append([(x["count"], x["values"]) for x in data["lengths"][number]])
        wanted.append(
            [(x.sentences, [scores[key] for scores in x.scores]) for x in found.lengths]
        )
    shown.append([(word["count"], word["values"]) for word in data["words"]])
    wanted.append([(bucket.words, bucket.f1) for bucket in found.words])
    given, expected = dict(flatten(shown)), dict(flatten(wanted))
    assert given.keys() == expected.keys()
    for path, value in expected.items():
        is_number = isinstance(value, float)
        assert given[path] == (pytest.approx(value, rel=1e-5) if is_number else value)


def flatten(value, path=""):
    """Yield the leaves of nested dicts and lists with their paths."""
    if not isinstance(value, (dict, list, tuple)):
        yield path, value
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield from flatten(inner, f"{path}/{key}")


def test_hostile_text_stays_text(browse, tmp_path):
    """Text that looks like markup ends no element and adds none; the browser shows it
    as it is, in the colours of its scheme.
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
    for scheme, colour in (("light", 255), ("dark", 18)):
        driver = browse(page, scheme)
        assert [text(button) for button in find(driver, "#runs button")] == HOSTILE
        (body,) = find(driver, "body")
        assert f"({colour}, " in body.value_of_css_property("background-color")

    translations.write_html(make_comparison(*HOSTILE[:3], more=HOSTILE[:3]), page)
    assert read_data(page)["systems"] == HOSTILE[:3]
    driver = browse(page)
    cells = [text(cell) for cell in find(driver, "#scores td:first-child")]
    assert cells == HOSTILE[:3] * 2


def test_threads_of_a_token(browse, tmp_path):
    """A token shows only its threads, and the largest weights in words: by pointer,
    and by arrow keys on both sides.
    """
    driver = browse(attention.write_html(MAPS, tmp_path / "attention.html"))
    mean = MAPS.cross[1].mean(axis=0)  # of the heads
    left, right = (find(driver, f".tokens.side{side} button") for side in (0, 1))
    act(driver).move_to_element(left[1]).perform()
    best = np.argsort(-mean[1])[:3]
    largest = [f"{SOURCE[j]} ({j + 1}) {mean[1, j]:.3f}" for j in best]
    assert text(driver, "#reading") == "▁neue (2) attends to " + ", ".join(largest)
    lines = find(driver, ".threads line")
    shown = [line for line in lines if "on" in (line.get_attribute("class") or "")]
    assert len(shown) == (MAPS.cross[1, :, 1] >= 0.03).sum()
    assert len(lines) == (MAPS.cross[1] >= 0.03).sum()
    driver.execute_script("arguments[0].focus()", left[0])
    press(driver, "ARROW_DOWN", "ARROW_DOWN", "ARROW_RIGHT", "ARROW_UP")
    assert driver.switch_to.active_element == right[1]
    best = np.argsort(-mean[:, 1])[:3]
    tokens = MAPS.target_tokens
    largest = [f"{tokens[i]} ({i + 1}) {mean[i, 1]:.3f}" for i in best]
    assert text(driver, "#reading") == "▁a (2) is read by " + ", ".join(largest)


def test_matrix_of_attention(browse, tmp_path):
    """Pointing at a cell reads its weight, as do the arrow keys; several heads are
    averaged.
    """
    driver = browse(attention.write_html(MAPS, tmp_path / "attention.html"))
    find(driver, "#heads td button")[0].click()
    find(driver, "[aria-label=View] button")[1].click()
    act(driver).move_to_element(find(driver, "#map g rect")[6 + 3]).perform()
    weight = f"{MAPS.cross[0, 0, 1, 3]:.4f}"
    reading = f"▁neue (2) attends to ▁table (4) with weight {weight}"
    assert text(driver, "#reading") == reading
    # A weight of another head, with another colour.
    assert len({cell.get_attribute("fill") for cell in find(driver, "#map g rect")}) > 9
    find(driver, "#heads th button")[1].click()
    assert text(driver, "#chosen") == "Cross-attention, layer 2, mean of all heads"
    driver.execute_script("document.querySelector('#map svg').focus()")
    press(driver, "ARROW_DOWN", "ARROW_RIGHT", "ARROW_DOWN")
    weight = f"{MAPS.cross[1].mean(axis=0)[1, 1]:.4f}"
    assert (
        text(driver, "#reading") == f"▁neue (2) attends to ▁a (2) with weight {weight}"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible(browse, tmp_path, scheme):
    """axe-core finds no violation on any page."""
    page = tmp_path / "page.html"
    attention.write_html(MAPS, page, steps=animation.find_steps(MAPS))
    driver = browse(page, scheme)
    assert violations(driver) == []
    find(driver, "[aria-label=View] button")[1].click()
    assert violations(driver) == []
    comparison.write_html(make_runs("abc"), page)
    assert violations(browse(page, scheme)) == []
    translations.write_html(make_comparison("base", "other", "third"), page)
    assert violations(browse(page, scheme)) == []


def test_curves_page(browse, tmp_path):
    """Each run has a curve in each panel until it is hidden; pointing reads values."""
    driver = browse(comparison.write_html(make_runs("abc"), tmp_path / "curves.html"))
    assert len(find(driver, "polyline.curve")) == 6
    readings = find(driver, ".reading")
    last = 9 / 88
    assert text(readings[0]) == "last" + "".join(f"{last + i:.4g}" for i in range(3))
    act(driver).move_to_element(find(driver, ".chart")[1]).perform()
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
    found = make_comparison("base", "other", "third", more=HOSTILE[:3])
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

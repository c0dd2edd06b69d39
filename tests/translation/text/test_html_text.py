"""HTML in and out: tags, attributes and entities, and where the elements are after
any alignment.
"""

import re
from html import unescape
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.translation.results import Alignment, Hypothesis
from jaxformer.translation.text.html_text import (
    Html,
    TranslatedPart,
    link_words,
    tokenize,
)
from jaxformer.translation.text.text import Query, Text


def align(links, sources, targets):
    """Make the alignment of words of one piece each, from (source, target)."""
    weights = np.zeros((targets, sources), np.float32)
    for source, target in links:
        weights[target, source] = 1
    pieces = [f"s{number}" for number in range(sources)]
    return Alignment(pieces, weights, list(range(sources)), list(range(targets)))


def translate(html, text, links):
    """Render HTML of one block, translated to a text with linked words."""
    markup = Html(html)
    (block,) = markup.blocks
    source, target = block.text.split(), text.split()
    pairs = [tuple(map(int, link.split("-"))) for link in links.split()]
    alignment = align(pairs, len(source), len(target))
    return markup.render([[TranslatedPart(0, len(block.text), text, alignment)]])


def identity(html):
    """Render HTML whose translation is itself, by the alignment of each word."""
    markup = Html(html)
    return markup.render([[same(block.text)] for block in markup.blocks])


def same(text):
    count = len(text.split())
    alignment = align([(number, number) for number in range(count)], count, count)
    return TranslatedPart(0, len(text), text, alignment)


def tags(html):
    """Return the tags, comments and copied objects of HTML."""
    return [token.raw for token in tokenize(html, {}) if token.name]


# --- generated HTML

TEXT = st.text("ab .,!\n(-é日&;>\u00a0\u200b", max_size=6).map(
    lambda text: re.sub(r"&(?=[a-zA-Z#])", "& ", text)
)
ENTITIES = st.sampled_from(["&amp;", "&lt;", "&nbsp;", "&eacute;", "&#8364;", "&copy"])
WORDS = st.sampled_from(["one", " two ", "three.", "One two", "\ue000", "a < b"])
VOIDS = st.sampled_from(
    ["<br>", "<img src='a>b'>", "<wbr>", '<x id="1"/>', "<!-- c > -->", "</q>"]
)
COPIES = st.sampled_from(
    [
        "<code>a  b</code>",
        '<b translate="no">one <i>two</i></b>',
        "<script><b></script>",
    ]
)


@st.composite
def elements(draw, content):
    name = draw(st.sampled_from(["b", "i", "a", "p", "div", "x-y", "pre", "SPAN"]))
    given = draw(
        st.sampled_from(["", " class=x", ' href="?a=1&amp;b=<2>"', "\n id='q'"])
    )
    end = draw(st.sampled_from([f"</{name}>"] * 9 + ["", f"</{name} >"]))
    return f"<{name}{given}>{draw(content)}{end}"


HTML = st.recursive(
    st.one_of(TEXT, WORDS, ENTITIES, VOIDS, COPIES),
    lambda inner: st.lists(st.one_of(inner, elements(inner)), max_size=5).map("".join),
    max_leaves=25,
)


@given(HTML)
@settings(max_examples=300, deadline=None)
def test_html_translated_to_itself_is_unchanged(html):
    """Attributes, entities and white space stay, byte for byte."""
    expected = html.replace("a < b", "a &lt; b")
    assert identity(html).replace("a < b", "a &lt; b") == expected


class Tree(HTMLParser):
    """The path of names above each start tag."""

    def __init__(self):
        super().__init__()
        self.open, self.paths = [], []

    def handle_starttag(self, tag, attributes):
        self.paths.append((*self.open, self.get_starttag_text()))
        self.open.append(self.get_starttag_text())

    def handle_endtag(self, tag):
        if self.open:
            self.open.pop()


@st.composite
def closed(draw, depth=3):
    """Draw HTML within a sentence whose elements are closed and have numbers."""
    text = st.sampled_from(["one", "two ", " three", ", ", "four. ", " Five", ""])
    parts = []
    for _ in range(draw(st.integers(0, 4))):
        parts.append(draw(text))
        if depth and draw(st.booleans()):
            inner = draw(closed(depth - 1))
            parts.append(f"<b>{inner}</b>")
    return "".join((*parts, draw(text)))


def number_tags(html):
    count = iter(range(1000))
    return re.sub("<b>", lambda _: f"<b id={next(count)}>", html)


def draw_translation(draw, text):
    words = text.split()
    target = draw(st.lists(st.sampled_from([*words, "neu.", "(x)", "-"]), max_size=8))
    weights = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    numbers = st.one_of(st.none(), st.integers(0, 12))
    given = Alignment(
        words,
        weights.random((len(target), len(words)), np.float32),
        [draw(numbers) for _ in words],
        [draw(numbers) for _ in target],
    )
    alignment = draw(st.sampled_from([None, given]))
    return Hypothesis(" ".join(target), 0, 0, [], True, alignment)


class AnyModel:
    """Whatever its translations are."""

    languages, writes = ("en", "de"), bool

    def encode(self, text, **_):
        return [SimpleNamespace(text=text, width=1)]


def translate_anyhow(html, draw):
    text, results = Text(Query(html, format="html"), AnyModel()), []
    text.encode()
    for segment in text.segments:
        result = None
        while result is None:
            found = [[[draw_translation(draw, own.text)]] for (own,) in segment.units]
            result = text.complete(segment, found) or text.encode_fragments(segment)
        results.append(result)
    return text.finish(results).text


@given(closed().map(number_tags), st.data())
@settings(max_examples=300, deadline=None)
def test_every_element_comes_once_and_nested_as_it_was(html, data):
    """With any alignment."""
    found, trees = translate_anyhow(html, data.draw), []
    for text in (html, found):
        tree = Tree()
        tree.feed(text)
        assert not tree.open, found
        trees.append(sorted(tree.paths))
    assert trees[0] == trees[1], found


@given(HTML, st.data())
@settings(max_examples=300, deadline=None)
def test_no_tag_or_object_is_lost_or_doubled(html, data):
    assert sorted(tags(translate_anyhow(html, data.draw))) == sorted(tags(html))


PARTS = ["one", "two,", "(six)", "„x“", "&ampone", "&quotHi", "&copy;", "a<", "&shy;"]
PARTS += ["<b>", "</b>", "<i>", "</i>", " ", "&nbsp; "]


@given(st.lists(st.sampled_from(PARTS), max_size=12), st.data())
@settings(max_examples=300, deadline=None)
def test_the_text_is_that_of_the_translation(parts, data):
    """With any alignment no character is lost or doubled, but white space."""
    markup = Html("".join(("one", *parts)))
    (block,) = markup.blocks
    drawn, end = draw_translation(data.draw, block.text), len(block.text)
    part = TranslatedPart(0, end, drawn.text, drawn.alignment)
    found = tokenize(markup.render([[part, TranslatedPart(end, end, "")]]), {})
    shown = unescape("".join(token.raw for token in found if not token.name))
    assert re.sub(r"[\s\xad]", "", shown) == "".join(drawn.text.split())


@given(st.text("<>/!-\"'= abp&;?[]#x1\n", max_size=60))
@settings(max_examples=500, deadline=None)
def test_any_text_is_accepted_and_all_of_it_is_kept(html):
    assert "".join(token.raw for token in tokenize(html, {})) == html
    assert identity(html).replace("&lt;", "<") == html.replace("&lt;", "<")


# A time that grows with the square of the length would take minutes.
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "html",
    [
        "<div>" * 5000 + "one",
        "<b>a " * 5000 + "</b>" * 5000,
        "<b><p>one</b></i>" * 3000,
        "<a b='" * 20_000,
        "<a b=\"<a b='" * 10_000,
        "<!--" * 20_000,
        "&" * 50_000,
        "<code>" * 20_000,
        "<b>" * 80_000 + "a" + "</b>" * 80_000,
        f"a&#{'9' * 5000};b &#x{'f' * 5000};",
    ],
    ids=lambda html: html[:12],
)
def test_deep_and_broken_html_takes_no_more_than_its_length(html):
    markup = Html(html)
    sentences = [
        [TranslatedPart(0, len(each.text), each.text)] for each in markup.blocks
    ]
    assert markup.render(sentences).replace("&lt;", "<") == html


# --- the rules, one by one


@pytest.mark.parametrize(
    ("html", "texts"),
    [
        # a line break within a paragraph is white space
        ("<p>One\n   line.\r\nAnd one.</p>", ["One line. And one."]),
        # a paragraph, row or item ends a sentence, and other elements do not
        *(
            (f"One<{name}>two", ["One", "two"])
            for name in ("div", "p", "LI", "td", "h1", "br", "title")
        ),
        *(
            (f"One <{name} a=b>two</{name}> three", ["One two three"])
            for name in ("b", "a", "span", "x", "my-element", "FONT")
        ),
        # a line of preformatted text
        (
            "<pre>One\n  two  <b>three\n\nfour</b></pre> five\nsix",
            ["One", "two three", "four", "five six"],
        ),
        # the case of a heading stays
        ("<h1>ABOUT US</h1>", ["ABOUT US"]),
    ],
)
def test_what_ends_a_sentence(html, texts):
    assert [block.text for block in Html(html).blocks] == texts


@pytest.mark.parametrize(
    ("html", "text", "links", "expected"),
    [
        ("a <b>new</b> day", "ein neuer Tag", "0-0 1-1 2-2", "ein <b>neuer</b> Tag"),
        # order changes
        ("<i>red</i> <b>car</b>", "auto rouge", "1-0 0-1", "<b>auto</b> <i>rouge</i>"),
        # end punctuation leaves, unless it was in the element
        ("the <b>end</b>.", "das Ende.", "0-0 1-1", "das <b>Ende</b>."),
        ("<b>Open it now.</b>", "Jetzt öffnen.", "0-1 2-0", "<b>Jetzt öffnen.</b>"),
        ("see <b>it</b> now.", "nun sieh es.", "0-1 1-2 2-0", "nun sieh <b>es</b>."),
        ("<b>(see)</b>", "(siehe)", "0-0", "<b>(siehe)</b>"),
        # outer white space leaves
        ("a<b> big </b>dog", "ein Hund groß", "0-0 1-2 2-1", "ein Hund <b>groß</b>"),
        # without words: after the word before
        ("Do <b>not</b> go", "Geh weg", "0-0 2-1", "Geh <b></b>weg"),
        ("to <b>the</b> <i>end</i>", "zum Ende", "0-0 2-1", "zum <b></b><i>Ende</i>"),
        ("one <img> two", "zwei eins", "0-1 1-0", "zwei eins<img>"),
        # not within an element that it was not in
        ("<b>a b c d</b> x <img> e", "A B X C D E", "0-0 1-1 2-3 3-4 4-2 5-5",
         "<b>A B X C D</b> <img>E"),
        # what is apart from the rest is left out
        ("<b>put out</b> a fire", "lösch Feuer aus", "0-0 3-1 1-2",
         "<b>lösch</b> Feuer aus"),
        ("<i>a b c</i> <b>d e f</b>", "A B D C E F", "0-0 1-1 3-2 2-3 4-4 5-5",
         "<i>A B</i> D C <b>E F</b>"),
        # ranges of siblings do not overlap: the one around the other stays
        ("<i>a b c d e</i> <b>f</b>", "A B C F D E", "0-0 1-1 2-2 5-3 3-4 4-5",
         "<i>A B C F D E</i><b></b>"),
        # nested
        ("<a>see <b>all</b></a> now", "jetzt alle sehen", "0-2 1-1 2-0",
         "jetzt <a><b>alle</b> sehen</a>"),
        # within a word
        ("un<b>believ</b>able", "unglaublich", "0-0", "<b>unglaublich</b>"),
        # two links without a space are two words
        ("<a>One</a><a>Two</a>", "Eins Zwei", "0-0 1-1", "<a>Eins</a><a>Zwei</a>"),
        # without an end tag
        ("one <b>two three", "eins drei zwei", "0-0 1-2 2-1", "eins <b>drei zwei"),
        # text comes back without entities, but for three signs
        ("<p>a &lt; b &amp; &copy;</p>", "é < „b“ & © >", "0-0 1-1 2-2 4-4",
         "<p>é &lt; „b“ &amp; &copy; &gt;</p>"),
        # white space leaves an element that a block cuts, too
        ("<a><br>two seven four,</a>three. three. ", ".EERHT .EERHT,RUOF NEVES OWT",
         "0-0 1-1 2-2 3-3", "<a><br>.EERHT .EERHT,RUOF NEVES</a> OWT "),
        # white space of the source stays between neighbours
        ("5&nbsp;apples", "5 Äpfel", "0-0 1-1", "5&nbsp;Äpfel"),
        ("5&nbsp; apples", "5 „Äpfel“", "0-0 1-1", "5&nbsp; „Äpfel“"),
        ("Say &shy;hello", "Sag („Hallo“)", "0-0 1-1", "Sag &shy;(„Hallo“)"),
        # a reference without a semicolon ends before the rest of a word
        ("&quotHello world", "Hello Welt", "0-0 1-1", "Hello Welt"),
    ],
)  # fmt: skip
def test_where_elements_are(html, text, links, expected):
    assert translate(html, text, links) == expected


@pytest.mark.parametrize(
    "html",
    [
        "<code>a <b>b</b></code>",
        '<span translate="no">New York</span>',
        "<span class='x notranslate'>New York</span>",
        "<math><mi>x</mi></math>",
        "<kbd>Ctrl</kbd>",
        '<x id="1"></x>',
        '<x id="1"/>',
    ],
)
def test_what_is_not_translated_is_a_word_that_is_copied(html):
    """Code, keys and elements marked as untranslatable."""
    markup = Html(f"Press {html} now")
    (block,) = markup.blocks
    assert block.text == "Press \ue000 now"
    part = TranslatedPart(0, len(block.text), "Jetzt \ue000 drücken")
    assert markup.render([[part]]) == f"Jetzt {html} drücken"


@pytest.mark.parametrize(
    "html",
    [
        "<!DOCTYPE html><html><style>p {}</style><script>let a = '<p>b</p>'</script>",
        "<p translate=no>One <b>two</b></p>",
        "<p>12.5 – 3</p><td> </td>",
        "<?xml version='1.0'?><!-- one -->",
    ],
)
def test_what_has_no_text_has_no_block(html):
    assert not Html(html).blocks


# --- words


def attention(*rows):
    """Make an alignment of words of a piece; what a row lacks to 1 is for the end."""
    weights = np.array(rows, np.float32)
    weights = np.concatenate([weights, 1 - weights.sum(1, keepdims=True)], axis=1)
    targets, sources = weights.shape
    numbers = [*range(sources - 1), None]
    return Alignment([""] * sources, weights, numbers, list(range(targets)))


@pytest.mark.parametrize(
    ("rows", "sources", "targets", "links"),
    [
        # a word that attends to the end has none, as "Sie" in "Wählen Sie Datei"
        ([[0.9, 0], [0.1, 0.2], [0, 0.8]], "Choose File", "Wählen Sie Datei",
         [0, -1, 1]),
        # unless it is the only one for its source word
        ([[0.9, 0], [0.1, 0.2]], "Choose File", "Wählen Sie", [0, 1]),
        # attention that a source word has from all counts less
        ([[0.9, 0.1], [0.9, 0.1], [0.5, 0.4]], "a b", "x y z", [0, 0, 1]),
        # a word that is the same on both sides belongs to itself
        ([[0.9, 0.1], [0.9, 0.1]], "Open GNOME", "GNOME öffnen", [1, 0]),
    ],
)  # fmt: skip
def test_which_source_word_a_word_belongs_to(rows, sources, targets, links):
    found = link_words(attention(*rows), sources.split(), targets.split())
    assert found == links

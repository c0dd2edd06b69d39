"""Mixtures: one string for several data sets, and how often their pairs come."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data import mixing
from jaxformer.data.mixing import Part, Share
from jaxformer.errors import InputError


def test_weights_and_languages_belong_to_their_part():
    """Spaces around the plus and the star separate; those within a name do not."""
    mixture = (
        "2.5 * text:my a.en,my+a.fr [en>fr] + tfds:b/c/train + .5 * tsv:c.tsv#2,1 [ de"
        " > en ]"
    )
    parts = mixing.parse(mixture, "en", "de")
    assert parts == (
        Part("text:my a.en,my+a.fr", 2.5, ("en", "fr")),
        Part("tfds:b/c/train", 1.0, ("en", "de")),
        Part("tsv:c.tsv#2,1", 0.5, ("de", "en")),
    )
    assert mixing.parse("tfds:b/c/train", "en", "de") == parts[1:2]


@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        ("0 * text:a,b", "must be a number above 0, not 0"),
        ("1e300 * text:a,b", "above 0, not 1e300; the most is 1,000,000"),
        ("text:a,b + ", "a part without a name"),
        ("2.5*text:a,b", r"'2\.5\*text:a,b' needs blanks around its \* and \+"),
        ("text:a,b [en]", r"\[en\] of text:a,b must name two languages"),
        ("text:a,b [en>en]", "must name two languages"),
    ],
)
def test_a_part_that_says_nothing_is_refused(mixture, message):
    with pytest.raises(InputError, match=message) as caught:
        mixing.parse(mixture, "en", "de")
    assert "\n" not in str(caught.value)


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    weights=st.lists(st.floats(0.05, 4), min_size=4, max_size=4),
    seed=st.integers(0, 99),
    epoch=st.integers(0, 9),
)
def test_each_pair_comes_as_often_as_its_weight(sizes, weights, seed, epoch):
    """Rounded down or up for each pair, and exact in the sum of all epochs so far."""
    stops = np.cumsum(sizes)
    shares = [
        Share("", int(stop) - size, int(stop), weight)
        for size, stop, weight in zip(sizes, stops, weights, strict=False)
    ]
    total = np.zeros(int(stops[-1]), int)
    for number in range(epoch + 1):
        chosen = mixing.choose_pairs(shares, seed=seed, epoch=number)
        counts = np.bincount(chosen, minlength=len(total))
        total += counts
    for share in shares:
        own = counts[share.start : share.stop]
        assert ((own == np.floor(share.weight)) | (own == np.ceil(share.weight))).all()
        sums = total[share.start : share.stop].sum(), len(own) * (epoch + 1)
        assert abs(sums[0] - share.weight * sums[1]) <= 0.5 + 1e-9
    assert (mixing.choose_pairs(shares, seed=seed, epoch=epoch) == chosen).all()


@pytest.mark.parametrize("temperature", [1.0, 5.0, 1e9])
def test_temperature_draws_in_proportion_to_a_power_of_the_size(temperature):
    """Shares of an epoch are those of Arivazhagan et al., section 4.2, and nothing
    occurs less than once.
    """
    sizes = [1_000_000, 50_000, 400]
    weights = mixing.level(sizes, temperature)
    shares = np.array(weights) * sizes / np.dot(weights, sizes)
    powers = np.array(sizes, float) ** (1 / temperature)
    np.testing.assert_allclose(shares, powers / powers.sum(), rtol=1e-12)
    assert weights[0] == min(weights) == 1.0

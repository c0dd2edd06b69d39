"""The programs of a server: few, the first for every short sentence, the cheapest for a
batch.
"""

from __future__ import annotations

from itertools import product

from jaxformer.serving.programs import PAIRS, PLAIN, RICH, TERMS, Programs, plan


def test_at_most_eight_and_the_first_makes_it_ready():
    """Together they hold every sentence, in every use."""
    sizes = (8, 16, 32, 48, 64, 128, 512), (1, 2, 4, 16, 64, 512)
    for longest, rows in product(*sizes):
        planned = plan(longest, 2 * longest, rows)
        assert len(planned) == len(set(planned)) <= 8
        programs = Programs(planned)
        programs.done |= {planned[0]}
        for use in (PLAIN, RICH):
            assert programs.choose(use, rows, min(longest, 64)) == planned[0]
        programs.done |= {*planned}
        for use in (PLAIN, RICH, TERMS):
            assert programs.choose(use, rows, longest).width == longest
        assert programs.choose(PAIRS, 1, 2 * longest).width == 2 * longest


def test_the_cheapest_program_that_is_compiled():
    programs = Programs(plan(64, 128, 16))
    programs.done |= {*programs.all}
    for count, width, found in (
        (1, 10, (PLAIN, 1, 16)),
        (1, 20, (PLAIN, 1, 32)),
        (1, 40, (RICH, 1, 64)),
        (3, 10, (PLAIN, 1, 16)),
        (6, 10, (PLAIN, 16, 16)),
        (16, 20, (PLAIN, 16, 32)),
        (9, 64, (PLAIN, 16, 64)),
    ):
        assert programs.choose(PLAIN, count, width) == found
    assert programs.choose(RICH, 3, 10) == (RICH, 1, 64)
    programs = Programs(programs.all, 256)  # an accelerator
    programs.done |= {*programs.all}
    assert programs.choose(PLAIN, 3, 10) == (PLAIN, 16, 16)

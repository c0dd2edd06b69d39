"""The animation shows each attention weight where it is used, in a page and a GIF."""

import numpy as np
import pytest
from browser import emulate, find, press, text
from PIL import Image
from visualization.made import make_maps

from jaxformer.translation.results import Attention
from jaxformer.visualization import animation, attention

SOURCE, TARGET = ["▁a", "▁new", "▁table", "</s>"], ["▁eine", "▁neue", "</s>"]
MAPS = make_maps(SOURCE, TARGET)
STEPS = animation.find_steps(MAPS)
RECURRENT = Attention(SOURCE, TARGET, TARGET, *np.zeros((2, 0, 0, 0, 0)), MAPS.cross)
OTHER_STEPS = animation.find_steps(RECURRENT)


def test_weights_are_those_of_the_maps():
    """Each state is computed once and attends to known states, with the mean weights
    of the heads from 0.03.
    """
    known = set()
    for step in STEPS:
        assert not known & {*step.states}
        known.update(step.states)
        for kind, state, (x, y), weight in step.threads:
            assert state in step.states
            assert (x, y) in known
            layer = int(state[0]) - (1 if kind == "encoder" else 5)
            heads = getattr(MAPS, kind)[layer, :, int(state[1]), int(y)]
            assert weight == pytest.approx(heads.mean(), abs=5.1e-4)
    assert [len(step.states) for step in STEPS] == [4, 4, 4, 2, 1, 2, 1, 2, 1]
    assert [step.words for step in STEPS] == [0, 0, 0, 0, 1, 1, 2, 2, 3]
    maps = MAPS.encoder, MAPS.decoder, MAPS.cross
    shown = sum((weights.mean(axis=1) >= 0.03).sum() for weights in maps)
    assert sum(len(step.threads) for step in STEPS) == shown


def test_gif_has_a_frame_for_each_step(tmp_path):
    """Also of a recurrent network, which attends to the source only, and with letters
    that no font has.
    """
    strange = make_maps(["\ud800", "$x^$", "漢字" * 20], ["\u2028"])
    for maps in (RECURRENT, strange):
        steps = animation.find_steps(maps)
        path = animation.write_gif(maps, steps, tmp_path / "animation.gif")
        with Image.open(path, formats=["GIF"]) as picture:
            assert picture.n_frames == len(steps)
            assert picture.width == 900
            assert picture.info["loop"] == 0


def test_page_plays_and_steps(browse, tmp_path):
    """Buttons and keys choose a step: its weights, and the words known by then. It
    plays to the end when it is told to, and can be stopped.
    """
    from selenium.webdriver.support.ui import WebDriverWait

    page = attention.write_html(MAPS, tmp_path / "page.html", steps=STEPS)
    driver = browse(page)
    back, play, forward = find(driver, "#animation button")
    (slider,) = find(driver, "#animation input")

    def assert_step(number):
        step = STEPS[number]
        assert text(driver, "#step") == slider.get_attribute("aria-valuetext")
        assert text(driver, "#step") == step.text
        assert len(find(driver, "#animation g line")) == len(step.threads)
        words = find(driver, "#animation .side1 span")
        shown = [text(word) for word in words if word.is_displayed()]
        assert shown == TARGET[: step.words]

    assert_step(0)
    back.click()
    forward.click()
    assert_step(1)
    driver.execute_script("arguments[0].focus()", slider)
    press(driver, "END")
    assert_step(len(STEPS) - 1)
    press(driver, "ARROW_LEFT", "ARROW_LEFT")
    assert_step(len(STEPS) - 3)
    play.click()
    assert text(play) == "Pause"
    WebDriverWait(driver, 30).until(lambda _: text(play) == "Play")
    assert_step(len(STEPS) - 1)
    play.click()  # from the beginning
    play.click()
    assert text(play) == "Play"
    assert_step(0)


def test_page_respects_reduced_motion(browse, tmp_path):
    """Threads fade in, except for people who want less motion."""
    page = attention.write_html(RECURRENT, tmp_path / "page.html", steps=OTHER_STEPS)
    for motion, name in (("no-preference", "appear"), ("reduce", "none")):
        driver = browse(page)
        emulate(driver, motion=motion)
        find(driver, "#animation button")[2].click()
        (line, *_) = find(driver, "#animation g line")
        assert line.value_of_css_property("animation-name") == name
    assert text(driver, ".legend") == "Cross-attention"

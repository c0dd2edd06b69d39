"""Take the pictures of docs/serve.md in Chromium: the page of a running server, and an
animation of its use, in half a minute: ``python docs/figures/page_figures.py
http://127.0.0.1:5000/ --output=docs/images``.

It needs selenium, Pillow, and Debian's packages chromium and chromium-driver. Text and
choices are the arguments' defaults, for a run of the quickstart.
"""

from __future__ import annotations

import argparse
import io
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

WIDTH, HEIGHT = 1040, 760
EXACT = 64
"""Colours of the animation that are as on the page."""


class Frame(NamedTuple):
    """A picture of the page and how long it is shown, in milliseconds."""

    picture: Image.Image
    duration: int


class Film:
    """A browser with the page, and the frames taken of it."""

    def __init__(self, url: str) -> None:
        """Open the page."""
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for switch in ("--headless=new", "--no-sandbox", "--hide-scrollbars"):
            options.add_argument(switch)
        service = webdriver.ChromeService(executable_path="/usr/bin/chromedriver")
        self.driver = webdriver.Chrome(options=options, service=service)
        self.resize(HEIGHT)
        self.driver.get(url)
        self.wait(lambda: self.find("#source option"))
        self.frames: list[Frame] = []

    def resize(self, height: int) -> None:
        """Set the size of the window."""
        size = {"width": WIDTH, "height": height, "deviceScaleFactor": 1}
        command = "Emulation.setDeviceMetricsOverride"
        self.driver.execute_cdp_cmd(command, size | {"mobile": False})

    def find(self, selector: str) -> list[Any]:
        """Return the elements of a selector."""
        return self.driver.find_elements("css selector", selector)

    def wait(self, condition: Callable[[], Any], seconds: float = 60) -> None:
        """Wait until a condition holds."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"the page did not get there within {seconds:.0f} s")
            time.sleep(0.02)

    def says(self, words: str) -> bool:
        """Return whether the status line has these words."""
        return words in self.find("#status")[0].text

    def press(self, *keys: str) -> None:
        """Press keys where the focus is."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def point(self, element: Any) -> None:
        """Move the pointer to an element."""
        ActionChains(self.driver).move_to_element(element).perform()
        time.sleep(0.2)  # of the transition

    def take(self, duration: int) -> None:
        """Take a frame."""
        png = Image.open(io.BytesIO(self.driver.get_screenshot_as_png()))
        self.frames.append(Frame(png.convert("RGB"), duration))


def type_text(film: Film, text: str) -> None:
    """Type a text word by word, then wait for its translation."""
    area = film.find("#text")[0]
    film.take(900)
    words = text.split(" ")
    for place, word in enumerate(words):
        area.send_keys(word + " " * (place + 1 < len(words)))
        if place % 2 or place + 1 == len(words):
            time.sleep(0.6)
            film.take(260)
    film.wait(lambda: film.says("in the queue"))
    time.sleep(0.3)
    film.take(1300)


def choose_word(film: Film, place: int, down: int) -> None:
    """Look at a word's source, open its list, and take another word."""
    word = film.find("#output [role=button]")[place]
    film.point(word)
    film.take(1200)
    word.click()
    film.wait(lambda: film.find("[role=option]"))
    for _ in range(down):
        film.take(500)
        film.press(Keys.ARROW_DOWN)
    film.take(1200)
    film.press(Keys.ENTER)
    film.wait(lambda: film.says("translated again"))
    film.point(film.find("h1")[0])
    film.take(1900)


def show_attention(film: Film, tokens: int) -> None:
    """Open the threads and point at one token after the other."""
    film.find("#tab-Attention")[0].click()
    film.wait(lambda: film.find(".threads line"))
    film.driver.execute_script("scrollTo(0, document.body.scrollHeight)")
    film.take(1500)
    for token in film.find(".tokens.side0 button")[:tokens]:
        film.point(token)
        film.take(750)


def take_whole(film: Film, picture: Path) -> Path:
    """Take the whole page, as high as it is, with the threads of the fourth token."""
    height = film.driver.execute_script("return document.body.scrollHeight")
    film.resize(height)
    film.point(film.find(".tokens.side0 button")[3])
    film.take(0)
    film.frames.pop().picture.save(picture, optimize=True)
    return picture


def make_palette(frames: list[Frame]) -> Image.Image:
    """Build a palette of 256 colours: the most frequent as they are, and such that
    cover the rest, the thin lines and the edges of letters.
    """
    counts: Counter[tuple[int, int, int]] = Counter()
    for frame in frames:
        for count, colour in frame.picture.getcolors(WIDTH * HEIGHT):
            counts[colour] += count
    colours = [colour for colour, _ in counts.most_common()]
    rest = Image.new("RGB", (1, len(colours) - EXACT))
    rest.putdata(colours[EXACT:])
    covering = rest.quantize(256 - EXACT).getpalette()[: 3 * (256 - EXACT)]
    palette = Image.new("P", (1, 1))
    palette.putpalette(
        [value for colour in colours[:EXACT] for value in colour] + covering
    )
    return palette


def save(frames: list[Frame], picture: Path) -> Path:
    """Write an animated GIF with one palette."""
    palette = make_palette(frames)
    plain = Image.Dither.NONE
    first, *rest = (
        frame.picture.quantize(palette=palette, dither=plain) for frame in frames
    )
    durations = [frame.duration for frame in frames]
    first.save(picture, save_all=True, append_images=rest, duration=durations, loop=0)
    return picture


def main() -> None:
    """Take the pictures and print their names."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("url", help="of the page")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR")
    parser.add_argument("--text", default="Insert a new table before the chart.")
    parser.add_argument("--word", type=int, default=5, help="to change, from 0")
    parser.add_argument("--down", type=int, default=0, help="in the list of its words")
    options = parser.parse_args()
    film = Film(options.url)
    try:
        type_text(film, options.text)
        choose_word(film, options.word, options.down)
        show_attention(film, tokens=6)
        print(save(film.frames, options.output / "page.gif"))
        print(take_whole(film, options.output / "page.png"))
    finally:
        film.driver.quit()


if __name__ == "__main__":
    main()

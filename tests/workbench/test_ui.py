"""`sita ui` in a browser: what is chosen on the page, and the answer that comes of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import console_errors, open_browser, outside_requests
from serving_process import Running, start, wait_for

import sita_adapters as sita
from sita_workbench.models.loading import load_model
from sita_workbench.ui.samples import corruptions_for, load_samples

pytestmark = pytest.mark.slow


def start_page(folder: Path) -> AbstractContextManager[Running]:
    """Start `sita ui` with its temporary files in this folder."""
    return start("ui", "--no-browser", folder=folder, ready="The page is at", TMPDIR=str(folder))


class Opened:
    """The page in a browser."""

    def __init__(self, driver: Any, page: Running) -> None:
        self.driver = driver
        driver.get(f"http://127.0.0.1:{page.port}")

    def find(self, selector: str) -> Any:
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, 60).until(lambda driver: driver.find_element("css selector", selector))

    def answer(self) -> tuple[int, ...]:
        """Labels of both sides and their probabilities, in 1/10000, in one reading: the page may change in between."""
        self.find("#adapted-answer")
        read = "return [...document.querySelectorAll('#source-answer, #adapted-answer')]"
        sides = self.driver.execute_script(f"{read}.map(e => [e.dataset.label, e.dataset.probability])")
        return tuple(number for label, probability in sides for number in (int(label), round(1e4 * float(probability))))

    def wait_for(self, wanted: tuple[int, ...], seconds: float = 30) -> None:
        """Wait until this is the answer."""
        assert wait_for(lambda: np.allclose(self.answer(), wanted, atol=2), seconds), (self.answer(), wanted)

    def drag_severity(self, before: int, after: int) -> None:
        from selenium.webdriver import ActionChains

        slider = self.find("#severity input[type=range]")
        width = slider.size["width"] - 16  # the thumb's middle does not reach the ends
        drag = ActionChains(self.driver, duration=400)
        drag.move_to_element_with_offset(slider, round((before / 5 - 0.5) * width), 0)
        drag.click_and_hold().move_by_offset(round((after - before) / 5 * width), 0).release().perform()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with start_page(tmp_path_factory.mktemp("page")) as running:
        yield running


def test_a_sample_is_picked_and_its_severity_dragged(page: Running) -> None:
    loaded = load_model("digits")
    pictures, fog = load_samples(loaded, None, loaded.names), corruptions_for(loaded)["fog"]
    models = (loaded.model, sita.adapt(loaded.model))

    def expected(sample: int, severity: int) -> tuple[int, ...]:
        pixels = pictures[sample].pixels
        encoded = loaded.encode((fog(pixels, severity=severity) if severity else pixels)[None])
        both = (loaded.predict(model, encoded)[0] for model in models)
        return tuple(n for p in both for n in (int(p.argmax()), round(1e4 * float(p.max()))))

    with open_browser(1280, 800) as driver:
        opened = Opened(driver, page)
        opened.wait_for(expected(5, 3))
        assert expected(5, 3)[0] != 5 == expected(5, 3)[2]  # adapting corrects what the page opens on
        assert opened.find("#adapted-answer .mark").text == "✓ right"
        opened.find("#samples .gallery-item:nth-child(4) button").click()
        opened.wait_for(expected(3, 3))
        opened.drag_severity(3, 0)
        opened.wait_for(expected(3, 0), 2)
        opened.drag_severity(0, 5)
        opened.wait_for(expected(3, 5))
        assert console_errors(driver) == outside_requests(driver) == []


def test_a_damaged_image_is_a_sentence_and_nothing_of_an_upload_stays_behind(tmp_path: Path) -> None:
    temporary, broken = tmp_path / "temporary", tmp_path / "broken.png"
    temporary.mkdir()
    broken.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(50))
    with start_page(temporary) as page, open_browser(1280, 800) as driver:
        opened = Opened(driver, page)
        opened.answer()
        opened.find("#dropped input[type=file]").send_keys(str(broken))
        assert opened.find(".verdict.error").text.startswith("Expected a")
        assert list(temporary.rglob("broken.png"))
        opened.find("#samples .gallery-item:nth-child(2) button").click()
        opened.answer()
        assert console_errors(driver) == []
    assert not list(temporary.rglob("broken.png"))


@pytest.mark.parametrize(("name", "width", "height"), [("light", 1280, 800), ("dark", 1280, 800), ("phone", 400, 2400)])
def test_the_page_fits_the_screen(page: Running, name: str, width: int, height: int) -> None:
    with open_browser(width, height, dark=name == "dark") as driver:
        opened = Opened(driver, page)
        opened.answer()
        time.sleep(1)  # the thumbnails
        size = driver.execute_script("let e = document.documentElement; return [e.scrollWidth, e.scrollHeight]")
        assert size == [width, height]
        assert driver.execute_script("return document.body.classList.contains('dark')") == (name == "dark")
        if folder := os.environ.get("SITA_SCREENSHOTS"):
            path = Path(__file__).parents[2] / folder / f"ui-{name}.png"
            opened.find("main.contain").screenshot(str(path))
        assert console_errors(driver) == []

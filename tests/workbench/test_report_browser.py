"""A report in headless Chromium: it sorts, unfolds, fits a phone, is quiet on the console, and loads nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browser import console_errors, open_browser, outside_requests
from sample_results import make_results, make_timing

from sita_workbench.report.writing import write_report


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_report(make_results(), make_timing(), folder)
    return folder / "report.html"


def read_column(table: Any, column: int) -> list[str]:
    return [cell.text for cell in table.find_elements("css selector", f"tbody tr > :nth-child({column + 1})")]


def to_numbers(cells: list[str]) -> list[float]:
    return [float(cell.split()[0].replace("−", "-")) for cell in cells if cell != "–"]


def test_tables_sort_by_click_and_by_key(report: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    with open_browser(1280, 900) as driver:
        driver.get(report.as_uri())
        assert driver.find_element("tag name", "h1").text.startswith("Yes, it helps: ops gains")
        table = driver.find_element("css selector", "table.numbers")
        heads = table.find_elements("css selector", "thead th")
        gain = [head.text.split()[0] for head in heads].index("gain")
        before = read_column(table, 0)
        button = heads[gain].find_element("tag name", "button")
        button.click()
        numbers = to_numbers(read_column(table, gain))
        assert numbers == sorted(numbers, reverse=True)
        assert read_column(table, 0) != before
        assert heads[gain].get_attribute("aria-sort") == "descending"
        button.send_keys(Keys.ENTER)
        assert to_numbers(read_column(table, gain)) == sorted(numbers)
        assert read_column(table, 0)[-1] == "source"  # without a gain, it stays last in both directions
        heads[0].find_element("tag name", "button").click()
        assert read_column(table, 0) == sorted(before)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_it_unfolds_and_only_tables_and_figures_scroll_sideways(report: Path, width: int, dark: bool) -> None:
    with open_browser(width, 900, dark=dark) as driver:
        driver.get(report.as_uri())
        folded = driver.find_elements("tag name", "summary")
        assert [each.text for each in folded] == ["By corruption", "Setup"]
        for each in folded:
            row = each.find_element("xpath", "..//tbody/tr")
            assert not row.is_displayed()
            each.click()
            assert row.is_displayed()
        assert driver.execute_script("return document.documentElement.scrollWidth") == width
        paper = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (not dark)
        assert not console_errors(driver)
        assert not outside_requests(driver)

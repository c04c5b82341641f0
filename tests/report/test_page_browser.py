"""The HTML report in a real headless browser, from a file, at a desk's and a phone's width."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import report_data

from porter.report.html import write_page

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    binary = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no chromium with a chromedriver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    opened.set_page_load_timeout(300)
    yield opened
    opened.quit()


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Any:
    path = tmp_path / "report.html"
    write_page(report_data.page(), path)
    browser.set_window_size(1400, 1000)
    browser.get(path.as_uri())
    return browser


def shown(page: Any) -> list[str]:
    """First cells of the rows that can be seen, in order."""
    return page.execute_script(
        "return [...document.querySelectorAll('#rows tr')].filter((row) => row.getBoundingClientRect().height > 0)"
        ".map((row) => row.cells[0].textContent)"
    )  # type: ignore[no-any-return]


def find(page: Any, selector: str) -> Any:
    return page.find_element("css selector", selector)


def test_it_opens_without_an_error(page: Any) -> None:
    assert [entry["message"] for entry in page.get_log("browser")] == []
    assert page.title == "porter report"
    assert shown(page)[:3] == ["deep_gemm." + report_data.HOSTILE, "gather_tl", "mtp_tl"]
    assert "tilelang.unused" not in shown(page)
    assert find(page, "#count").text == "4 of 5 names"
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert page.execute_script("return document.images.length") == 0


def test_search_filters_and_link(page: Any) -> None:
    find(page, "#q").send_keys("SIM107")
    assert shown(page) == ["norm_tl"]
    assert page.current_url.endswith("#q=SIM107")
    find(page, "#q").clear()
    find(page, "#q").send_keys("OVERRIDE gather.py")
    assert shown(page) == ["gather_tl"], "every word, in any column"
    find(page, "#q").send_keys(" nothing-like-it")
    assert shown(page) == [] and find(page, "#count").text == "0 of 5 names"
    address = page.current_url.partition("#")[0]
    page.get("about:blank")
    page.get(address + "#state=stale&sort=6&down=1")
    assert shown(page) == ["norm_tl"] and find(page, "#down").is_selected()
    page.get("about:blank")
    page.get(address + "#used=0&group=tilelang")
    assert shown(page) == ["tilelang.unused"]


def test_sorting_by_heads(page: Any) -> None:
    head = page.find_elements("css selector", "#table thead button")
    head[4].click()
    assert shown(page)[:2] == ["gather_tl", "norm_tl"], "most passed first"
    assert find(page, "#table th[aria-sort]").get_attribute("aria-sort") == "descending"
    head[4].click()
    assert shown(page)[:2] == ["norm_tl", "gather_tl"], "rows without a measurement stay last"
    head[6].click()
    assert shown(page)[:2] == ["norm_tl", "gather_tl"]
    head[5].click()
    assert shown(page)[:2] == ["norm_tl", "gather_tl"], "1.5e-03 is more than exact"
    head[0].click()
    assert shown(page)[-1] == "norm_tl"


def test_it_can_be_read_on_a_phone(page: Any) -> None:
    page.set_window_size(500, 800)
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    )
    try:
        page.refresh()
        assert page.execute_script("return [innerWidth, document.documentElement.scrollWidth]") == [390, 390]
        cell = find(page, "#rows tr[data-used] td")
        assert page.execute_script("return getComputedStyle(arguments[0]).display", cell) == "block"
        assert "group" in page.execute_script("return getComputedStyle(arguments[0], '::before').content", cell)
        assert not find(page, "#table thead").is_displayed()
        find(page, "#sort").send_keys("tests")
        find(page, "#down").click()
        assert shown(page)[:2] == ["gather_tl", "norm_tl"]
        sizes = page.execute_script(
            "return [...document.querySelectorAll('#filters input[type=search], #filters select')].map((one) => one.offsetHeight)"
        )
        assert min(sizes) >= 38, "large enough for a finger"
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_without_script_every_name_is_there(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_page(report_data.page(), path)
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(path.as_uri())
        text = find(browser, "#rows").text
        assert "tilelang.unused" in text and "norm_tl" in text
        assert not find(browser, "#filters").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})

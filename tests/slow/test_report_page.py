"""The page of `uvd report` in a browser, as people use it."""

import io

import numpy as np
import pytest
from matplotlib.image import imread

import browser
from fakeruns import CLIFF, PUSH, train
from uvd.experiments.report import write_report

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.missing(), reason="chromium is not installed: make test-slow does"),
]
LINES = ".plot .scatterlayer .js-line"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("page") / "study", np.random.default_rng(0)
    for task in (CLIFF, PUSH):
        for name, best in (("td3", 0.3), ("her", 0.8), ("uvd", 0.9)):
            curves = best * np.sort(rng.random((4, 12)), 1)
            train(folder / f"{task}-{name}", name, task, curves)
    train(folder / "long", "her", CLIFF, np.sort(rng.random((4, 20)), 1), strategy="paper")
    train(folder / "loop", "td3", "PointLoop-v0", 90 * rng.random((2, 9)), metric="eval/return")
    write_report([folder], folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def chromium():
    with browser.chromium() as found:
        yield found


def wait(chromium, script, *args):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(chromium, 30).until(lambda c: c.execute_script(script, *args))


def opened(chromium, page, width=1300, height=1400, theme="light"):
    chromium.get_log("browser")
    browser.show(chromium, page, width, height, theme)
    wait(chromium, f"return document.querySelectorAll('{LINES}').length > 3")
    return chromium.find_elements("css selector", "section")


def assert_silent(chromium):
    assert chromium.get_log("browser") == []


def lines(section):
    return len(section.find_elements("css selector", LINES.removeprefix(".plot ")))


def await_lines(chromium, section, number):
    """Plotly draws a little later."""
    script = f"return arguments[0].querySelectorAll('{LINES}').length === arguments[1]"
    wait(chromium, script, section, number)


def text_of(cells):
    return [cell.text.splitlines()[0] for cell in cells]


def test_a_curve_toggles_by_mouse_and_by_keyboard(chromium, page):
    _, cliff, *_ = opened(chromium, page)
    before = lines(cliff)
    chip = cliff.find_elements("css selector", ".chips button")[0]
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false"
    await_lines(chromium, cliff, before - 1)
    chip.send_keys(" ")
    assert chip.get_attribute("aria-pressed") == "true"
    await_lines(chromium, cliff, before)
    assert_silent(chromium)


def test_a_table_sorts_by_mouse_and_by_keyboard(chromium, page):
    scores, *_ = opened(chromium, page)
    head = scores.find_elements("css selector", "th")[1]

    def column():
        cells = text_of(scores.find_elements("css selector", "tbody td:nth-child(2)"))
        return [float(cell.replace("★ ", "")) if cell != "–" else -1 for cell in cells]

    button = head.find_element("css selector", "button")
    button.click()
    assert head.get_attribute("aria-sort") == "descending"
    assert column() == sorted(column(), reverse=True)
    button.send_keys("\n")
    assert head.get_attribute("aria-sort") == "ascending"
    values = [x for x in column() if x >= 0]  # a method without a score comes last
    assert values == sorted(values)
    assert column()[: len(values)] == values
    assert_silent(chromium)


def test_a_method_opens_to_its_seeds_and_command(chromium, page):
    _, cliff, *_ = opened(chromium, page)
    before = lines(cliff)
    cliff.find_elements("css selector", ".open")[0].click()
    more = cliff.find_element("css selector", ".more")
    assert "uvd train her PointCliff-v0 --steps" in more.text
    assert len(more.find_elements("css selector", "[aria-label^=Seeds] tr")) == 5
    await_lines(chromium, cliff, before + 4)  # each seed's curve
    cliff.find_elements("css selector", ".open")[0].click()
    assert not cliff.find_elements("css selector", ".more")
    await_lines(chromium, cliff, before)
    assert_silent(chromium)


def test_axes_switch_between_steps_and_wall_time_and_to_the_whole_range(chromium, page):
    _, cliff, *_ = opened(chromium, page)

    def axis():
        script = "const x = document.querySelector('.plot')._fullLayout.xaxis;"
        return chromium.execute_script(script + "return [x.title.text, x.range[1]]")

    assert "common range" in cliff.find_element("css selector", ".note").text
    assert axis() == ["environment steps", 1200]
    chromium.find_element("css selector", "#common input").click()
    title, end = axis()
    assert end >= 2000
    chromium.find_element("css selector", "input[value=time]").click()
    title, end = axis()
    assert title == "wall time of a run, seconds"
    assert end >= 40
    assert_silent(chromium)


@pytest.mark.parametrize(
    ("width", "height", "theme", "dark"),
    [(1300, 1400, "light", False), (1300, 1400, "dark", True), (390, 844, "light", False)],
)
def test_it_looks_like_its_theme_and_fits_its_window(
    chromium, page, width, height, theme, dark, tmp_path
):
    opened(chromium, page, width, height, theme)
    picture = imread(io.BytesIO(chromium.get_screenshot_as_png()))[..., :3]
    assert picture.shape[:2] == (height, width)
    assert (np.median(picture) < 0.3) == dark
    assert picture.std() > 0.05
    assert chromium.execute_script("return document.documentElement.scrollWidth") <= width
    chromium.find_element("css selector", "#theme").click()
    other = imread(io.BytesIO(chromium.get_screenshot_as_png()))[..., :3]
    assert (np.median(other) < 0.3) != dark
    assert_silent(chromium)

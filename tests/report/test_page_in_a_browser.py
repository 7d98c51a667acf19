"""The page in a real browser. Every test also fails on console messages, dialogs and network requests."""

from collections.abc import Callable
from pathlib import Path

import pytest
from browser_page import HOSTILE, BrowserPage
from fake_run import make_taught_run

from tagalong.report import write_report

pytestmark = pytest.mark.slow

OpenPage = Callable[..., BrowserPage]
PLOTS = ("curve", "changes", "heatmap", "over-time")
REFUSE = "navigator.clipboard.writeText = () => Promise.reject(new Error('refused'));"
PHONE = {"viewport": {"width": 375, "height": 800}, "has_touch": True, "is_mobile": True}
UNFOLD = "document.querySelectorAll('details').forEach((part) => { part.open = true; })"


@pytest.fixture(scope="module")
def taught_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run whose best networks are taught by others and averaged."""
    folder = tmp_path_factory.mktemp("runs") / "taught"
    make_taught_run(folder, HOSTILE)
    return write_report(folder)


def test_every_plot_is_drawn_without_moving_anything(hostile_page: Path, open_page: OpenPage) -> None:
    opened = open_page(hostile_page, viewport={"width": 1200, "height": 200})
    places = """[...document.querySelectorAll('h2, table')].filter((element) => element.getClientRects().length)
        .map((element) => element.getBoundingClientRect().top + scrollY)"""
    opened.page.evaluate(UNFOLD)
    before = opened.page.evaluate(places)
    for name in PLOTS:
        assert opened.drawn_plot(name).bounding_box()["height"] > 200
    assert opened.page.evaluate(places) == before
    shown = opened.page.locator("body").inner_text()
    assert [name for name in HOSTILE if name not in shown] == [], "names are shown as they are"
    assert opened.page.locator("main img, main script, main b").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", ["hostile_page", "taught_page"])
def test_a_phone_needs_no_horizontal_scrolling_and_axe_finds_no_serious_problems(
    request: pytest.FixtureRequest, open_page: OpenPage, page: str, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the package axe-playwright-python")
    for device in ({}, PHONE):
        opened = open_page(request.getfixturevalue(page), **device, color_scheme=scheme)
        opened.page.evaluate(UNFOLD)
        for name in PLOTS:
            opened.drawn_plot(name)
        if device:
            assert opened.page.evaluate("document.documentElement.scrollWidth") == 375
        violations = axe.Axe().run(opened.page).response["violations"]
        assert [
            (violation["impact"], violation["id"], node["html"][:200])
            for violation in violations
            if violation["impact"] in ("serious", "critical")
            for node in violation["nodes"]
        ] == []


def test_dark_mode_is_dark_follows_the_system_and_prints(hostile_page: Path, open_page: OpenPage) -> None:
    from playwright.sync_api import expect

    opened = open_page(hostile_page, color_scheme="dark")
    opened.drawn_plot("curve")
    brightness = """() => ['body', '#curve .xtick text'].map((name) => getComputedStyle(document.querySelector(name)))
        .map((style, text) => text ? style.fill : style.backgroundColor)
        .map((color) => color.match(/\\d+/g).map(Number).reduce((sum, part) => sum + part))"""
    paper, ink = opened.page.evaluate(brightness)
    assert paper < 150 < 500 < ink
    tick = opened.page.locator("#curve .xtick text").first
    before = tick.evaluate("(text) => getComputedStyle(text).fill")
    opened.page.emulate_media(color_scheme="light")
    expect(tick).not_to_have_css("fill", before, timeout=30_000)  # drawn anew when the browser tells of the change
    paper, ink = opened.page.evaluate(brightness)
    assert ink < 300 < 600 < paper
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert opened.page.locator("#changes .main-svg, #heatmap .main-svg").count() >= 2
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert opened.page.pdf().startswith(b"%PDF")


def test_plots_show_values_and_what_readers_choose(hostile_page: Path, open_page: OpenPage) -> None:
    opened = open_page(hostile_page)
    heatmap = opened.drawn_plot("heatmap")
    box = heatmap.locator(".nsewdrag").bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] / 4, box["y"] + box["width"] / 12)  # the second of six columns
    opened.page.wait_for_selector("#heatmap .hoverlayer .hovertext")
    assert "values: 60" in heatmap.locator(".hoverlayer .hovertext").text_content()
    numbers = heatmap.locator(".heatmap-label")
    before = numbers.all_text_contents()
    opened.page.locator("#heatmap-switches select").select_option("cosine")
    assert numbers.all_text_contents() != before
    opened.page.locator("#time summary").click()
    legend = opened.drawn_plot("over-time").locator(".legendtext")
    assert HOSTILE[2] in legend.all_text_contents()
    opened.page.locator("#over-time-switches select").select_option(f"onto {HOSTILE[2]}")
    assert HOSTILE[2] not in legend.all_text_contents()


def test_the_table_sorts_both_ways(hostile_page: Path, open_page: OpenPage) -> None:
    opened = open_page(hostile_page)
    opened.page.locator("#methods summary").click()
    heading = opened.page.locator("#methods th", has_text="total loss")
    losses = opened.page.locator("#methods tbody tr td:nth-child(6)")
    unsorted = [float(text) for text in losses.all_text_contents()]
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    assert [float(text) for text in losses.all_text_contents()] == sorted(unsorted) != unsorted
    heading.locator("button").press("Enter")
    assert [float(text) for text in losses.all_text_contents()] == sorted(unsorted, reverse=True)


@pytest.mark.parametrize(
    ("clipboard", "said", "copied"),
    [
        ("", "Copied.", "navigator.clipboard.readText()"),
        (REFUSE, "Copied.", "navigator.clipboard.readText()"),
        ("Object.defineProperty(navigator, 'clipboard', { value: undefined })", "Copied.", None),
        (f"{REFUSE} document.execCommand = () => false;", "Selected;", "getSelection().toString()"),
    ],
    ids=["available", "refused", "missing", "impossible"],
)
def test_code_can_be_copied_or_is_selected(
    taught_page: Path, open_page: OpenPage, clipboard: str, said: str, copied: str | None
) -> None:
    page = open_page(taught_page, permissions=["clipboard-read", "clipboard-write"]).page
    page.evaluate(f"() => {{ {clipboard} }}")
    page.get_by_role("button", name="Copy the commands").press("Enter")
    page.get_by_text(said).wait_for()
    if copied:
        assert page.evaluate(copied) == page.locator("#repeat-command").text_content()

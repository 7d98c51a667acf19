"""The page in a real browser. Every test also fails on console messages, dialogs and network requests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browser_page import HOSTILE, BrowserPage
from fake_run import make_run, make_taught_run

from tagalong.report import write_report

pytestmark = pytest.mark.slow

OpenPage = Callable[..., BrowserPage]
PLOTS = ("measured-curve", "heatmap", "over-time", "budget-curve", "cost", "changes", "search-curve")
REFUSE = "() => { navigator.clipboard.writeText = () => Promise.reject(new Error('refused')); }"
PHONE = {"viewport": {"width": 375, "height": 800}, "has_touch": True, "is_mobile": True}


def groups(opened: BrowserPage) -> list[list[str]]:
    cards = opened.page.locator("#budget-groups .card")
    return [cards.nth(i).locator(".chip").all_text_contents() for i in range(cards.count())]


def test_every_plot_is_drawn(hostile_page: Path, open_page: OpenPage) -> None:
    opened = open_page(hostile_page)
    for name in PLOTS:
        assert opened.drawn_plot(name).bounding_box()["height"] > 200


def test_the_slider_changes_the_groups(hostile_page: Path, open_page: OpenPage) -> None:
    opened = open_page(hostile_page)
    slider = opened.page.locator("#budget-slider")
    slider.fill("1")
    assert len(groups(opened)) == 1
    assert sorted(groups(opened)[0]) == sorted(HOSTILE)
    assert "1 network, total affinity" in opened.page.locator("#budget-summary").inner_text()
    slider.press("ArrowRight")
    assert len(groups(opened)) == 2
    assert opened.page.locator("#budget-k").inner_text() == "2"
    assert slider.get_attribute("aria-valuetext") == "2 networks"
    opened.page.locator("#budget-more").click()
    assert len(groups(opened)) == 3


def test_the_slider_has_only_the_budgets_of_a_run_with_hundreds_of_tasks(
    tmp_path: Path, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tagalong.study.finished_run.MAX_TASKS_FOR_ALL_BUDGETS", 5)
    make_run(tmp_path, [*"abcdef"], budgets=(2, 4))
    opened = open_page(write_report(tmp_path))
    assert opened.page.locator("#budget-k").inner_text() == "4"
    assert opened.page.locator("#budget-more").is_disabled()
    opened.page.locator("#budget-less").click()
    assert opened.page.locator("#budget-k").inner_text() == "2"
    assert len(groups(opened)) == 2
    assert opened.page.locator("#budget-less").is_disabled()


def test_hovering_over_a_cell_shows_its_value(hostile_page: Path, open_page: OpenPage) -> None:
    opened = open_page(hostile_page)
    box = opened.drawn_plot("heatmap").locator(".nsewdrag").bounding_box()
    cell = box["width"] / len(HOSTILE)
    opened.page.mouse.move(box["x"] + 1.5 * cell, box["y"] + 0.5 * cell)
    opened.page.wait_for_selector("#heatmap .hoverlayer .hovertext")
    shown = opened.page.locator("#heatmap .hoverlayer .hovertext").text_content()
    assert "→" in shown
    assert "±" in shown
    assert "60 values" in shown


def test_switches_change_the_heat_map(hostile_page: Path, open_page: OpenPage) -> None:
    opened = open_page(hostile_page)
    numbers = opened.drawn_plot("heatmap").locator(".heatmap-label")
    before = numbers.all_text_contents()
    opened.page.get_by_label("trimmed").check(force=True)
    trimmed = numbers.all_text_contents()
    opened.page.get_by_label("cosine of gradients").check(force=True)
    assert before != trimmed != numbers.all_text_contents()


def test_a_task_can_be_chosen_over_time(hostile_page: Path, open_page: OpenPage) -> None:
    opened = open_page(hostile_page)
    legend = opened.drawn_plot("over-time").locator(".legendtext")
    assert HOSTILE[2] in legend.all_text_contents()
    opened.page.locator("#time-task").select_option(label=HOSTILE[2])
    assert HOSTILE[2] not in legend.all_text_contents()


def test_the_table_sorts_both_ways(hostile_page: Path, open_page: OpenPage) -> None:
    opened = open_page(hostile_page)
    heading = opened.page.locator("#methods th", has_text="total loss")
    losses = opened.page.locator("#methods tbody tr td:nth-child(6)")

    def shown() -> list[float]:
        return [float(text) for text in losses.all_text_contents()]

    assert shown() != sorted(shown())
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    assert shown() == sorted(shown())
    heading.locator("button").press("Enter")
    assert shown() == sorted(shown(), reverse=True)


def test_nothing_moves_when_a_plot_is_drawn(hostile_page: Path, open_page: OpenPage) -> None:
    opened = open_page(hostile_page, viewport={"width": 1200, "height": 200})
    places = """[...document.querySelectorAll('h2, table')].filter((one) => one.getClientRects().length)
        .map((one) => one.getBoundingClientRect().top + scrollY)"""
    before = opened.page.evaluate(places)
    assert opened.page.locator("#search-curve .main-svg").count() == 0
    for name in PLOTS:
        opened.drawn_plot(name)
    assert opened.page.evaluate(places) == before


def boxes(opened: BrowserPage) -> tuple[dict[str, float], dict[str, float]]:
    """Where the figure of costs and the table of methods are."""
    return opened.drawn_plot("cost").bounding_box(), opened.page.locator("#methods").bounding_box()


def test_the_table_is_next_to_its_figure_on_wide_screens(hostile_page: Path, open_page: OpenPage) -> None:
    wide = open_page(hostile_page, viewport={"width": 1280, "height": 900})
    figure, table = boxes(wide)
    assert table["x"] >= figure["x"] + figure["width"]
    assert abs(table["y"] - figure["y"]) < 100
    assert table["x"] + table["width"] <= 1280
    assert wide.page.evaluate("document.documentElement.scrollWidth") == 1280
    figure, table = boxes(open_page(hostile_page, viewport={"width": 900, "height": 900}))
    assert table["y"] >= figure["y"] + figure["height"]


def test_the_table_is_below_its_figure_in_print(hostile_page: Path, open_page: OpenPage) -> None:
    opened = open_page(hostile_page, viewport={"width": 1280, "height": 900})
    narrow = boxes(opened)[0]["width"]
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    figure, table = boxes(opened)
    assert table["y"] >= figure["y"] + figure["height"]
    assert figure["width"] > narrow


def test_hostile_names_are_shown_as_text(hostile_page: Path, open_page: OpenPage) -> None:
    opened = open_page(hostile_page)
    for name in PLOTS:
        opened.drawn_plot(name)
    shown = opened.page.locator("body").inner_text()
    for name in HOSTILE:
        assert name in shown
    assert opened.page.locator("main img, main script, main b").count() == 0
    assert opened.page.locator("#heatmap .xtick").all_text_contents() != []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_horizontal_scrolling(hostile_page: Path, open_page: OpenPage, scheme: str) -> None:
    opened = open_page(hostile_page, **PHONE, color_scheme=scheme)
    for name in PLOTS:
        opened.drawn_plot(name)
    for details in opened.page.locator("summary:visible").all():
        details.click()
    assert opened.page.evaluate("document.documentElement.scrollWidth") == 375


@pytest.fixture(scope="module")
def taught_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run whose best networks are taught by others and averaged."""
    folder = tmp_path_factory.mktemp("runs") / "taught"
    make_taught_run(folder, HOSTILE)
    return write_report(folder)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_taught_networks_fit_on_a_phone(taught_page: Path, open_page: OpenPage, scheme: str) -> None:
    opened = open_page(taught_page, **PHONE, color_scheme=scheme)
    for name in ("measured-curve", "search-curve"):
        assert opened.drawn_plot(name).bounding_box()["height"] > 200
    for details in opened.page.locator("summary:visible").all():
        details.click()
    assert opened.page.evaluate("document.documentElement.scrollWidth") == 375
    question = opened.page.locator(".answers dt").first.bounding_box()
    answer = opened.page.locator(".answers dd").first.bounding_box()
    assert answer["y"] >= question["y"] + question["height"]
    assert answer["width"] > 300


def test_tables_of_taught_networks_scroll_by_keyboard(taught_page: Path, open_page: OpenPage) -> None:
    opened = open_page(taught_page, **PHONE)
    opened.page.get_by_text("The numbers as a table, with costs").click()
    region = opened.page.locator(".scroll:has(> #measured-table)")
    region.evaluate("(one) => one.addEventListener('scroll', () => { one.dataset.left = one.scrollLeft; })")
    region.focus()
    opened.page.keyboard.press("ArrowRight")
    opened.page.wait_for_selector(".scroll[data-left]:has(> #measured-table)")
    assert float(region.get_attribute("data-left")) > 0


def test_networks_of_another_budget_can_be_chosen_by_keyboard(taught_page: Path, open_page: OpenPage) -> None:
    page = open_page(taught_page).page

    def shown() -> list[str]:
        return [panel.get_attribute("data-choice") for panel in page.locator("#networks .panel:visible").all()]

    assert shown() == ["3 networks (recommended)"]
    page.get_by_label("3 networks (recommended)").focus()
    page.keyboard.press("ArrowLeft")
    assert shown() == ["2 networks"]
    assert "both taught by others" in page.locator("#networks").inner_text()
    page.keyboard.press("ArrowLeft")
    assert shown() == ["1 network"]


@pytest.mark.parametrize("clipboard", ["available", "refused", "missing"])
def test_code_can_be_copied(taught_page: Path, open_page: OpenPage, clipboard: str) -> None:
    opened = open_page(taught_page, permissions=["clipboard-read", "clipboard-write"])
    page = opened.page
    if clipboard == "refused":
        page.evaluate(REFUSE)
    elif clipboard == "missing":
        page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    button = page.get_by_role("button", name="Copy the commands")
    status = button.locator("xpath=following-sibling::*[@role='status']")
    assert status.inner_text() == ""
    button.press("Enter")
    status.get_by_text("Copied.").wait_for()
    if clipboard != "missing":
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == page.locator("#repeat-commands").text_content()
        assert "tagalong report" in copied


def test_code_is_selected_if_it_cannot_be_copied(taught_page: Path, open_page: OpenPage) -> None:
    page = open_page(taught_page).page
    page.evaluate(REFUSE)
    page.evaluate("() => { document.execCommand = () => false; }")
    page.get_by_role("button", name="Copy the commands").click()
    page.get_by_text("Selected; press Ctrl+C or ⌘C to copy.").wait_for()
    assert page.evaluate("getSelection().toString()") == page.locator("#repeat-commands").text_content()


def test_unlearnt_tasks_are_marked_in_plots(taught_page: Path, open_page: OpenPage) -> None:
    opened = open_page(taught_page)
    marked = [text for text in opened.drawn_plot("heatmap").locator(".xtick").all_text_contents() if "†" in text]
    assert len(marked) == 1
    assert [text for text in opened.page.locator("#time-task option").all_text_contents() if "†" in text] == [
        f"{HOSTILE[-1]} †"
    ]
    chips = opened.page.locator("#budget-groups .chip").all_text_contents()
    assert [chip.removesuffix(" ~") for chip in chips if "†" in chip] == [f"{HOSTILE[-1]} †"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", [{}, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("page", ["hostile_page", "taught_page"])
def test_axe_finds_no_serious_problems(
    request: pytest.FixtureRequest, open_page: OpenPage, page: str, device: dict[str, Any], scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the package axe-playwright-python")
    opened = open_page(request.getfixturevalue(page), **device, color_scheme=scheme)
    for name in PLOTS:
        opened.drawn_plot(name)
    for details in opened.page.locator("summary:visible").all():
        details.click()
    found = axe.Axe().run(opened.page).response["violations"]
    assert [
        (one["impact"], one["id"], node["html"][:200])
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ] == []


def test_dark_mode_is_dark_and_follows_the_system(hostile_page: Path, open_page: OpenPage) -> None:
    from playwright.sync_api import expect

    opened = open_page(hostile_page, color_scheme="dark")
    opened.drawn_plot("cost")

    def brightness(style: str) -> int:
        shown = opened.page.evaluate(style)
        return sum(int(part) for part in shown.removeprefix("rgb(").removesuffix(")").split(","))

    paper = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('#cost .xtick text')).fill"
    assert brightness(paper) < 150
    assert brightness(ink) > 500
    before = opened.page.evaluate(ink)
    opened.page.emulate_media(color_scheme="light")
    assert brightness(paper) > 600
    tick = opened.page.locator("#cost .xtick text").first
    expect(tick).not_to_have_css("fill", before, timeout=30_000)  # drawn anew when the browser tells of the change
    assert brightness(ink) < 300


def test_it_prints_with_every_plot(hostile_page: Path, open_page: OpenPage) -> None:
    opened = open_page(hostile_page, color_scheme="dark")
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert all(opened.page.locator(f"#{name} .main-svg").count() for name in PLOTS)
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert opened.page.pdf().startswith(b"%PDF")


def test_everything_has_a_name_for_screen_readers(hostile_page: Path, open_page: OpenPage) -> None:
    opened = open_page(hostile_page)
    nameless: list[Any] = opened.page.evaluate(
        """() => [...document.querySelectorAll('input, select, button, [role=img], [role=region]')]
            .filter((one) => !(one.ariaLabel || one.labels?.length || one.textContent.trim()))
            .map((one) => one.outerHTML)"""
    )
    assert nameless == []
    assert opened.page.locator("thead th:not([scope])").count() == 0
    assert opened.page.locator("html[lang=en]").count() == 1
    assert opened.page.locator("h1").count() == 1

"""The report of a run and its pages, as a person meets them."""

from urllib.parse import unquote, urldefrag, urlparse

import pytest

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 375, "height": 812}


@pytest.fixture(params=["index", "notebooks"])
def pages(request, report):
    """The paths of the index, or of all executed notebooks."""
    index = report / "index.html"
    return [index] if request.param == "index" else sorted(set(report.glob("*.html")) - {index})


@pytest.fixture
def opened(browser):
    """Opens a page and gives it with what it asked for, and what of that it did not get."""
    contexts = []

    def open_(path, viewport=DESKTOP):
        contexts.append(browser.new_context(viewport=viewport))
        page, asked, failed = contexts[-1].new_page(), [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("requestfailed", lambda request: failed.append(request.url))
        page.on("pageerror", lambda error: failed.append(str(error)))
        page.goto(path.as_uri(), wait_until="networkidle")
        return page, asked, failed

    yield open_
    for context in contexts:
        context.close()


def test_nothing_comes_from_elsewhere_and_every_figure_is_drawn(pages, opened):
    assert pages
    for path in pages:
        page, asked, failed = opened(path)
        assert not failed and all(urlparse(url).scheme in ("file", "data") for url in asked)
        sizes = page.eval_on_selector_all(
            "img", "images => images.map(image => [image.naturalWidth, image.clientWidth])"
        )
        assert all(natural > 100 and shown > 100 for natural, shown in sizes), path.name
        assert sizes or path.name != "index.html"


def test_every_link_leads_somewhere(pages, opened):
    for path in pages:
        page, _, _ = opened(path)
        links = page.eval_on_selector_all("a[href]", "links => links.map(link => link.href)")
        assert links
        for link in set(links):
            address, fragment = urldefrag(link)
            target = path.parent / unquote(urlparse(address).path)
            assert urlparse(link).scheme == "file" and target.is_file(), f"{path.name}: {link}"
            if fragment:
                assert f'id="{fragment}"' in target.read_text(), f"{path.name}: {link}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(pages, opened, scheme):
    from axe_playwright_python.sync_playwright import Axe

    for path in pages:
        page, _, _ = opened(path)
        page.emulate_media(color_scheme=scheme)
        for details in page.query_selector_all("details"):
            details.evaluate("element => element.open = true")
        found = Axe().run(page).response["violations"]
        places = [
            f"{one['id']}: {node['html'][:200]} {node['failureSummary']}" for one in found for node in one["nodes"]
        ]
        assert not places, f"{path.name}\n" + "\n".join(places[:10])


def test_a_phone_scrolls_in_one_direction(pages, opened):
    for path in pages:
        page, _, _ = opened(path, PHONE)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= PHONE["width"], f"{path.name}: {wide} px wide"


def test_every_figure_has_words_title_and_caption(report, opened):
    page, _, _ = opened(report / "index.html")
    figures = page.query_selector_all("figure")
    assert figures
    for figure in figures:
        assert len(figure.query_selector("img").get_attribute("alt")) > 40
        assert len(figure.query_selector("figcaption").inner_text()) > 40
        assert figure.evaluate("element => element.previousElementSibling.tagName") == "H3"


def test_values_appear_at_the_pointer(report, opened):
    """At a drawn point its value; away from all points nothing."""
    import json

    page, _, _ = opened(report / "index.html")
    image = page.query_selector("img[data-points]")
    image.scroll_into_view_if_needed()
    box, points = image.bounding_box(), json.loads(image.get_attribute("data-points"))
    x, y, words = points[0]
    page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
    tip = image.evaluate_handle("image => image.closest('.plot').querySelector('.tip')").as_element()
    assert tip.is_visible() and tip.inner_text() in [point[2] for point in points]
    assert abs(tip.bounding_box()["x"] + tip.bounding_box()["width"] / 2 - (box["x"] + x * box["width"])) < 20, words
    page.mouse.move(box["x"] + 1, box["y"] + 1)
    assert not tip.is_visible()


def test_the_table_of_protections_sorts(report, opened):
    page, _, _ = opened(report / "index.html")
    if not page.query_selector("table.sortable"):
        pytest.skip("a smoke run is too small to compare protections: make browser-test PROFILE=laptop")
    column = len(page.query_selector_all("table.sortable th[scope=col]")) - 2
    heads = page.query_selector_all("table.sortable th[scope=col] button")

    def values():
        cells = f"table.sortable tbody tr td:nth-child({column + 1})"
        return page.eval_on_selector_all(cells, "cells => cells.map(cell => Number(cell.dataset.value))")

    heads[column].focus()
    page.keyboard.press("Enter")
    assert values() == sorted(values(), reverse=True) and len(set(values())) > 2
    assert heads[column].evaluate("button => button.closest('th').ariaSort") == "descending"
    page.keyboard.press("Enter")
    assert values() == sorted(values())


def test_print(report, opened):
    """The PDF has all text, in dark on white, and no navigation."""
    page, _, _ = opened(report / "index.html")
    page.emulate_media(media="print")
    assert not page.is_visible("nav") and page.is_visible("figcaption")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    pdf = page.pdf(format="A4")
    figures = len(page.query_selector_all("figure"))
    assert pdf.startswith(b"%PDF") and pdf.count(b"/Type /Page\n") >= figures / 3

"""The documentation as a site (`make docs`): pages open without a network, fit, have no broken picture, and are found."""

from pathlib import Path
from urllib.parse import urlparse

import pytest

SITE = Path(__file__).resolve().parents[2] / "build" / "docs" / "html"


pytestmark = pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="make docs builds the site")


@pytest.mark.parametrize("name", ["index", "protection", "api/index", "api/BitFlip", "01_bit_sensitivity", "glossary"])
def test_a_page_opens_without_a_network(browser, name):
    context = browser.new_context(viewport={"width": 375, "height": 812})
    page, asked, errors = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((SITE / f"{name}.html").as_uri(), wait_until="load")
    assert page.query_selector("h1") and not errors
    assert {urlparse(url).scheme for url in asked} <= {"file", "data"}
    assert all(page.eval_on_selector_all("main img", "images => images.map(image => image.naturalWidth)"))
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    context.close()


@pytest.mark.parametrize(
    "query, first, shows",
    [
        ("own metric", "your_model.html#", "A function of your own"),
        ("install", "install.html", "pip install"),
        ("hugging face", "your_model.html#", "returns its .logits"),
        ("resume", "campaigns.html#", "continues from there"),
        ("papermill", "sweeps.html#", "papermill notebooks/"),
        ("SECDED", "glossary.html#", "single error correction, double error detection"),
        ("BitFlip", "api/BitFlip.html", "class drsrobust.BitFlip"),
    ],
)
def test_the_search_finds_it_first(browser, query, first, shows):
    page = browser.new_page()
    page.goto(f"{(SITE / 'search.html').as_uri()}?q={query.replace(' ', '+')}")
    hit = page.locator("ul.search li a").first
    hit.wait_for()
    page.wait_for_timeout(1000)  # the results are complete, and in their order
    assert hit.get_attribute("href").startswith(first)
    hit.click()
    page.wait_for_load_state()
    anchor = page.url.partition("#")[2].partition("?")[0]
    assert not anchor or page.locator(f"[id='{anchor}']").count()
    assert shows in " ".join(page.locator("main").inner_text().split())
    page.close()

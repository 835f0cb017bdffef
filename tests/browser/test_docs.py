"""The documentation as a site (`make docs`): pages open without a network, and have no broken picture."""

from pathlib import Path
from urllib.parse import urlparse

import pytest

SITE = Path(__file__).resolve().parents[2] / "build" / "docs" / "html"


@pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="make docs builds the site")
@pytest.mark.parametrize("name", ["index", "protection", "api", "01_bit_sensitivity", "glossary"])
def test_a_page_opens_without_a_network(browser, name):
    context = browser.new_context(viewport={"width": 375, "height": 812})
    page, asked, errors = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((SITE / f"{name}.html").as_uri(), wait_until="load")
    assert page.query_selector("h1") and not errors
    assert {urlparse(url).scheme for url in asked} <= {"file", "data"}
    assert all(page.eval_on_selector_all("main img", "images => images.map(image => image.naturalWidth)"))
    context.close()

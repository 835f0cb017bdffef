import pytest

from drsrobust_extras.pages import plots


@pytest.fixture
def ax():
    return plots.new_panels()[0]

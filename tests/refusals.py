"""A call that is refused: by which error, and what its message names."""

import pytest


def refuses(call, error, *said):
    """Fails unless the call raises `error` with all of `said` in its message."""
    with pytest.raises(error) as caught:
        call()
    assert all(str(part) in str(caught.value) for part in said), str(caught.value)

"""How large a weight becomes when one of its bits flips."""

from typing import TYPE_CHECKING

import torch
from torch import nn

from drsrobust.tensors import component_of, listed

if TYPE_CHECKING:
    import pandas as pd

QUANTILES = {"q10": 0.1, "median": 0.5, "q90": 0.9}


def flipped_magnitudes(model: nn.Module, bit: int = 30) -> "pd.DataFrame":
    """|w| of every parameter after a flip of one of its bits, each for itself; nothing is drawn, and the model stays as it is.

    Args:
        model: with parameters of float32.
        bit: 0 the lowest of the mantissa, 30 the highest of the exponent, 31 the sign.

    Returns:
        one row per component: `component`, `words`, and the quantiles `q10`, `median` and `q90` of |w| (of what is no
        number, none).

    Raises:
        ValueError: a bit that float32 does not have; a parameter of another type.

    Example:
        >>> layer = nn.Linear(2, 2, bias=False)
        >>> _ = nn.init.constant_(layer.weight, 0.5)
        >>> flipped_magnitudes(nn.ModuleDict({"over": layer})).values.tolist()[0][:2]
        ['over', 4]
        >>> f"{flipped_magnitudes(layer)['median'][0]:.2g}"
        '1.7e+38'
    """
    import pandas as pd

    if not 0 <= bit <= 31:
        raise ValueError(f"bit is {bit!r}; float32 has the bits 0 to 31")
    mask = torch.tensor(1 << bit if bit < 31 else -(1 << 31), dtype=torch.int32)
    home, found = component_of(model), {}
    for one in listed(model):
        if not one.parameter:
            continue
        if one.tensor.dtype != torch.float32:
            raise ValueError(f"{one.name} is {one.tensor.dtype}; magnitudes are told of float32")
        words = one.tensor.detach().reshape(-1).view(torch.int32) ^ mask
        found.setdefault(home[one.name], []).append(words.view(torch.float32).abs())
    rows = []
    for component, parts in found.items():
        sizes = torch.cat(parts)
        sizes = sizes[~sizes.isnan()].sort().values
        places = {name: round(share * (len(sizes) - 1)) for name, share in QUANTILES.items()} if len(sizes) else {}
        ends = {name: float(sizes[place]) for name, place in places.items()}
        rows.append({"component": component, "words": sum(map(len, parts))} | ends)
    return pd.DataFrame(rows, columns=["component", "words", *QUANTILES])

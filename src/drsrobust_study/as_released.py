"""The protections of the published scripts of arXiv:2307.10244, and what figures say of their errors."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from drsrobust.mitigation import ActivationClipping, Mitigation, clip_sites

# Protocol (the label of a campaign) -> what figures say of its errors.
ERRORS = {"corrected": "errors in all parameters", "as_released": "errors as in the published scripts"}
_CLIP = "clip as released "


def clippings(model: nn.Module, bounds: Iterable[float]) -> list[ActivationClipping]:
    """The published clipping: after every nn.Linear but the last, NaN becomes 0, then values saturate at -bound and bound.
    First-order terms, tables, cross layers and the logit are never clipped.

    Its bound was 1000 in March 2023, 6 in April 2023 and is 100 in the last commit. Only its version of 3 to 7 March 2023 kept
    NaN: `ActivationClipping(bound, nan="keep", sites="linear")`.

    Args:
        model: that is clipped.
        bounds: one clipping each.

    Returns:
        none for a model without such a layer, as FM, of which the scripts clip nothing.
    """
    if "linear" not in set(clip_sites(model)["site"]):
        return []
    clips = [ActivationClipping(bound, nan="zero", sites="linear") for bound in bounds]
    for clip in clips:
        clip.name = f"{_CLIP}{clip.bound:g}"
    return clips


def display_names(clips: Iterable[Mitigation]) -> dict[str, str]:
    """The names of clippings in figures: what their bound is, and of published ones where they act."""
    names = {clip.name: _bound_name(clip.name.replace(_CLIP, "clip ")) for clip in clips}
    return {name: f"{shown}, hidden layers" if name.startswith(_CLIP) else shown for name, shown in names.items()}


def _bound_name(name: str) -> str:
    of = name.removeprefix("clip ")
    if of.startswith("profiled"):
        return f"learnt bound{', to zero' if 'to zero' in of else ''}{', searched' if 'searched' in of else ''}"
    if of.startswith("quantile"):
        return f"learnt bound, {100 * float(of.split()[1]):g} % of values"
    return f"fixed bound {of}"


class AppliedTooEarly(Mitigation):
    """A protection as the published scripts applied it until April 2023: before they drew the error map, so that it protects
    nothing and stores nothing.

    Args:
        protection: the one that was meant.
    """

    def __init__(self, protection: Mitigation) -> None:
        self.protection, self.name = protection, f"{protection.name}, as released"

    def settings(self) -> Any:
        return self.protection.identity()

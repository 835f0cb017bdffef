"""The table of a stratified campaign: a DataFrame that says that its plain means are wrong."""

import pandas as pd

from drsrobust.statistics.strata import STRATUM, WEIGHT

NOTE = (
    "stratified trials: the mean of a condition is the sum of weight * value, not the plain mean; use summarise(), recovery() "
    "or pvf()"
)


class StratifiedTable(pd.DataFrame):
    """Trials with the columns `stratum` and `weight`; the weights of a condition's trials sum to 1."""

    @property
    def _constructor(self) -> type:
        return StratifiedTable

    def __repr__(self) -> str:
        return f"{super().__repr__()}\n{NOTE}" if self._is_stratified else super().__repr__()

    def _repr_html_(self) -> str | None:
        html = super()._repr_html_()
        return f"{html}<p><b>{NOTE}</b></p>" if html and self._is_stratified else html

    @property
    def _is_stratified(self) -> bool:
        return {STRATUM, WEIGHT} <= set(self.columns)

"""Data sets whose terms a person must accept: where they are, which file goes where, and how to see that it is whole."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ByHand:
    """A data set to be fetched by a person. `lines` counts those of the unpacked file, a header too."""

    title: str
    address: str
    given: str  # what one gets there
    file: str  # where it goes, below the root
    lines: int

    def there(self, root: Path) -> bool:
        """Whether the file is there, plain or as .gz."""
        return (root / self.file).is_file() or (root / f"{self.file}.gz").is_file()

    def advice(self, root: Path) -> str:
        """What to do, step by step."""
        place = root / self.file
        return (
            f"{self.title}: to be fetched by hand, since its terms must be accepted by a person.\n"
            f"  1. Sign in and accept the terms: {self.address}\n"
            f"  2. Download {self.given}; put it at {place} (or, compressed, at {place}.gz).\n"
            f"  3. Count its lines: wc -l < {place} (zcat {place}.gz | wc -l) must say {self.lines}."
        )


BY_HAND = {
    "criteo": ByHand(
        "Criteo Display Advertising Challenge (2014)",
        "https://www.kaggle.com/c/criteo-display-ad-challenge",
        "the challenge's data and take train.txt out of it",
        "criteo/train.txt",
        45_840_617,
    ),
    "avazu": ByHand(
        "Avazu Click-Through Rate Prediction (2014)",
        "https://www.kaggle.com/c/avazu-ctr-prediction/data",
        "train.gz (its contents are a CSV file)",
        "avazu/train.csv",
        40_428_968,
    ),
}

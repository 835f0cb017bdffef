"""Notebooks whose campaigns run in shards: parameters `shard` and `merge` (docs/scale.md)."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drsrobust.campaign import merge

if TYPE_CHECKING:
    import pandas as pd

    from drsrobust.campaign import Campaign


def run_campaign(campaign: "Campaign", shard: str = "", folders: Sequence[str] = (), **options: Any) -> "pd.DataFrame":
    """The table of a campaign, of a shard of it, or of merged shards.

    Args:
        campaign: of the notebook.
        shard: as `3/8`; empty: all trials.
        folders: in which the stores of all shards lie; then no trial is computed.
        options: of `Campaign.run`.

    Raises:
        ValueError: a shard and folders, or no such shard.
        StoreError: as of `merge`.
    """
    if folders and shard:
        raise ValueError(f"shard is {shard!r} and merge is {list(folders)}; a notebook computes a shard, or merges all")
    if folders:
        name = f"{campaign.store.folder.name}.shard-*-of-*"
        paths = (path for folder in folders for path in sorted(Path(folder).glob(name)))
        return merge(campaign, [path for path in paths if path.is_dir()])
    return campaign.run(shard=shard or None, **options)


def end_of_shard(shard: str) -> None:
    """Ends a notebook that computes a shard, after its campaigns: figures need all shards.

    Raises:
        SystemExit: there is a shard; papermill takes it for a success.
    """
    if shard:
        print(f"shard {shard} has finished; merge = [folders of the shards' stores] draws the figures when all have")
        raise SystemExit(0)

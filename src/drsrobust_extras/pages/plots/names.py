"""Names of data sets, models and components in figures: what a reader calls them."""

import re

_NAMES = {
    **{"fm": "FM", "dcn": "DCN", "afm": "AFM", "afn": "AFN", "wide_deep": "Wide & Deep", "deepfm": "DeepFM"},
    **{"dlrm": "DLRM", "dlrm_dcn": "DLRM-DCN", "dummy": "dummy model"},
    **{"hstu": "HSTU", "sasrec": "SASRec"},
    **{"over_mlp": "top MLP", "dense_mlp": "bottom MLP", "deep_mlp": "deep MLP", "mlp": "MLP", "head": "head"},
    **{"embedding": "embedding tables", "linear": "first-order weights", "all": "all parameters"},
}
_SETS = {
    **{f"movielens-{size}": f"MovieLens-{size.upper()}" for size in ("100k", "1m", "10m", "20m", "25m", "32m")},
    **{"criteo-sample": "Criteo sample"},
    **{"criteo-kaggle": "Criteo Kaggle", "avazu": "Avazu", "synthetic-movielens": "generated MovieLens"},
    **{"synthetic-criteo": "generated Criteo", "synthetic-dummy": "generated inputs"},
    **{"amazon-games": "Amazon games", "kuairand-1k": "KuaiRand-1K", "synthetic-kuairand": "generated sequences"},
}
_VARIANTS = {"ids": "ids only", "full": "all features", "sequences": "sequences"}
# In a text parts of a model keep the names that one types as targets.
_MODELS = ("fm", "dcn", "afm", "afn", "wide_deep", "deepfm", "dlrm", "dlrm_dcn", "hstu", "sasrec")
_ANY = f"{'|'.join(_MODELS)}|({'|'.join(_SETS)})/\\w+"
_WORDS = re.compile(rf"(?<![\w/-])({_ANY})(?![\w/-])")


def display_name(name: str) -> str:
    """What figures call a data set, model or component; other names as they are, with spaces for underscores.

    Example:
        >>> [display_name(name) for name in ("movielens-1m/ids", "over_mlp", "wide_deep", "cross")]
        ['MovieLens-1M (ids only)', 'top MLP', 'Wide & Deep', 'cross']
    """
    if name in _NAMES:
        return _NAMES[name]
    dataset, slash, variant = name.partition("/")
    if slash and dataset in _SETS:
        return f"{_SETS[dataset]} ({_VARIANTS[variant]})" if variant in _VARIANTS else _SETS[dataset]
    return re.sub("_", " ", name)


def readable(text: str) -> str:
    """A text with display names in place of the names of data sets and models that are in it as words.

    Example:
        >>> readable("dlrm on movielens-1m/full: over_mlp 1, embedding user")
        'DLRM on MovieLens-1M (all features): over_mlp 1, embedding user'
    """
    return _WORDS.sub(lambda match: display_name(match[0]), text)

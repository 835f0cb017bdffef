"""What hardware bit errors do to deep recommenders, and what protection is worth.

    import drsrobust as dr

    data = dr.load_dataset("synthetic-movielens")
    model = dr.load_model("dlrm", data)
    judge = dr.Evaluator(model, data.test)
    with dr.inject(model, dr.BitFlip(ber=1e-4), target="embedding", seed=7) as error_map:
        print(len(error_map), judge.run().auc)

Names are imported at first use, so that `import drsrobust` costs no PyTorch, pandas or seaborn.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# Public name -> module that defines it. TYPE_CHECKING below says the same to editors; a test compares the two.
_HOME = {
    "load_dataset": "drsrobust.data",
    "Dataset": "drsrobust.data",
    "Split": "drsrobust.data",
    "components": "drsrobust.tensors",
    "load_model": "drsrobust.training",
    "load_models": "drsrobust.training",
    "Activations": "drsrobust.injection",
    "BitFlip": "drsrobust.injection",
    "Burst": "drsrobust.injection",
    "Dtype": "drsrobust.injection",
    "ErrorMap": "drsrobust.injection",
    "FieldMixture": "drsrobust.injection",
    "FixedCount": "drsrobust.injection",
    "Gradients": "drsrobust.injection",
    "Inputs": "drsrobust.injection",
    "MultiBit": "drsrobust.injection",
    "OptimizerState": "drsrobust.injection",
    "RandomValue": "drsrobust.injection",
    "RandomWord": "drsrobust.injection",
    "RowError": "drsrobust.injection",
    "Rows": "drsrobust.injection",
    "SingleBit": "drsrobust.injection",
    "Strided": "drsrobust.injection",
    "StuckAt": "drsrobust.injection",
    "ErrorMapMismatch": "drsrobust.injection",
    "ErrorModel": "drsrobust.injection",
    "Injection": "drsrobust.injection",
    "InjectionError": "drsrobust.injection",
    "Pattern": "drsrobust.injection",
    "applied_maps": "drsrobust.injection",
    "resolve": "drsrobust.injection",
    "inject": "drsrobust.injection",
    "restore": "drsrobust.injection",
    "Evaluation": "drsrobust.evaluation",
    "Evaluator": "drsrobust.evaluation",
    "Campaign": "drsrobust.campaign",
    "decades": "drsrobust.campaign",
    "pvf": "drsrobust.campaign",
    "caption": "drsrobust.campaign",
    "clean_table": "drsrobust.campaign",
    "summarise": "drsrobust.campaign",
    "ABFTEmbeddingBag": "drsrobust.mitigation",
    "ABFTLinear": "drsrobust.mitigation",
    "ActivationClipping": "drsrobust.mitigation",
    "BitProtection": "drsrobust.mitigation",
    "ECC": "drsrobust.mitigation",
    "NaNGuard": "drsrobust.mitigation",
    "ParityZero": "drsrobust.mitigation",
    "Replication": "drsrobust.mitigation",
    "SECDED": "drsrobust.mitigation",
    "Scrubbing": "drsrobust.mitigation",
    "WeightRange": "drsrobust.mitigation",
    "ZeroSpaceECC": "drsrobust.mitigation",
    "make_room": "drsrobust.mitigation",
    "places": "drsrobust.mitigation",
    "check_parameters": "drsrobust.notebook",
    "conclusion": "drsrobust.notebook",
    "provenance": "drsrobust.notebook",
}
_PACKAGES = (
    "benchmark",
    "campaign",
    "data",
    "evaluation",
    "injection",
    "metrics",
    "mitigation",
    "models",
    "plots",
    "rates",
    "training",
)

if TYPE_CHECKING:
    from drsrobust import (
        benchmark,
        campaign,
        data,
        evaluation,
        injection,
        metrics,
        mitigation,
        models,
        plots,
        rates,
        training,
    )
    from drsrobust.campaign import Campaign, caption, clean_table, decades, pvf, summarise
    from drsrobust.data import Dataset, Split, load_dataset
    from drsrobust.evaluation import Evaluation, Evaluator
    from drsrobust.injection import (
        Activations,
        BitFlip,
        Burst,
        Dtype,
        ErrorMap,
        ErrorMapMismatch,
        ErrorModel,
        FieldMixture,
        FixedCount,
        Gradients,
        Injection,
        InjectionError,
        Inputs,
        MultiBit,
        OptimizerState,
        Pattern,
        RandomValue,
        RandomWord,
        RowError,
        Rows,
        SingleBit,
        Strided,
        StuckAt,
        applied_maps,
        inject,
        resolve,
        restore,
    )
    from drsrobust.mitigation import (
        ECC,
        SECDED,
        ABFTEmbeddingBag,
        ABFTLinear,
        ActivationClipping,
        BitProtection,
        NaNGuard,
        ParityZero,
        Replication,
        Scrubbing,
        WeightRange,
        ZeroSpaceECC,
        make_room,
        places,
    )
    from drsrobust.notebook import check_parameters, conclusion, provenance
    from drsrobust.tensors import components
    from drsrobust.training import load_model, load_models

__all__ = ["__version__", *_HOME, *_PACKAGES]


def __getattr__(name: str):
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name in _PACKAGES:
        value = import_module(f"drsrobust.{name}")
    else:
        raise AttributeError(f"module 'drsrobust' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

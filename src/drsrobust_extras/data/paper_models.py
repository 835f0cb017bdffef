"""The models of the study, by name; the classes are imported when they are built."""

from drsrobust.models import register

register("fm", "drsrobust_extras.data.fm", "FM", "factorization machine (Rendle 2010)")
register("dcn", "drsrobust_extras.data.dcn", "DCN", "Deep & Cross Network (arXiv:1708.05123)")
register("afm", "drsrobust_extras.data.afm", "AFM", "attentional factorization machine (arXiv:1708.04617)")
register("afn", "drsrobust_extras.data.afn", "AFN", "adaptive factorization network (arXiv:1909.03276)")
register("wide_deep", "drsrobust_extras.data.fm", "WideDeep", "Wide & Deep (arXiv:1606.07792)")
register("deepfm", "drsrobust_extras.data.fm", "DeepFM", "factorization machine and MLP (arXiv:1703.04247)")
register("dummy", "drsrobust_extras.data.dummy", "Dummy", "the study's untrained recommender (arXiv:2307.10244)")
register(
    "sasrec", "drsrobust_extras.data.sasrec", "SASRec", "self-attention over a history of items (arXiv:1808.09781)"
)
register(
    "hstu",
    "drsrobust_extras.data.hstu",
    "HSTU",
    "sequential transduction units on a history of items (arXiv:2402.17152)",
)

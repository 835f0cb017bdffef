"""What extends the core: names of which protections, error models, experiments and pages of `drsrobust_extras` are
made. To use the library none of them is needed."""

from drsrobust._names import face

__getattr__, __dir__, __all__ = face(__name__)

"""What a model consists of: tensors and components, embedding modules, wrappers."""

from drsrobust.introspection.tensors import components

__all__ = ["components"]

"""What a model consists of: tensors and components, embedding modules, wrappers."""

from drsrobust.introspection.tensors import components, has_group

__all__ = ["components", "has_group"]

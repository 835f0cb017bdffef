"""What a model consists of: tensors and components, embedding modules, wrappers."""

from drsrobust._names import face
from drsrobust.introspection.tensors import components, has_group

__getattr__, __dir__, __all__ = face(__name__)

"""Is a model sound? The checks of surgeon/checks.py and surgeon/storage.py, which every load makes."""

from graphdoc.surgeon.model import Loadable, load_proto
from graphdoc.surgeon.reader import read_model


def validate(model: Loadable) -> None:
    """Raise ModelError for the first fault that makes a model impossible to read or run.

    No external data is read, nothing is run; memory is bounded by the size of the model.
    """
    read_model(load_proto(model), None, external=False)

"""What can go wrong with a model. Each message says what happened and what to do; show it as it is."""

NONSENSE = (
    ArithmeticError,
    AttributeError,
    IndexError,
    KeyError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What computing with the values of a file raises where these make no sense: a number that is text, a size of 0."""


class ModelError(Exception):
    """Any failure to find, fetch, convert or load a model; its text is for the user."""


class CatalogueError(ModelError):
    """models.yaml is wrong; the text names file, line and model."""


class UnknownModelError(ModelError):
    """No model of that name is in the catalogue."""


class FetchError(ModelError):
    """A model could not be fetched, for a reason that none of the classes below names."""


class GatedError(FetchError):
    """The repository's licence must be accepted first."""


class MissingError(FetchError):
    """There is no such package, repository, revision, folder or file."""


class OfflineError(FetchError):
    """The registry or the hub cannot be reached, or answers that it is out of order (5xx)."""


class DiskFullError(ModelError):
    """Not enough space is left on the device."""


class BrokenFileError(ModelError):
    """A file is truncated, altered or unreadable."""


class UnsupportedError(ModelError):
    """The files are whole, but are not a causal language model that can be loaded here."""


class DoesNotFitError(ModelError):
    """The model needs more memory than is free; the text says what would fit."""


class DeviceError(ModelError):
    """A GPU does not compute the model as it should, in any way that is known here."""

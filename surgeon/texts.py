"""Text fields that are not UTF-8. Protobuf hands them out as bytes, or fails when they are read."""

from collections.abc import Iterable
from typing import Any, NoReturn

from graphdoc.engine.errors import ModelError


def require_text(texts: Iterable[Any]) -> None:
    """Raise TypeError when one of the texts is bytes: it was not UTF-8 in the file."""
    "".join(texts)


def check_texts(message: Any) -> None:
    """Raise ModelError for the first text field of a message, at any depth, that is not UTF-8."""
    place = find_bad_text(message, "")
    if place is not None:
        refuse(place)


def refuse(place: str) -> NoReturn:
    """Raise ModelError for a text field."""
    raise ModelError(
        f"the text of {place} is not UTF-8",
        where=place,
        next_step="export the model again; ONNX stores names and texts in UTF-8",
    )


def find_bad_text(message: Any, path: str) -> str | None:
    """Return the way to the first text field that is not UTF-8, or None. Source: protobuf, string fields."""
    for field in message.DESCRIPTOR.fields:
        if field.type == field.TYPE_STRING:
            if not _is_text(message, field):
                return f"{path}{field.name}"
        elif field.message_type is not None:
            for place, inner in _messages(message, field):
                found = find_bad_text(inner, f"{path}{place}.")
                if found is not None:
                    return found
    return None


def _is_text(message: Any, field: Any) -> bool:
    try:
        value = getattr(message, field.name)
        items = list(value) if field.is_repeated else [value]
    except UnicodeDecodeError:
        return False
    return all(isinstance(item, str) for item in items)


def _messages(message: Any, field: Any) -> Iterable[tuple[str, Any]]:
    if field.is_repeated:
        yield from ((f"{field.name}[{n}]", item) for n, item in enumerate(getattr(message, field.name)))
    elif message.HasField(field.name):
        yield field.name, getattr(message, field.name)

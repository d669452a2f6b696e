"""For the Python reference: the comment behind a field (`k: int = 4  # clusters`) is that field's documentation."""

from __future__ import annotations

from typing import Any

import griffe


class Fields(griffe.Extension):
    """Attributes of classes that have a comment in their line, and no docstring of their own."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Called for every attribute when its module has been read."""
        place = attr.filepath
        if attr.docstring is not None or attr.lineno is None or isinstance(place, list):
            return
        if not isinstance(attr.parent, griffe.Class):
            return
        line = attr.lines_collection[place][attr.lineno - 1]
        _, mark, comment = line.partition("  # ")
        if mark and not comment.startswith(("type:", "noqa")):
            attr.docstring = griffe.Docstring(comment.strip(), parent=attr)

"""The targets by name. To add one, add a `Target` to the file of its family."""

from __future__ import annotations

from caprompt.errors import UnknownNameError
from caprompt.reproduce.evidence import Target
from caprompt.reproduce.targets import accuracy_tables, class_orders, comparison, figures, theorem

__all__ = ["ALL", "TARGETS", "select_targets"]

ALL = "all"
FAMILIES = (accuracy_tables, figures, theorem, comparison, class_orders)
TARGETS: dict[str, Target] = {target.name: target for family in FAMILIES for target in family.TARGETS}


def select_targets(names: tuple[str, ...]) -> list[Target]:
    """Return the targets of these names, each once; "all" selects every target.

    >>> [target.name for target in select_targets(("theorem", "table3"))]
    ['theorem', 'table3']
    """
    selected = dict.fromkeys(TARGETS if ALL in names else names)
    for name in selected:
        if name not in TARGETS:
            raise UnknownNameError("target", name, [*TARGETS, ALL])
    return [TARGETS[name] for name in selected]

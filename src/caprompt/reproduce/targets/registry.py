"""What can be reproduced, by name. To add a target: one more `Target` in the file of its family."""

from __future__ import annotations

from caprompt.errors import UnknownNameError
from caprompt.reproduce.evidence import Target
from caprompt.reproduce.targets import accuracy_tables, class_orders, comparison, figures, theorem

__all__ = ["ALL", "TARGETS", "select_targets"]

ALL = "all"
FAMILIES = (accuracy_tables, figures, theorem, comparison, class_orders)
TARGETS: dict[str, Target] = {target.name: target for family in FAMILIES for target in family.TARGETS}


def select_targets(names: tuple[str, ...]) -> list[Target]:
    """The targets of these names, each once; "all" stands for every one.

    >>> [target.name for target in select_targets(("theorem", "table3"))]
    ['theorem', 'table3']
    """
    wanted = dict.fromkeys(TARGETS if ALL in names else names)
    for name in wanted:
        if name not in TARGETS:
            raise UnknownNameError("target", name, [*TARGETS, ALL])
    return [TARGETS[name] for name in wanted]

"""Class-incremental experiments: configuration, run folders, execution, audits and grids."""

from __future__ import annotations

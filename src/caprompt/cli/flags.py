"""The flags that several commands share, each described once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

__all__ = ["AsJson", "Config", "Cycles", "Device", "Set", "SkipBad"]

Set = Annotated[list[str] | None, Parameter(name="--set", help="An option as key=value; may be repeated.", negative=())]
Config = Annotated[Path | None, Parameter(help="A TOML file of settings and options; --set and flags win over it.")]
Device = Annotated[str, Parameter(help="cpu, cuda, or auto.")]
SkipBad = Annotated[bool, Parameter(help="Go on without images that cannot be read, and list them.")]
AsJson = Annotated[bool, Parameter(name="--json", help="Print JSON for machines.")]
Cycles = Annotated[str | None, Parameter(help="Passes per image: a number, or auto.")]

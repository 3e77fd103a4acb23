"""The tables and figures that can be reproduced, one family per file."""

from __future__ import annotations

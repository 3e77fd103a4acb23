"""The tables and figures that can be reproduced, one family a file."""

from __future__ import annotations

"""Benchmark datasets known by name, one module each; `registry` lists and loads them."""

from __future__ import annotations

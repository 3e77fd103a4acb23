"""Helpers without knowledge of models: files, devices, random numbers, optimizers, CUDA graphs."""

from __future__ import annotations

"""Vision transformers: the network, its weights files, and pre-trained models by name."""

from __future__ import annotations

from caprompt.backbones.vit import Adaptation, ViT, ViTConfig
from caprompt.backbones.weights import DEFAULT_BACKBONE, Backbone, list_backbones, load_backbone

__all__ = ["DEFAULT_BACKBONE", "Adaptation", "Backbone", "ViT", "ViTConfig", "list_backbones", "load_backbone"]

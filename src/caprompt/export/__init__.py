"""Models for use elsewhere: ONNX files, web pages, model cards and the Hugging Face hub.

`onnx_graph` writes ONNX files: it records the network, puts `preprocessing` in front of it (built with `graph_builder`), and stores
the weights as `quantization` says; `verification` compares the result with the original. `browser` writes a web page around such a
file. `card` writes model cards, and `hub` publishes models.
"""

from __future__ import annotations

from caprompt.export.browser import export_browser
from caprompt.export.onnx_graph import Exported, check_output, export_onnx
from caprompt.export.verification import Agreement, verify_onnx

__all__ = ["Agreement", "Exported", "check_output", "export_browser", "export_onnx", "verify_onnx"]

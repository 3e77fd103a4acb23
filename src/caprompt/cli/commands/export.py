"""The command `export`: write a model as an ONNX file, or as a web page that classifies images offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from caprompt.cli.arguments import Cycles, parse_cycles
from caprompt.cli.console import out
from caprompt.errors import OptionError

__all__ = ["export"]


def export(
    model: Path,
    *,
    to: Literal["onnx", "browser"],
    out_path: Annotated[Path, Parameter(name="--out")],
    weights: Literal["fp32", "fp16", "int8"] = "fp32",
    opset: int = 18,
    verify: Path | None = None,
    runtime: Path | None = None,
    cycles: Cycles = None,
    backbone: str | None = None,
) -> None:
    """Write a model as an ONNX file that takes images of any size, or as a web page that classifies images offline.

    Examples:

        caprompt export pets --to onnx --out pets.onnx --verify photos/test
        caprompt export pets --to onnx --out pets.onnx --weights int8
        caprompt export pets --to browser --out pets-page

    Parameters
    ----------
    model
        Folder of the model.
    to
        onnx: one file, for ONNX Runtime and others; browser: a folder with the page index.html and all that it needs.
    out_path
        File or folder to write; it must not exist yet.
    weights
        How weights are stored; computation is in float32.
    opset
        Version of ONNX's operators, 18 to 23.
    verify
        Folder of images on which the exported model is compared with the original before it is written.
    runtime
        With --to browser: folder of the npm package onnxruntime-web, which otherwise npm downloads.
    backbone
        Weights file of the backbone, if it was moved.
    """
    from caprompt.classifier import ContinualClassifier
    from caprompt.export import check_output, export_browser, export_onnx

    if runtime is not None and to == "onnx":
        raise OptionError("an ONNX file contains no runtime; leave out --runtime, or export with --to browser")
    check_output(out_path, may_be_empty=to == "browser")
    classifier = ContinualClassifier.load(model, backbone=backbone, device="cpu")
    settings = {"weights": weights, "opset": opset, "verify": verify, **parse_cycles(cycles)}
    if to == "onnx":
        exported = export_onnx(classifier, out_path, **settings)
    else:
        exported = export_browser(classifier, out_path, name=model.resolve().name, runtime=runtime, **settings)
    for line in exported.agreement.describe() if exported.agreement else ():
        out.print(line)
    page = "; open index.html in a browser" if to == "browser" else ""
    out.print(f"written to {exported.path} ({exported.num_bytes / 1e6:.1f} MB){page}", soft_wrap=True)

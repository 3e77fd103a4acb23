"""Export to ONNX: one file that takes decoded images of any size and returns the scores of all classes.

    images        (N, H, W, 3) uint8, RGB, upright; resize, crop and normalization are part of the graph
    scores        (N, C) float32, probabilities of the classes
    logits        (N, C) float32
    unknown       (N,)   float32, from 0 to 1: how unlike the learned classes an image is
    task_weights  (N, T) float32

A method can be exported if its prediction is the same sequence of operations for every image (`Method.can_capture_predict`).
"""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from caprompt import __version__, protocols
from caprompt.backbones.fp8 import convert_from_fp8
from caprompt.classifier import ContinualClassifier
from caprompt.engine.inputs import InputPipeline
from caprompt.errors import InputError, OptionError, first_line
from caprompt.export.preprocessing import add_preprocessing
from caprompt.export.quantization import Weights, check_weights, store_weights
from caprompt.export.verification import Agreement, check_folder, verify_onnx
from caprompt.methods.base import Method, MethodOutput
from caprompt.outputs import compute_known_scores, compute_probabilities
from caprompt.utils.files import write_bytes
from caprompt.utils.paths import expand_user

if TYPE_CHECKING:
    import onnx

__all__ = [
    "DEFAULT_OPSET",
    "OUTPUTS",
    "Exported",
    "check_exportable",
    "check_output",
    "check_request",
    "compute_unknown_scores",
    "encode_onnx",
    "export_onnx",
]

OUTPUTS = ("scores", "logits", "unknown", "task_weights")
DEFAULT_OPSET = 18  # the oldest that torch exports to without converting the graph afterwards
NEWEST_OPSET = 23  # the newest that was tested
MAX_BYTES = 2**31 - 1  # of a protobuf message
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
OLDEST_TORCH = (2, 7)  # whose exporter has all that is used here


@dataclass(frozen=True)
class Exported:
    """What was written."""

    path: Path
    num_bytes: int
    agreement: Agreement | None  # with the model, if it was verified


def export_onnx(
    model: ContinualClassifier,
    path: str | Path,
    *,
    weights: Weights = "fp32",
    opset: int = DEFAULT_OPSET,
    verify: str | Path | None = None,
    **options: Any,
) -> Exported:
    """Write a model as an ONNX file; an existing file is an error.

    `weights` is how weights are stored: "fp32", "fp16" or "int8". Computation is in float32 in any case. `verify` is a folder of
    images on which the file is compared with the model. `options` override those of the method that concern prediction, such as
    cycles=2.
    """
    path = check_output(path)
    if verify is not None:
        check_folder(verify)
    content = encode_onnx(model, weights=weights, opset=opset, **options)
    agreement = None if verify is None else verify_onnx(model, content, verify, **options)
    write_bytes(path, content)
    return Exported(path, len(content), agreement)


def check_output(path: str | Path, may_be_empty: bool = False) -> Path:
    """Return the path to write to; raise if something is there already, other than an empty folder if that may be."""
    path = expand_user(path)
    if path.is_symlink() or (path.exists() and not (may_be_empty and path.is_dir() and not any(path.iterdir()))):
        raise InputError(f"'{path}' exists already; choose another name, or remove it first")
    return path


def encode_onnx(model: ContinualClassifier, *, weights: Weights = "fp32", opset: int = DEFAULT_OPSET, **options: Any) -> bytes:
    """Return the content of an ONNX file, with class names and provenance in its metadata."""
    check_request(model, weights, opset, **options)
    with model.override_options(options):
        graph = _trace(model, opset)
        _strip_traces(graph)
        inputs = InputPipeline(model.backbone, torch.device("cpu"))
        assert inputs.cache.shrink_to is not None
        add_preprocessing(graph, inputs.make_eval_transform(model.method.input_options), inputs.cache.shrink_to)
        store_weights(graph, weights)
        for key, value in make_metadata(model, weights).items():
            graph.metadata_props.add(key=key, value=value)
    graph.producer_name, graph.producer_version = "caprompt", __version__
    if graph.ByteSize() > MAX_BYTES:
        raise InputError("the model is larger than 2 GB, which an ONNX file cannot hold; use weights='fp16' or weights='int8'")
    content: bytes = graph.SerializeToString(deterministic=True)
    return content


def check_request(model: ContinualClassifier, weights: str, opset: int, **options: Any) -> None:
    """Raise if a model cannot be exported, or not like that."""
    check_packages()
    check_weights(weights)
    check_opset(opset)
    with model.override_options(options):
        check_exportable(model)


def check_packages() -> None:
    """Raise if a package of the extra is not installed, or too old."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise InputError(f"export needs the package {' and '.join(missing)}; install the extra: pip install 'caprompt[export]'")
    if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST_TORCH:
        needed = ".".join(map(str, OLDEST_TORCH))
        raise InputError(f"export needs torch {needed}, not {torch.__version__}; install the extra: pip install 'caprompt[export]'")


def check_opset(opset: int) -> None:
    """Raise for a version of ONNX's operators that is too old or too new."""
    if not DEFAULT_OPSET <= opset <= NEWEST_OPSET:
        age = "old" if opset < DEFAULT_OPSET else "new"
        raise OptionError(f"opset {opset} is too {age}; use one from {DEFAULT_OPSET} to {NEWEST_OPSET}")


def check_exportable(model: ContinualClassifier) -> None:
    """Raise if the prediction of a model is not the same sequence of operations for every image."""
    if not model.classes:
        raise InputError("this model has not learned any class yet; call learn first")
    method = model.method
    if protocols.is_released(method.options):
        raise InputError(
            f"this model of '{method.name}' cannot be exported: with protocol=released a prediction depends on the other images of "
            "its batch; train it with the honest protocol"
        )
    if getattr(method.options, "cycles", None) == "auto":
        raise InputError(
            f"this model of '{method.name}' cannot be exported with cycles=auto, which runs as many passes as each image needs; "
            "give their number with cycles=..."
        )
    if not method.can_capture_predict:
        raise InputError(
            f"the method '{method.name}' cannot be exported: it runs as many forward passes as each image needs, which is no fixed "
            "graph; docs/export.md lists the methods that can"
        )


def compute_unknown_scores(output: MethodOutput) -> Tensor:
    """Return how unlike the learned classes each of N images is (N,), from 0 to 1.

    This is the only place where it is computed: exported models contain what stands here.
    """
    return 1 - compute_known_scores(output)


class Network(nn.Module):
    """A model from preprocessed images to the outputs of the graph, in float32 on a CPU."""

    def __init__(self, model: ContinualClassifier) -> None:
        super().__init__()
        self.method = _copy_in_float32(model.method)
        self.convert_output = model.convert_output  # joins and calibrates the logits

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Predict images (N, 3, S, S): the `OUTPUTS`."""
        output = self.convert_output(self.method.predict(images))
        return compute_probabilities(output), output.logits, compute_unknown_scores(output), output.task_weights


def _copy_in_float32(method: Method) -> Method:
    """Return the method on a CPU, its backbone in float32 and not compiled; on a CPU, what it has learned is shared."""
    twin = copy.copy(method)
    twin._modules = dict(method._modules)
    twin.vit = convert_from_fp8(method.vit.copy_uncompiled()).float()
    return twin if method.device.type == "cpu" else copy.deepcopy(twin).cpu()


def make_metadata(model: ContinualClassifier, weights: Weights) -> dict[str, str]:
    """Return what the file says about itself; lists are JSON, and classes are in the order of the scores."""
    return {
        "caprompt_version": __version__,
        "method": model.method.name,
        "classes": json.dumps(model.classes),
        "tasks": json.dumps(model.tasks),
        "backbone": model.backbone.name,
        "backbone_sha256": model.backbone.sha256,
        "protocol": protocols.describe_protocol(model.method.options),
        "weights": weights,
    }


def _trace(model: ContinualClassifier, opset: int) -> onnx.ModelProto:
    """Record the operations of a model's network as an ONNX graph for any number of images."""
    size = model.backbone.config.image_size
    example = torch.zeros(2, 3, size, size)
    with torch.no_grad(), _quiet():
        try:
            program = torch.onnx.export(
                Network(model),
                (example,),
                dynamo=True,
                opset_version=opset,
                input_names=["network_input"],
                output_names=list(OUTPUTS),
                dynamic_shapes=({0: "batch"},),
                verbose=False,
            )
        except Exception as error:  # of many kinds: the method may be someone else's code
            raise InputError(f"the method '{model.method.name}' cannot be exported to ONNX: {first_line(error)}") from error
    assert program is not None
    found = next(each.version for each in program.model_proto.opset_import if each.domain == "")
    if found != opset:  # the exporter leaves a graph that it cannot convert as it is
        raise OptionError(f"torch {torch.__version__} cannot export to opset {opset}; use {found}")
    return program.model_proto


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings of the exporter, which concern its own code."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _strip_traces(model: onnx.ModelProto) -> None:
    """Remove where in the source code each node comes from: paths of this machine, and half of a small file."""
    graph = model.graph
    for entry in (graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del entry.metadata_props[:]
        entry.doc_string = ""
    for function in model.functions:
        for entry in (function, *function.node, *function.value_info):
            del entry.metadata_props[:]
            entry.doc_string = ""

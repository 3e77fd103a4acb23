"""The process of a job: `python -m caprompt.serve.worker JOB`, where JOB is the JSON file that the server has written.

It reports progress as JSON lines on stdout, and its end as a last line with a result or an error. It ends with its server, whose
end closes stdin. It may be killed at any moment: the library leaves the model as it was or as it should be, and `resume` goes on
from the last checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from caprompt.errors import CapromptError, InputError
from caprompt.utils.files import read_json

__all__ = ["main", "split_held_out"]

NICENESS = 10  # of teaching, so that predictions go first
MIN_HELD_OUT = 5  # images of a class; of fewer, all are learned
INTERVAL = 0.1  # seconds between two reports of progress
# Shares of the progress bar.
CHECKED, TRAINED, CONSOLIDATED = 0.1, 0.8, 0.9

Images = Sequence[Mapping[str, str]]  # entries of an upload
Report = Callable[[str, float], None]


def main(arguments: Sequence[str]) -> int:
    """Do a job and return the exit status."""
    job_file = Path(arguments[0])
    job = read_json(job_file)
    threading.Thread(target=_end_with_server, daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as messages:
        os.dup2(2, 1)  # what libraries print is no message, also if they do so without Python
        sys.stdout = sys.stderr
        try:
            result = {"learn": learn, "evaluate": evaluate, "export": export}[job["kind"]](job, _make_reporter(messages))
        except CapromptError as error:
            _send(messages, {"error": str(error)})
            return error.exit_code
        _send(messages, {"result": result})
    return 0


def learn(job: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Teach the images of an upload, but for those that are held out, which the model is then tested on."""
    from caprompt.checkpoint.model import finish_killed_save, has_stopped_call
    from caprompt.data.samples import Samples

    report("starting", 0.0)
    images = read_images(job)
    taught, held_out = split_held_out(images, float(job["hold_out"]))
    folder, upload = Path(job["folder"]), Path(job["upload_folder"])
    samples = Samples(*_list_columns(taught, upload))
    model, is_done = _open_model(job, samples)
    before = set(model.classes)
    if is_done:
        finish_killed_save(folder)
        added = _list_new(model.lessons[-1])
    else:
        resume = has_stopped_call(folder)
        model.learn(samples, checkpoint_dir=folder, resume=resume, callbacks=_make_callback(report), progress=False)
        added = [name for name in samples.classes if name not in before]
    result: dict[str, Any] = {"classes_added": added, "images": len(samples), "held_out": None}
    if held_out:
        report("evaluating", CONSOLIDATED)
        result["held_out"] = _evaluate(model, held_out, upload)
    return result


def evaluate(job: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Test the model on the images of an upload."""
    from caprompt.classifier import ContinualClassifier

    report("starting", 0.0)
    model = ContinualClassifier.load(job["folder"], device=job["device"])
    report("evaluating", CHECKED)
    return _evaluate(model, read_images(job), Path(job["upload_folder"]))


def export(job: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Write the model as an ONNX file or as a web page, into the folder for exports."""
    from caprompt.classifier import ContinualClassifier
    from caprompt.export import export_browser, export_onnx
    from caprompt.utils.files import remove_path

    report("starting", 0.0)
    model = ContinualClassifier.load(job["folder"], device="cpu")
    report("exporting", CHECKED)
    final = Path(job["target"])
    draft = final.with_name(f".next-{final.name}")
    final.parent.mkdir(parents=True, exist_ok=True)
    remove_path(draft)
    if job["format"] == "onnx":
        exported = export_onnx(model, draft)
    else:
        exported = export_browser(model, draft, name=job["model"], runtime=job.get("runtime"))
    remove_path(final)
    draft.replace(final)
    return {"format": job["format"], "bytes": exported.num_bytes, "identity": model.identity}


def read_images(job: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the entries of the upload of a job."""
    from caprompt.serve.uploads import Upload

    upload = Upload(Path(job["upload_folder"]))
    if not upload.images:
        raise InputError("the upload of this job has no images any more; upload them again")
    return [{"file": each.file, "label": each.label, "name": each.name, "sha256": each.sha256} for each in upload.images]


def split_held_out(images: Images, share: float) -> tuple[list[Mapping[str, str]], list[Mapping[str, str]]]:
    """Divide images into those to learn and those to test with: a share of each class that has enough.

    Which ones follows from their contents only, so that a resumed job has the same.

    >>> images = [{"label": "a", "sha256": str(number)} for number in range(5)] + [{"label": "b", "sha256": "9"}]
    >>> [len(part) for part in split_held_out(images, 0.2)], len(split_held_out(images, 0.0)[1])
    ([5, 1], 0)
    """
    chosen: set[str] = set()
    for label in {image["label"] for image in images}:
        hashes = sorted(image["sha256"] for image in images if image["label"] == label)
        if share > 0 and len(hashes) >= MIN_HELD_OUT:
            chosen.update(hashes[: max(1, min(len(hashes) - 1, round(share * len(hashes))))])
    return [each for each in images if each["sha256"] not in chosen], [each for each in images if each["sha256"] in chosen]


def _open_model(job: Mapping[str, Any], samples: Any) -> tuple[Any, bool]:
    """Return the model to teach, and whether it has this lesson already: then only the rest of the job is left."""
    from caprompt import checkpoint
    from caprompt.classifier import ContinualClassifier

    folder = Path(job["folder"])
    if not checkpoint.exists(folder):
        stopped = ContinualClassifier.load_stopped(folder, device=job["device"])
        new = job["new"]
        return stopped or ContinualClassifier(new["method"], new["backbone"], device=job["device"], **new["options"]), False
    model = ContinualClassifier.load(folder, device=job["device"])
    last = model.lessons[-1] if model.lessons else {}
    is_done = model.num_calls == job["calls"] + 1 and last.get("kind") == "learn" and _count(last) == samples.counts()
    return model, is_done and len(model.table.find_learned(samples)) == len(samples)


def _count(lesson: Mapping[str, Any]) -> dict[str, int]:
    return {name: entry["images"] for name, entry in lesson["classes"].items()}


def _list_new(lesson: Mapping[str, Any]) -> list[str]:
    return [name for name, entry in lesson["classes"].items() if entry["new"]]


def _evaluate(model: Any, images: Images, upload: Path) -> dict[str, Any]:
    from caprompt.data.samples import Samples

    evaluation = model.evaluate(Samples(*_list_columns(images, upload)))
    names = {str(upload / each["file"]): each["name"] for each in images}
    return {
        "images": evaluation.images,
        "accuracy": round(evaluation.accuracy, 2),
        "classes": [
            {"name": name, "images": evaluation.images_per_class[name], "accuracy": round(evaluation.per_class[name], 2)}
            for name in evaluation.list_classes()
        ],
        "confusions": [
            {
                "true": each.label,
                "predicted": each.predicted,
                "count": each.count,
                "files": [
                    names[mistake.path]
                    for mistake in evaluation.mistakes
                    if (mistake.label, mistake.predicted) == (each.label, each.predicted) and mistake.path in names
                ],
            }
            for each in evaluation.list_confusions()
        ],
        "unlearned": dict(evaluation.unlearned),
    }


def _list_columns(images: Images, upload: Path) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    return tuple(upload / each["file"] for each in images), tuple(each["label"] for each in images)


def _make_callback(report: Report) -> Callable[[Any], None]:
    """Return a callback of the library that reports how far a lesson has come."""
    from caprompt.callbacks import events

    seen, total = 0, 1

    def report_event(event: Any) -> None:
        nonlocal seen, total
        if isinstance(event, events.ImagesChecked):
            report("checking images", CHECKED * event.done / event.total)
        elif isinstance(event, events.LearnStarted):
            seen, total = event.first_epoch * event.images, max(1, event.epochs * event.images)
        elif isinstance(event, events.StepEnded):
            seen += event.images
            report("training", CHECKED + (TRAINED - CHECKED) * min(1.0, seen / total))
        elif isinstance(event, events.Consolidating):
            report("consolidating", TRAINED)

    return report_event


def _make_reporter(messages: TextIO) -> Report:
    last_stage, last_time = "", 0.0

    def report(stage: str, progress: float) -> None:
        nonlocal last_stage, last_time
        now = time.monotonic()
        if stage != last_stage or now - last_time > INTERVAL:
            last_stage, last_time = stage, now
            _send(messages, {"stage": stage, "progress": round(progress, 4)})

    return report


def _send(messages: TextIO, message: Mapping[str, Any]) -> None:
    messages.write(json.dumps(message) + "\n")
    messages.flush()


def _end_with_server() -> None:
    while os.read(sys.stdin.fileno(), 1024):  # not through Python's buffer, whose lock the end of the process would wait for
        pass
    os._exit(3)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

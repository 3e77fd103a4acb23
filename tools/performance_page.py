"""Write the tables of results/speed/*.json into docs/performance.md and README.md, between `<!-- NAME -->` and `<!-- end -->`.

    python tools/performance_page.py                 # after any of the benchmarks; without new results nothing changes

Benchmarks print their own table with the same functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE, README = ROOT / "results" / "speed", ROOT / "docs" / "performance.md", ROOT / "README.md"


def format_table(heads: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table, the first column aligned to the left.

    >>> print(format_table(["a", "b"], [["x", "1"]]))
    | a | b |
    |---|--:|
    | x | 1 |
    """
    lines = [heads, ["---", *["--:"] * (len(heads) - 1)], *rows]
    return "\n".join(f"|{'|'.join(line)}|" if line[0] == "---" else f"| {' | '.join(line)} |" for line in lines)


def format_conditions(result: dict[str, Any]) -> str:
    """Return date, machine and versions, and the measured peak rates of the device."""
    machine = "{device}, torch {torch}, Python {python}".format(**result["environment"])
    peak = result.get("ceilings")
    on_gpu = result["environment"]["device"].startswith("cuda")
    matmul = f"{peak['matrix_tflops']:.{0 if on_gpu else 2}f} TFLOP/s {'bf16' if on_gpu else 'fp32'}" if peak else ""
    peaks = f"; peak rates {matmul}, {peak['copy_tb_per_s']:.2f} TB/s" if peak else ""
    return f"{result['date']}, {machine}{peaks}."


def format_train_step(result: dict[str, Any]) -> str:
    """Return speed, memory and error of each variant of the training step."""
    has_first = any("first_s" in row for row in result["rows"])
    heads = [
        "step",
        "batch",
        "images/s",
        "ms",
        *(["first, s"] if has_first else []),
        "GB",
        "of peak",
        "loss error",
        "gradient error",
    ]
    rows = []
    for row in result["rows"]:
        errors = [f"{row[key]:.1e}" if key in row else "" for key in ("loss_error", "gradient_error")]
        speed = [str(row["batch"]), f"{row['images_per_s']:,.0f}", f"{row['ms']:.2f}"]
        speed += ([f"{row['first_s']:.1f}"] if has_first else []) + [f"{row['gb']:.2f}"]
        rows.append([row["variant"], *speed, f"{row['share_of_ceiling']:.0%}", *errors])
    return _with_profile(format_table(heads, rows), result)


def format_prediction(result: dict[str, Any]) -> str:
    """Return speed and memory of each variant of prediction."""
    rows = [
        [
            row["variant"],
            str(row["batch"]),
            *(f"{row['images_per_s']:,.0f}", f"{row['ms']:.2f}", f"{row['gb']:.2f}", f"{row['share_of_ceiling']:.0%}"),
        ]
        for row in result["rows"]
    ]
    return _with_profile(format_table(["prediction", "batch", "images/s", "ms", "GB", "of peak"], rows), result)


def _with_profile(table: str, result: dict[str, Any]) -> str:
    """Return the table, followed by the time of each kind of kernel where the profiler has run."""
    heads, rows = ["variant", "batch", "kernels", "matmuls, ms", "attention, ms", "other, ms"], []
    for row in result["rows"]:
        if spent := row.get("where"):
            parts = [f"{spent[kind]:.2f}" for kind in ("products", "attention", "else")]
            rows.append([row["variant"], str(row["batch"]), f"{spent['kernels']:.0f}", *parts])
    return f"{table}\n\n{format_table(heads, rows)}" if rows else table


def format_epoch(result: dict[str, Any]) -> str:
    """Return the speed of an epoch from files against the bare step."""
    rows = [
        [str(row["batch"]), f"{row['epoch_images_per_s']:,.0f}", f"{row['step_images_per_s']:,.0f}", f"{row['share']:.0%}"]
        for row in result["rows"]
    ]
    return format_table(["batch", "epoch from files, images/s", "bare step, images/s", "share"], rows)


def format_growth(result: dict[str, Any]) -> str:
    """Return times of step and prediction by tasks and classes, and the size of class statistics."""
    rows = [
        [str(row["tasks"]), f"{row['classes']:,}", f"{row['step_ms']:.2f}", f"{row['prediction_ms']:.2f}"]
        for row in [*result["by_tasks"], *result["by_classes"]]
    ]
    sizes = [[kind, f"{size:,}", f"{size / 1e5:.2f} GB"] for kind, size in result["bytes_per_class"].items()]
    alignment = result["alignment"]
    return "\n\n".join(
        [
            format_table(["tasks", "classes", "step, ms", "prediction, ms"], rows),
            f"Alignment of {alignment['classes']} classes, width {alignment['width']}: {alignment['seconds']:.1f} s.",
            format_table(["statistics", "bytes a class", "10,000 classes"], sizes),
        ]
    )


def format_cpu_step(result: dict[str, Any]) -> str:
    """Return the training step on a CPU against the plain one in the same run."""
    plain = next(iter(result["seconds"].values()))
    rows = [
        [
            name,
            f"{1e3 * seconds:.0f}",
            f"{result['batch'] / seconds:.0f}",
            f"{plain / seconds:.2f} x",
            f"{result['shares'][name]:.0%}",
        ]
        for name, seconds in result["seconds"].items()
    ]
    return format_table(["step", "ms", "images/s", "against plain", "of peak"], rows)


def format_invariance(result: dict[str, Any]) -> str:
    """Return how many labels and outputs in batches differ from those of single images."""
    counted = {"labels": "labels unlike alone", "outputs": "outputs unlike alone", "labels_fp32": "labels unlike fp32"}
    counted = {name: head for name, head in counted.items() if any(row[name] is not None for row in result["rows"])}
    heads, rows = ["precision", "batch", "order", *counted.values()], []
    for row in result["rows"]:
        counts = ["" if row[name] is None else f"{row[name]:,}" for name in counted]
        rows.append([row["precision"], str(row["batch"]), row["order"], *counts])
    total = result["images"] * result["classes"]
    return f"{format_table(heads, rows)}\n\n{result['images']:,} images, {total:,} outputs; backbone {result['backbone']}."


def format_end_to_end(result: dict[str, Any]) -> str:
    """Return the times of whole calls beside the bare network and the decoding of files."""
    rows = []
    for row in result["rows"]:
        first = "" if row["first_s"] is None else f"{1e3 * row['first_s']:,.1f}"
        rows.append(
            [row["what"], f"{row['images']:,}", first, f"{1e3 * row['warm_s']:,.2f}", f"{row['images'] / row['warm_s']:,.0f}"]
        )
    return format_table(["call", "images", "first, ms", "warm, ms", "images/s"], rows)


def format_fused_gelu(result: dict[str, Any]) -> str:
    """Return matmul and GELU one after the other and in one kernel, and what that would save of a step."""
    heads = ["direction", "matmul, ms", "element-wise, ms", "both, ms", "fused, ms", "error of fused"]
    rows, blocks, saved, ideal = [], result["blocks"], [], 0.0
    for row in result["rows"]:
        both = row["matmul_ms"] + row["element_wise_ms"]
        saved.append(blocks * (both - row["fused_ms"]))
        ideal += blocks * row["element_wise_ms"]
        times = [row["matmul_ms"], row["element_wise_ms"], both, row["fused_ms"]]
        rows.append([row["direction"], *(f"{milliseconds:.3f}" for milliseconds in times), f"{row['error']:.4f}"])
    gained = sum(max(0.0, each) for each in saved)
    return (
        f"{format_table(heads, rows)}\n\n{result['images']} images, one block. All {blocks} blocks of a step would be "
        f"{'faster' if sum(saved) > 0 else 'slower'} by {abs(sum(saved)):.1f} ms if both directions were fused, faster by "
        f"{gained:.1f} ms if only those that gain were, and by {ideal:.1f} ms if fused kernels cost no more than the matmul alone."
    )


def format_precision(result: dict[str, Any]) -> str:
    """Return the accuracies of the same runs in half and in full precision."""
    heads = ["precision", "seed", "ACC", "AF", "task identified", "learning, s"]
    rows = []
    for row in result["rows"]:
        accuracies = [f"{row[name]:.2f}" for name in ("ACC", "AF", "task_identification")]
        rows.append([row["precision"], str(row["seed"]), *accuracies, f"{row['seconds']:.0f}"])
    return f"{format_table(heads, rows)}\n\nBackbone {result['backbone']}, {result['images_per_class']} images of each class."


def format_cold_start(result: dict[str, Any]) -> str:
    """Return the times of commands from the start of their process to its end."""
    rows = [[f"`{row['command']}`", f"{row['seconds']:.2f}"] for row in result["rows"]]
    return f"{format_table(['command', 's'], rows)}\n\nMedians of {result['rounds']} processes, {result['cores']} cores."


def format_busy_machine(result: dict[str, Any]) -> str:
    """Return the times of a run alone and beside busy processes, for both ways in which threads wait, and those of the controls."""
    heads, rows = ["threads wait", "alone, s", "beside, s", "ratio", "of each round"], []
    for name, row in result["waiting"].items():
        more = "more than " if row["ended"] else ""
        each = ", ".join(f"{ratio:.2f}" for ratio in row["ratios_of_rounds"])
        seconds = f"{row['seconds_alone']:.1f}", f"{more}{row['seconds_beside']:.1f}"
        rows.append([name, *seconds, f"{more}{row['ratio']:.2f}", each])
    once = " (spinning: one)" if "spinning" in result["waiting"] else ""
    measured = "One round." if result["rounds"] == 1 else f"Medians of {result['rounds']} rounds{once}."
    controls = result["controls"]
    work = {"counting": "counts", "computing": "passes images through the network"}
    single = " and ".join(f"{controls[name]['ratio']:.1f} if it {does}" for name, does in work.items())
    all_cores = controls["computing_on_all_cores"]
    each = ", ".join(f"{ratio:.2f}" for ratio in all_cores["ratios_of_rounds"])
    return (
        f"{format_table(heads, rows)}\n\n{result['processes']} busy processes on {result['cores']} cores: "
        f"a slowdown in proportion is a ratio of {result['in_proportion']:.2f}. {measured}\n"
        f"The ratio of a process of one thread, which waits for nothing, is {single}, where in proportion is "
        f"{result['in_proportion_one_thread']:.2f}.\nThat of {result['cores']} of the latter at once, until the last is done, "
        f"is {all_cores['ratio']:.2f} (of each round: {each})."
    )


def format_cpu_threads(result: dict[str, Any]) -> str:
    """Return the milliseconds of a training step and of a prediction by the number of threads with images of their own."""
    settings = list(dict.fromkeys(setting for row in result["rows"] for setting in row["seconds"]))
    heads = ["busy processes", "batch", *(f"{setting}, ms" for setting in settings)]
    rows = [
        [
            str(row["processes"]),
            str(row["batch"]),
            *(f"{1e3 * row['seconds'][setting]:.0f}" if setting in row["seconds"] else "-" for setting in settings),
        ]
        for row in result["rows"]
    ]
    counts = list(result["predictions"][0]["seconds"])
    predictions = [
        [str(row["processes"]), row["backbone"], *(f"{1e3 * row['seconds'][count]:.1f}" for count in counts)]
        for row in result["predictions"]
    ]
    predicting = format_table(["busy processes", "backbone", *(f"{count}, ms" for count in counts)], predictions)
    return f"{format_table(heads, rows)}\n\nA prediction, by the number of threads with one image each:\n\n{predicting}"


def format_rendering(result: dict[str, Any]) -> str:
    """Return the times of rendering batches of views, by separate operations and by two kernels."""
    rows = [
        [
            f"{row['images']} of {row['width']} x {row['height']}, {row['views']}",
            *(f"{row[name]:.3f}" for name in ("separate_ms", "fused_ms")),
            f"{row['separate_ms'] / row['fused_ms']:.1f} x",
        ]
        for row in result["rows"]
    ]
    return format_table(["images and views", "separate operations, ms", "two kernels, ms", "ratio"], rows)


def format_decoding(result: dict[str, Any]) -> str:
    """Return the times of decoding photos at their full size and at a fraction of it, and what that changes."""
    heads = ["decoder", "network's input", "full size, ms", "fraction, ms", "ratio", "mean difference", "largest"]
    rows = [
        [
            row["decoder"],
            str(row["input"]),
            *(f"{1e3 * row[name]:.0f}" for name in ("whole_s", "fraction_s")),
            f"{row['whole_s'] / row['fraction_s']:.1f} x",
            f"{row['mean_difference']:.2f}",
            str(row["largest_difference"]),
        ]
        for row in result["rows"]
    ]
    photos = f"{result['photos']} photos of {result['width']} x {result['height']} pixels, {result['file_mb']:.1f} MB each"
    compared = "differences of the photos, reduced to the input's size, in levels of 255"
    return f"{format_table(heads, rows)}\n\n{photos}, one thread; {compared}."


def format_sums(result: dict[str, Any]) -> str:
    """Return time and memory of the sums of the regression and of solving it, by their precision."""
    added, rows = result["milliseconds_per_image"], []
    for name, way in (("float32", "float32 square"), ("float64", "float64 lower triangle")):
        solved, sizes = result["solve"][name], [f"{result[key][name]:,.0f}" for key in ("memory_mb", "on_disk_mb")]
        rows.append([name, f"{added[way]:.2f}", f"{solved['seconds']:.1f}", *sizes, f"{solved['peak_mb']:,}"])
    table = format_table(["sums", "adding an image, ms", "solving, s", "in memory, MB", "in a file, MB", "most memory, MB"], rows)
    return f"{table}\n\n{result['projections']:,} projections, {result['classes']} classes, {result['images']:,} images."


def format_summary(calls: dict[str, Any], prediction: dict[str, Any], training: dict[str, Any]) -> str:
    """Return the rates of a user's calls beside those of a plain implementation's network alone, in small and in large batches."""
    seconds = {row["what"]: (row["images"], row["warm_s"]) for row in calls["rows"]}

    def format_rate(call: str) -> str:
        images, warm = seconds[call]
        return f"{images / warm:,.0f}"

    def format_plain(result: dict[str, Any], dtype: str) -> str:
        rates = [f"{row['images_per_s']:,.0f}" for row in result["rows"] if row["variant"] == f"plain {dtype}"]
        return " / ".join(rates)

    dtypes = ("TF32", "bf16")
    predicting, learning = ([format_plain(result, dtype) for dtype in dtypes] for result in (prediction, training))
    rows = [
        ["`predict`, arrays", format_rate("predict, arrays"), *predicting],
        ["`predict`, JPEG files", format_rate("predict, JPEG files"), "", ""],
        ["`evaluate`, JPEG files", format_rate("evaluate, folder of JPEG files"), "", ""],
        ["`learn`, JPEG files, 14 epochs", format_rate("learn, the default's 14 epochs, whole call"), *learning],
    ]
    array, file = (1e3 * seconds[f"predict_one, {kind}"][1] for kind in ("array", "JPEG file"))
    table = format_table(["call", "the whole call", *(f"plain {dtype}, network alone" for dtype in dtypes)], rows)
    return f"{table}\n\nA single image takes {array:.1f} ms as an array and {file:.1f} ms as a file."


FORMATTERS: dict[str, Callable[..., str]] = {
    "train_step": format_train_step,
    "fused_gelu": format_fused_gelu,
    "prediction": format_prediction,
    "epoch": format_epoch,
    "growth": format_growth,
    "cpu_step": format_cpu_step,
    "end_to_end": format_end_to_end,
    "rendering": format_rendering,
    "decoding": format_decoding,
    "sums": format_sums,
    "cold_start": format_cold_start,
    "busy_machine": format_busy_machine,
    "busy_demo": format_busy_machine,
    "busy_demo_beside_2": format_busy_machine,
    "busy_demo_beside_3": format_busy_machine,
    "busy_demo_8": format_busy_machine,
    "cpu_threads": format_cpu_threads,
    "cpu_threads_8": format_cpu_threads,
    "invariance": format_invariance,
    "invariance_cpu": format_invariance,
    "precision": format_precision,
    "speed": format_summary,
}
SEVERAL_FILES = {"speed": ("end_to_end", "prediction", "train_step")}  # any other part shows the file of its own name


def fill_page(text: str, results: Path = RESULTS) -> str:
    """Return the page with every marked part replaced by the table of its files."""

    def format_part(match: re.Match[str]) -> str:
        name = match[1]
        paths = [results / f"{each}.json" for each in SEVERAL_FILES.get(name, (name,))]
        if not all(path.is_file() for path in paths):
            return f"<!-- {name} -->\nNot measured yet.\n<!-- end -->"
        measured = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        return f"<!-- {name} -->\n{FORMATTERS[name](*measured)}\n\n{format_conditions(measured[0])}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", format_part, text, flags=re.DOTALL)


if __name__ == "__main__":
    for path in (PAGE, README):
        path.write_text(fill_page(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"saved {path}")

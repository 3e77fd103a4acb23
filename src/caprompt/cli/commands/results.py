"""The command `results`: write the page of results from what was measured."""

from __future__ import annotations

from pathlib import Path

from caprompt.cli.console import out
from caprompt.errors import InputError

__all__ = ["results", "results_page"]

HEADER = """# Results

This page is written by `caprompt results` from the files of what was measured; a test holds every number in it against them.
Honest figures (an image's answer is its own) and leaking ones never stand in one line, and the leaking ones are marked."""


def results(
    *,
    benchmark: Path = Path("benchmarks/results/cifar100.json"),
    frozen: Path = Path("benchmarks/results/frozen.json"),
    few: Path = Path("benchmarks/results/few.json"),
    reproduced: Path = Path("docs/reproduced"),
    page: Path = Path("docs/results.md"),
) -> None:
    """Write the page of results from the CIFAR-100 benchmark and from reproductions; nothing is run.

    Examples:

        caprompt results
        caprompt results --reproduced reproduced --page results.md

    Parameters
    ----------
    benchmark
        The file that benchmarks/cifar100.py writes.
    frozen
        The file that benchmarks/frozen.py writes.
    few
        The file that benchmarks/few.py writes.
    reproduced
        A folder of `caprompt reproduce --out`; its tables and figures are written anew from its cells.
    page
        The page to write.
    """
    from caprompt.reproduce.page import reproductions
    from caprompt.reproduce.writers import write

    text = results_page(benchmark, frozen, few, reproduced, page)
    for place, evidence in reproductions(reproduced):
        write(evidence, evidence.target.present(evidence), place)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    out.print(f"saved in {page}", soft_wrap=True)


def results_page(benchmark: Path, frozen: Path, few: Path, reproduced: Path, page: Path) -> str:
    """The page's text, as it should stand at `page`."""
    from caprompt.reproduce import page as parts

    runs = parts.read_benchmark(benchmark) if benchmark.is_file() else None
    sections = [parts.benchmark_section(runs, f"{benchmark.stem}.png")] if runs else []
    sections += [parts.frozen_section(frozen)] if frozen.is_file() else []
    sections += [parts.few_section(few)] if few.is_file() else []
    sections += [parts.reproduced_section(place, evidence, page.parent) for place, evidence in parts.reproductions(reproduced)]
    if not sections:
        raise InputError(
            f"there is nothing to tell of in '{benchmark}' and '{reproduced}'; measure with 'caprompt reproduce' first"
        )
    return "\n\n".join([HEADER, *(section.rstrip() for section in sections)]) + "\n"

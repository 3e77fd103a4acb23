"""Reads the tables of the paper's LaTeX source, for the test that compares them with the package's data."""

from __future__ import annotations

import re

NAMES = {"tab:main results": "table1", "tab:other PEFT": "table2", "tab:ablation": "table3"}
NAMES |= {"tab:inc": "table-taskid", "tab:pretrained backbone": "table-backbones"}
DATASETS = {"CIFAR-100": "cifar100", "ImageNet-R": "imagenet-r", "CUB200": "cub200"}
Cells = dict[tuple[str, str], list[str]]


def tables(source: str) -> dict[tuple[str, str, str], Cells]:
    """(table, block, row) -> (data set, metric) -> [mean, spread] or [mean], as they are printed."""
    found: dict[tuple[str, str, str], Cells] = {}
    for text in re.findall(r"\\begin\{tabular\}.*?\\label\{[^}]*\}", source, flags=re.DOTALL):
        name = NAMES[re.findall(r"\\label\{([^}]*)\}", text)[0]]
        body = text.partition("\n")[2].partition(r"\end{tabular}")[0]
        found |= rows_of(name, body)
    return found


def rows_of(name: str, body: str) -> dict[tuple[str, str, str], Cells]:
    found, block = {}, ""
    columns: list[tuple[str, str]] = []
    for line in body.split(r"\\"):
        block = next(iter(re.findall(r"rotatebox\{90\}\{([^}]*)\}", line)), block).replace("1K", "1k")
        cells = [plain(cell) for cell in line.split("&")]
        datasets = [DATASETS[each] for each in re.findall("|".join(DATASETS), line)]
        if datasets:
            metrics = ["ACC"] if name == "table-taskid" else ["ACC", "AF"]
            columns = [(data, metric) for data in datasets for metric in metrics]
            continue
        figures = [re.findall(r"\d+\.\d+", cell) for cell in cells]
        if any(figures):
            values = [figure for figure in figures if figure]
            label = next(cell for cell in cells if re.search("[A-Za-z]", cell) and cell not in (block, ""))
            found[name, block, renamed(label)] = dict(zip(columns, values, strict=True))
    return found


def plain(cell: str) -> str:
    """A cell without what only changes its looks."""
    cell = re.sub(r"\\(hline|rowcolor\{[^}]*\}|cellcolor\{[^}]*\}|multirow\{[^}]*\}\{\*\})|\\cline\{[^}]*\}", "", cell)
    cell = re.sub(r"\\rotatebox\{90\}\{[^}]*\}|\\textcolor\{[a-z]*\}|\\textbf", "", cell)
    cell = re.sub(r"\$?\\mathcal\{L\}_\{?(\w+)\}?\$?", r"L_\1", cell)
    return " ".join(re.sub(r"[{}$]|\\pm", " ", cell).split())


def renamed(label: str) -> str:
    label = label.replace("Ours", "CAPrompt").replace("w/o", "without")
    return re.sub(r"\s*\+\s*", " + ", label).strip()
